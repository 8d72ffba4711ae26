"""BASTION's figures and tables, each a function that returns a report."""
