"""Comparisons: the same network, data order and budget for every system, then one report."""
