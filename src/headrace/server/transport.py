"""The bytes of one connection, to and from its socket: unencrypted.  # HOT

A connection reads and writes only through its transport; `tls_transport` has the encrypted one.
Nothing here blocks: a transport that cannot receive or send raises BlockingIOError.

1. `pending` is not 0 if received bytes wait in the transport, where epoll does not see them.
2. `unsent` is not 0 if bytes that were accepted by `send` or `send_slice` wait for `flush`.
"""

import os
import socket
import struct
from typing import Final

from mypy_extensions import i64

from headrace.log.file import LogFile

STEP_BYTES: Final = 1024 * 1024
"""Larger than the default send buffer, so that one call fills the buffer.

epoll reports a socket when a third of its send buffer is free. So a slow reader needs few calls. A
larger send buffer would save CPU time of the broker, but would cost the reader more than that.
"""
SHORT_STEP_BYTES: Final = 64 * 1024
"""The step of data from the disk, and of a loop iteration that has sent STEP_BYTES already."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of zero."""


class Transport:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd: int = sock.fileno()
        self.pending: i64 = 0
        self.unsent: i64 = 0
        self.step_bytes: i64 = STEP_BYTES
        """How much of a long response is sent before other connections are served."""

    def receive_into(self, view: memoryview) -> i64:
        """Fill the view with received bytes; 0 if the peer has ended the connection."""
        return self.sock.recv_into(view)

    def send(self, data: bytes, more: bool) -> i64:
        """Send a first part of the data, and return its size. `more` announces a slice."""
        return self.sock.send(data, socket.MSG_MORE if more else 0)

    def send_slice(self, file: LogFile, position: i64, size: i64) -> i64:
        """Send a first part of the slice, and return its size; 0 if the file is shorter."""
        return os.sendfile(self.fd, file.fd, position, size)

    def flush(self) -> None:
        """Send the bytes that were accepted before."""

    def is_ended(self) -> bool:
        """Whether the peer has ended the connection, and no byte is left to receive."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def reset_on_close(self) -> None:
        """Discard unsent data when the socket is closed."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def close(self) -> None:
        self.sock.close()
