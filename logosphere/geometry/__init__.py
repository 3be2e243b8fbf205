"""Geometry of the sphere: maps, kernels and the laws of bridges on it."""
