"""The listening socket of every server of ours, bound before the slow part of its start."""

from __future__ import annotations

import socket

from trainyard.errors import LimitExceeded


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `LimitExceeded` (`E-PORT`) when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LimitExceeded(
            f"Port {port} of {host} cannot be used: {error.strerror}.", do="Choose another port, or 0.", code="E-PORT"
        ) from error
    return listener
