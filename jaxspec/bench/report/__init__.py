"""Results as tables, Markdown, plots and other projects' formats."""
