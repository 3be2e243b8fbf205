"""Runs: trainings in folders, and one function for each verb (train, evaluate, sample, compare, export)."""
