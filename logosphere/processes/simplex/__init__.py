"""Flows and diffusions on the probability simplex."""
