"""The studio: a page on your own machine on which models can be watched, steered and compared."""
