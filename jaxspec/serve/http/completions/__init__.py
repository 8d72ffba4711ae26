"""Requests and answers of the completion endpoints."""
