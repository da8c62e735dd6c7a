"""A link between two brokers over a socket.  # HOT

The loop polls the socket; the link reads and writes it without a transport. `link.py` has the rules
for all links.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, final

from librt.strings import read_i32_be
from mypy_extensions import i64

from headrace.runtime.tls_handshake import connect_tls
from headrace.runtime.tls_stream import TlsStream

_PREFIX: Final = Struct(">i4si")
_LENGTH_BYTES: Final = 4
_CORRELATION_ID_END: Final = 8
_SMALL_READ_BYTES: Final = 32 * 1024
_LARGE_READ_BYTES: Final = 1024 * 1024
_FRAME_BYTES_MAX: Final = 1 << 30
_DECRYPTED: Final = memoryview(bytearray(_LARGE_READ_BYTES))
"""Shared by all links: one thread uses it, and leaves nothing in it."""
_LOG: Final = logging.getLogger(__name__)


@final
class SocketLink:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._correlation_id = 0
        self._in_flight: deque[tuple[int, Callable[[bytes | None], None]]] = deque()
        self._listeners: list[Callable[[], None]] = []
        self._unsent = b""
        self._input = b""
        """The start of a frame whose length has not arrived completely."""
        self._chunks: list[bytes] = []
        self._missing: i64 = 0
        """How many bytes of the frame in `_chunks` have not arrived yet."""
        self._stream: TlsStream | None = None
        self.is_open = True
        self.is_lost = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, frame: bytes, on_response: Callable[[bytes | None], None]) -> None:
        if not self.is_open:
            self._loop.call_soon(on_response, None)
            return
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._in_flight.append((correlation_id, on_response))
        head = _PREFIX.pack(len(frame), frame[:4], correlation_id)
        data = head + frame[_CORRELATION_ID_END:]
        if self._has_output():
            self._unsent += data
            return
        self._unsent = data
        self._push()
        if self._has_output() and self.is_open:
            self._loop.add_writer(self._sock.fileno(), self._writable)

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt the link, before its first request. Raises OSError if the handshake fails."""
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        try:
            self._stream = await connect_tls(self._sock, context, host)
        except BaseException:
            self.close()
            raise
        if self.is_open:
            self._loop.add_reader(fd, self._readable)

    def _has_output(self) -> bool:
        stream = self._stream
        return bool(self._unsent) or (stream is not None and stream.unsent > 0)

    def is_ended(self) -> bool:
        if not self.is_open:
            return self.is_lost
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            return isinstance(error, ConnectionError)

    def on_close(self, callback: Callable[[], None]) -> None:
        if self.is_open:
            self._listeners.append(callback)
        else:
            self._loop.call_soon(callback)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        # A new socket can get the same descriptor immediately. So remove it from the loop first.
        self._loop.call_soon(self._sock.close)
        self._unsent = self._input = b""
        self._chunks.clear()
        requested, listeners = list(self._in_flight), self._listeners
        self._in_flight.clear()
        self._listeners = []
        for _, on_response in requested:
            self._loop.call_soon(on_response, None)
        for callback in listeners:
            self._loop.call_soon(callback)

    def _push(self) -> None:
        try:
            sent = self._send_some()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        self._unsent = self._unsent[sent:]

    def _send_some(self) -> int:
        stream = self._stream
        if stream is None:
            return self._sock.send(self._unsent)
        if stream.unsent > 0:
            stream.flush()
        sent = stream.write(memoryview(self._unsent))
        stream.flush_quietly()
        return sent

    def _fail(self, error: OSError) -> None:
        """Close after an error of the socket. A timeout is not a loss: the peer sent nothing."""
        self.is_lost = isinstance(error, ConnectionError)
        self.close()

    def _writable(self) -> None:
        self._push()
        if self.is_open and not self._has_output():
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        self._read()
        stream = self._stream
        while self.is_open and stream is not None and stream.pending > 0:
            self._read()

    def _read(self) -> None:
        size: i64 = self._missing
        if size < _SMALL_READ_BYTES:
            size = _SMALL_READ_BYTES
        elif size > _LARGE_READ_BYTES:
            size = _LARGE_READ_BYTES
        try:
            stream = self._stream
            if stream is None:
                data = self._sock.recv(size)
            else:
                size = stream.receive_into(_DECRYPTED[:size])
                data = bytes(_DECRYPTED[:size])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        if not data:
            self.is_lost = True
            self.close()
            return
        if self._missing > len(data):
            self._chunks.append(data)
            self._missing -= len(data)
            return
        self._split_frames(data)

    def _split_frames(self, data: bytes) -> None:
        """Split received bytes into frames, and pass each to its request."""
        at: i64 = 0
        if self._missing > 0:
            at = self._missing
            self._missing = 0
            self._chunks.append(data if at == len(data) else data[:at])
            whole = b"".join(self._chunks)
            self._chunks.clear()
            self._handle_response(whole)
        elif self._input:
            data = self._input + data
            self._input = b""
        end: i64 = len(data)
        while self.is_open and end - at >= _LENGTH_BYTES:
            size: i64 = i64(read_i32_be(data, at))
            if not _LENGTH_BYTES <= size <= _FRAME_BYTES_MAX:
                _LOG.warning(
                    "invalid response size, connection to broker closed: peer=%s bytes=%d",
                    self._peer(),
                    size,
                )
                self.close()
                return
            at += _LENGTH_BYTES
            if size > end - at:
                self._chunks.append(data[at:])
                self._missing = size - (end - at)
                return
            self._handle_response(data[at : at + size])
            at += size
        if self.is_open:
            self._input = data[at:] if at < end else b""

    def _peer(self) -> str:
        """The address of the other broker, for log lines."""
        try:
            address = self._sock.getpeername()
        except OSError:  # The peer has already reset the connection.
            return "unknown"
        return f"{address[0]}:{address[1]}"

    def _handle_response(self, frame: bytes) -> None:
        if not self._in_flight or self._in_flight[0][0] != read_i32_be(frame, 0):
            _LOG.warning("unexpected response, connection to broker closed: peer=%s", self._peer())
            self.close()
            return
        _, on_response = self._in_flight.popleft()
        try:
            on_response(frame)
        except Exception:  # noqa: BLE001 (a bug of ours costs the link that met it)
            _LOG.exception(
                "response handling failed, connection to broker closed: peer=%s", self._peer()
            )
            self.close()
