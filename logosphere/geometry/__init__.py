"""Geometry of the sphere and the simplex: maps, kernels, bridges and their tables."""
