"""The studio: a local web page that samples models step by step, pins tokens and compares models side by side."""
