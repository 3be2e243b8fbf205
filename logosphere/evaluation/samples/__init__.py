"""Measures of samples: each a definition, a value and its error; real text is measured beside them."""
