"""Serve many requests at once: slots of one state on the device, rows shared by load."""

from jaxspec.serve.requests import QueueFull, ServeRequest, Update

__all__ = ["QueueFull", "ServeRequest", "Update"]
