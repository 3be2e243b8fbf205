"""The studio: a local web page that samples models step by step, holds and edits tokens, and compares models."""
