"""Processes: the forward process, the reverse step, and the rate of the bound."""
