"""Tokenizers, chat templates and records of text."""
