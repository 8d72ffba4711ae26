"""The claims of five papers as records, and the runner that tries them on a model at hand."""
