"""Encoders: pretrained language models whose hidden states are what a latent system diffuses or compresses."""
