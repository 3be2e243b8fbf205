"""Noise schedules: signal levels of discrete processes, log-SNR of Gaussian ones, fixed or learned."""
