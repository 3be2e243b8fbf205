"""Corpora, datasets, tokenizers and the batches made of them."""
