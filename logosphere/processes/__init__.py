"""Processes: how clean states become noise, how one step goes back, and what that costs in nats."""
