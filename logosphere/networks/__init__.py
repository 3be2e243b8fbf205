"""Networks: denoisers that predict clean tokens from noisy states and times, their parts and their wrappers."""
