"""Autoencoders of latent diffusion: encoders (trained here, or pretrained and frozen), compressors and decoders.

Attribute names of modules are keys of saved weights and must not change.
"""
