"""Text in: corpora, tokenizers and the batches made of them."""
