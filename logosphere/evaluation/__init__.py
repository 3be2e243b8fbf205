"""Evaluation: reports that say what kind of number they hold, and comparisons that refuse to mix kinds."""
