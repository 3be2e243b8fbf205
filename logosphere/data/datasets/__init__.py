"""Datasets of separate sequences with labels, sources or signals, rather than one long text."""
