"""Sampling: a plan is a matrix of times, a walk is a loop over its rows, a stepper makes one move."""
