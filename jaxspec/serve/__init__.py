"""Serve many requests at once: slots of one state on the device, rows shared by load."""

from jaxspec.serve.engine import Engine
from jaxspec.serve.factory import make_engine
from jaxspec.serve.requests import InvalidRequest, QueueFull, ServeRequest, Update

__all__ = ["Engine", "InvalidRequest", "QueueFull", "ServeRequest", "Update", "make_engine"]
