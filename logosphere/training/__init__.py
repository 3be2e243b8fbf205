"""Training: one loop for every system, and a folder that loses nothing."""
