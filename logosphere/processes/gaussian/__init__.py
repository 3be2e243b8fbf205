"""Gaussian diffusion of token embeddings and of latents."""
