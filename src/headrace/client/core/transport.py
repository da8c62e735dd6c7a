"""Socket options and error texts that both drivers use."""

import errno
import socket
import ssl

from headrace.security.tls import failure_text

_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection reset",
    errno.ETIMEDOUT: "connection timed out",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
}


def describe_failure(error: Exception) -> str:
    """A short text of an error."""
    if isinstance(error, ssl.SSLError):
        return failure_text(error)
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error.strerror})"
    if isinstance(error, OSError) and error.errno in _REASONS:
        return _REASONS[error.errno]
    if isinstance(error, TimeoutError):
        return "connection timed out"
    return str(error) or type(error).__name__


def tune(connection: socket.socket) -> None:
    """Send requests without delay: they are complete when they are written."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
