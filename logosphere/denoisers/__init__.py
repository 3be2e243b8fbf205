"""Denoisers: networks that see noisy states and times and predict the clean token, and wrappers around them."""
