"""Schedules of Gaussian diffusion: the log-signal-to-noise ratio as a function of time, fixed or learned."""
