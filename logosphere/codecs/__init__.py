"""Codecs: tokens to clean states, and states back to tokens."""
