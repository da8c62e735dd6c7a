"""The encrypted transport of a connection: TLS 1.2 or 1.3, after its handshake.  # HOT

File slices are read into a buffer that all connections share, and encrypted from there. A slice
cannot be mapped into memory instead: a file that is truncated then would stop the process.
"""

import os
import socket
from typing import Final, final

from mypy_extensions import i64

from headrace.log.file import LogFile
from headrace.runtime.tls_stream import CHUNK_BYTES, TlsStream
from headrace.server.transport import Transport

_PLAINTEXT: Final = memoryview(bytearray(CHUNK_BYTES))


@final
class TlsTransport(Transport):
    def __init__(self, sock: socket.socket, stream: TlsStream) -> None:
        super().__init__(sock)
        self._stream = stream
        self.pending = stream.pending
        self.step_bytes = CHUNK_BYTES

    def receive_into(self, view: memoryview) -> i64:
        stream = self._stream
        try:
            return stream.receive_into(view)
        finally:
            self.pending = stream.pending
            self.unsent = stream.unsent

    def send(self, data: bytes, more: bool) -> i64:
        stream = self._stream
        if stream.is_blocked:
            self.flush()
        size: i64 = stream.write(memoryview(data))
        if not more:
            stream.flush_quietly()
        self.unsent = stream.unsent
        return size

    def send_slice(self, file: LogFile, position: i64, size: i64) -> i64:
        stream = self._stream
        if stream.is_blocked:
            self.flush()
        if size > CHUNK_BYTES:
            size = CHUNK_BYTES
        size = os.preadv(file.fd, [_PLAINTEXT[:size]], position)
        if size > 0:
            stream.write(_PLAINTEXT[:size])
            stream.flush_quietly()
        self.unsent = stream.unsent
        return size

    def close(self) -> None:
        self._stream.end()
        super().close()

    def flush(self) -> None:
        try:
            self._stream.flush()
        finally:
            self.unsent = self._stream.unsent
