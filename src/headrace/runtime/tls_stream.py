"""The TLS records of one connection, over a socket that does not block.  # HOT

The handshake is done elsewhere. Records are decrypted and encrypted in memory, so that the caller
decides how many of them one loop iteration handles. OpenSSL, reading from the socket, would
continue as long as a peer sends records without data, such as key updates.

1. A call reads at most READS_MAX times from the socket.
2. A peer that sends more than IDLE_RECORDS_MAX records without data is rejected.
3. `pending` is not 0 if decrypted or received bytes wait here, where epoll does not see them.
4. `unsent` is the number of encrypted bytes that wait for `flush`.
"""

import errno
import socket
import ssl
from contextlib import suppress
from typing import Any, Final, final

from mypy_extensions import i64

RECORD_BYTES_MAX: Final = 16384
CHUNK_BYTES: Final = 256 * 1024
"""How much one call of `write` encrypts. To wake up the reader costs more than the encryption of
64 KB, so a long response is sent in larger chunks.
"""
BUFFER_BYTES: Final = 64 * 1024
"""A buffer of OpenSSL never shrinks: each connection keeps this much, also if it is idle."""
READS_MAX: Final = 4
IDLE_RECORDS_MAX: Final = 100
_HEADER_BYTES: Final = 5
_CIPHERTEXT: Final = memoryview(bytearray(BUFFER_BYTES))
"""Shared by all connections: one thread uses it, and leaves nothing in it."""


@final
class TlsStream:
    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        self._sock = sock
        self._tls: Any = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._held = b""
        """The first bytes of a record's header."""
        self._skipped: i64 = 0
        """How many bytes of the current record are still to come."""
        self._idle: i64 = 0
        self._is_ended = False
        self._out: list[memoryview] = []
        """Encrypted bytes that are no longer in OpenSSL's buffer."""
        self._out_bytes: i64 = 0
        self.is_blocked = False
        """Whether the socket did not accept everything at the last flush."""
        rest = incoming.read()
        self.pending: i64 = len(rest)
        self.unsent: i64 = 0
        if rest:
            # The client's first request arrived with the end of its handshake.
            self._feed(memoryview(rest), len(rest))

    def receive_into(self, view: memoryview) -> i64:
        """Decrypt into the view; 0 if the peer has ended the connection."""
        room: i64 = len(view)
        filled: i64 = 0
        reads: i64 = 0
        is_drained = False
        while True:
            filled = self._decrypt(view, filled, room)
            if filled == room:
                self.pending = self._tls.pending() + self._incoming.pending
                break
            self.pending = 0
            if self._idle > IDLE_RECORDS_MAX:
                raise OSError(errno.EPROTO, "too many TLS records without data")
            is_small = filled > 0 and room - filled < BUFFER_BYTES
            if self._is_ended or is_small or is_drained or reads == READS_MAX:
                break
            expected: i64 = BUFFER_BYTES - len(self._held)
            size: i64 = self._receive()
            if size == 0:
                break
            is_drained = size < expected
            reads += 1
        if self._outgoing.pending > 0:
            self.flush_quietly()
        if filled == 0 and not self._is_ended:
            raise BlockingIOError(errno.EAGAIN, "no complete TLS record")
        return filled

    def _decrypt(self, view: memoryview, filled: i64, room: i64) -> i64:
        """Decrypt the records at hand, and return how far the view is filled."""
        while filled < room and not self._is_ended:
            # Without this check, each request would cost an exception.
            if self._incoming.pending == 0 and self._tls.pending() == 0:
                break
            try:
                size: i64 = self._tls.read(RECORD_BYTES_MAX, view[filled:])
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                self._is_ended = True
                break
            except ssl.SSLError as error:
                self.flush_quietly()
                reason = (error.reason or str(error)).replace("_", " ").lower()
                raise OSError(errno.EPROTO, f"invalid TLS record: {reason}") from None
            if size == 0:
                self._is_ended = True
            elif self._idle > 0:
                self._idle -= 1
            filled += size
        return filled

    def _receive(self) -> i64:
        """Read from the socket once; 0 if nothing has arrived, or the peer has ended."""
        held: i64 = len(self._held)
        if held > 0:
            _CIPHERTEXT[:held] = self._held
        try:
            size: i64 = self._sock.recv_into(_CIPHERTEXT[held:])
        except BlockingIOError:
            return 0
        if size == 0:
            self._is_ended = True
            return 0
        self._feed(_CIPHERTEXT, size + held)
        return size

    def _feed(self, data: memoryview, size: i64) -> None:
        """Hand received bytes to OpenSSL, up to the last complete header, and count records."""
        at: i64 = self._skipped
        while at + _HEADER_BYTES <= size:
            self._idle += 1
            at += _HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
        if at < size:
            self._held = bytes(data[at:size])
            self._skipped = 0
            size = at
        else:
            self._held = b""
            self._skipped = at - size
        self._incoming.write(data[:size])

    def write(self, data: memoryview) -> i64:
        """Encrypt a first part of the data, and return its size; `flush` sends it."""
        size: i64 = len(data)
        if size > CHUNK_BYTES:
            size = CHUNK_BYTES
        at: i64 = 0
        while at < size:
            end: i64 = at + RECORD_BYTES_MAX
            if end > size:
                end = size
            at += self._tls.write(data[at:end])
            if self._outgoing.pending >= BUFFER_BYTES:
                self._take()
        self.unsent = self._outgoing.pending + self._out_bytes
        return size

    def _take(self) -> None:
        encrypted: bytes = self._outgoing.read()
        self._out.append(memoryview(encrypted))
        self._out_bytes += len(encrypted)

    def flush(self) -> None:
        """Send what is encrypted; raises BlockingIOError if the socket does not accept all."""
        if self._outgoing.pending > 0:
            self._take()
        self.unsent = self._out_bytes
        if self.unsent == 0:
            self.is_blocked = False
            return
        self.is_blocked = True
        out = self._out
        sent: i64 = self._sock.send(out[0]) if len(out) == 1 else self._sock.sendmsg(out)
        self._out_bytes -= sent
        self.unsent = self._out_bytes
        if self.unsent > 0:
            self._discard(sent)
            raise BlockingIOError(errno.EAGAIN, "the socket is full")
        out.clear()
        self.is_blocked = False

    def _discard(self, sent: i64) -> None:
        """Forget a first part of the encrypted bytes."""
        out = self._out
        while sent >= len(out[0]):
            sent -= len(out[0])
            out.pop(0)
        out[0] = out[0][sent:]

    def end(self) -> None:
        """Tell the peer that no more data follows, if the socket accepts it."""
        if self.is_blocked:
            return
        # unwrap raises while the peer has not ended the connection. Do not wait for that.
        with suppress(OSError):
            self._tls.unwrap()
        self.flush_quietly()

    def flush_quietly(self) -> None:
        """Send what the socket accepts. The rest waits for the next call."""
        try:  # noqa: SIM105 (a context manager takes longer, and each response comes here)
            self.flush()
        except OSError:
            pass  # A lost connection is reported by the next read.
