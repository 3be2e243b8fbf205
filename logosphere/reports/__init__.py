"""Reports of comparisons: one set of plain data, shown as HTML, Markdown and JSON. Nothing here measures anything."""
