"""Diffusion on the hypersphere (RDLM): bridges from a start point to the vertex of each token."""
