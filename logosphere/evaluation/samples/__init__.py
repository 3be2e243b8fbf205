"""Metrics of samples, each with its definition and standard error."""
