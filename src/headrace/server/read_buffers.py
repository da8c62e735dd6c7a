"""The buffers into which requests are read.  # HOT

All connections share one scratch buffer for small requests, and a few spare buffers for large ones.
"""

from typing import Final, final

from mypy_extensions import i64

SCRATCH_BYTES: Final = 256 * 1024
SMALL_READ_BYTES: Final = 64 * 1024
SPARE_BUFFERS_MAX: Final = 4
SPARE_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024


@final
class LargeRequest:
    """A request that is larger than one read. Its buffer grows with the bytes that arrive."""

    def __init__(self, size: i64, received: i64) -> None:
        self.size: i64 = size
        self.received: i64 = received
        self.received_at_progress: i64 = received
        """The number of received bytes at `Connection.progressed_at`."""
        self.buffer = bytearray()
        self.held: i64 = 0
        """The bytes of the buffer in the memory budget."""


@final
class ReadBuffers:
    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._spares: list[bytearray] = []

    def scratch_view(self, is_short_of_memory: bool) -> memoryview:
        """The buffer for the next read."""
        return self.scratch[:SMALL_READ_BYTES] if is_short_of_memory else self.scratch

    def spare(self, size: i64, received: i64) -> bytearray:
        """A buffer for a request of `size` bytes, of which `received` bytes have arrived."""
        if self._spares and len(self._spares[-1]) >= received:
            return self._spares.pop()
        start: i64 = size if size < SMALL_READ_BYTES else SMALL_READ_BYTES
        return bytearray(start if start > received else received)

    def keep(self, buffer: bytearray) -> None:
        """Reuse a buffer for a later request."""
        if len(self._spares) < SPARE_BUFFERS_MAX and len(buffer) <= SPARE_BUFFER_BYTES_MAX:
            self._spares.append(buffer)
