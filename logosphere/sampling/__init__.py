"""Sampling: time grids, the sampling loop over their rows, and steppers, which make one transition each."""
