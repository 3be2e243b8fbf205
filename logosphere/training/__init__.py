"""Training: the optimiser step, checkpoints, sharding, and auxiliary networks."""
