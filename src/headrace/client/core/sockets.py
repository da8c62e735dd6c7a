"""Socket options and texts of socket errors, for both drivers."""

import errno
import socket
import ssl

from headrace.security.tls import failure_text

NAME_NOT_RESOLVED = "the host name cannot be resolved"
_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection reset",
    errno.ETIMEDOUT: "connection timed out",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
}


def describe_failure(error: Exception) -> str:
    """A short text for an error of a socket."""
    if isinstance(error, ssl.SSLError):
        return failure_text(error)
    if isinstance(error, socket.gaierror):
        return f"{NAME_NOT_RESOLVED} ({error.strerror})"
    if isinstance(error, OSError) and error.errno in _REASONS:
        return _REASONS[error.errno]
    if isinstance(error, TimeoutError):
        return "connection timed out"
    return str(error) or type(error).__name__


def set_socket_options(connection: socket.socket) -> None:
    """Disable Nagle's algorithm, because each write has complete requests. Enable keep-alive."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
