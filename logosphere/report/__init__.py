"""Comparison reports: plain data rendered as HTML, Markdown and JSON, with plots and animations."""
