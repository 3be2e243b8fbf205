"""Discrete diffusion: masked, uniform, hybrid and ordinal noise, and the single-step process of autoregressive models."""
