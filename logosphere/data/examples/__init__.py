"""Examples: data that come as separate sequences, with labels, sources or signals, rather than as one long text."""
