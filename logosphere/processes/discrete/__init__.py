"""Discrete diffusion: masks, random tokens, both, ordinal noise, and the single step of autoregressive models."""
