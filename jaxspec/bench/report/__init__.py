"""Results: figures with intervals, tables, Markdown, and other projects' formats."""
