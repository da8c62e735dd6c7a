# HOT
"""Iterates over the batches of a log file, for recovery, checks and rebuilds.

1. Memory is bounded, whatever length a torn header has: the checksum of a large batch is computed
   piece by piece.
2. The walk stops at the first invalid batch, and sets `error`. The caller interprets it: after a
   crash, it is the end of the log.
"""

from typing import Final, final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from headrace.env.files import Files
from headrace.model.errors import ApiError
from headrace.record.batch import (
    CODEC_MASK,
    CODEC_MAX,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    OFFSET_MAX,
    Batch,
    checksum,
    crc32c,
    read_batch,
)

CHUNK_BYTES: Final = 1 << 20
_READ_AHEAD_BYTES: Final = 4 << 20
_IN_MEMORY_BYTES_MAX: Final = 8 << 20
"""A walk that verifies checksums does not read larger batches into memory."""


@final
class BatchWalk:
    __slots__ = (
        "_chunk",
        "_chunk_position",
        "_fd",
        "_files",
        "_last_start",
        "_verifies",
        "base_offset",
        "end",
        "error",
        "last_offset",
        "leader_epoch",
        "max_timestamp",
        "position",
        "producer_id",
    )

    def __init__(self, files: Files, fd: int, position: i64, end: i64, verify: bool) -> None:
        """Walk from `position` to `end`. With `verify`, verify the checksum of each batch."""
        self._files: Files = files
        self._fd: int = fd
        self._verifies: bool = verify
        self._chunk: bytes = b""
        self._chunk_position: i64 = position
        self.position: i64 = position
        """The position of the next batch; at the end of the walk, the size of the valid part."""
        self.end: i64 = end
        self.error: str = ""
        """Why the walk ended before `end`; empty if it did not."""
        self._last_start: i64 = 0
        """Where the batch that `step` read starts in the chunk."""
        # Fields of the batch that `step` read.
        self.base_offset: i64 = -1
        self.last_offset: i64 = -1
        self.leader_epoch: i64 = -1
        self.max_timestamp: i64 = -1
        self.producer_id: i64 = -1

    def step(self) -> bool:
        """Read the next batch into the fields of this object, if it is valid and in the chunk.

        If this returns False, call `next`, which returns or rejects the batch. After a crash there
        can be ten million batches, so no Batch object is created here.
        """
        position = self.position
        at = position - self._chunk_position
        have: i64 = len(self._chunk)
        if at + HEADER_SIZE > have:
            return False
        frame = self._chunk
        size = i64(read_i32_be(frame, at + 8)) + LENGTH_OVERHEAD
        if size < HEADER_SIZE or at + size > have or position + size > self.end:
            return False
        delta = i64(read_i32_be(frame, at + 23))
        count = i64(read_i32_be(frame, at + 57))
        base_offset = read_i64_be(frame, at)
        if (
            frame[at + 16] != 2
            or i64(read_i16_be(frame, at + 21)) & CODEC_MASK > CODEC_MAX
            or count < 0
            or count > delta + 1
            or base_offset < 0
            or base_offset > OFFSET_MAX
            or i64(read_i32_be(frame, at + 17)) & 0xFFFFFFFF != checksum(frame, at + 21, at + size)
        ):
            return False
        self.base_offset = base_offset
        self.last_offset = base_offset + delta
        self.leader_epoch = i64(read_i32_be(frame, at + 12))
        self.max_timestamp = read_i64_be(frame, at + 35)
        self.producer_id = read_i64_be(frame, at + 43)
        self._last_start = at
        self.position = position + size
        return True

    def copy_fields(self, batch: Batch) -> None:
        """Set the fields of this object to those of a batch that `next` returned."""
        self.base_offset = batch.base_offset
        self.last_offset = batch.base_offset + batch.last_offset_delta
        self.leader_epoch = batch.leader_epoch
        self.max_timestamp = batch.max_timestamp
        self.producer_id = batch.producer_id

    def last_batch(self) -> Batch:
        """The batch that `step` read."""
        return Batch(self._chunk, self._last_start, self.position - self._chunk_position)

    def next(self) -> Batch | None:
        """Return the batch at `position`, and advance. None at the end and for an invalid batch.

        If the batch is large, `frame` has only its header, and `records` reads the rest.
        """
        position = self.position
        left = self.end - position
        if left == 0:
            return None
        if left < HEADER_SIZE:
            return self._stop(f"{left} bytes are less than a header")
        at = position - self._chunk_position
        if at + HEADER_SIZE > len(self._chunk):
            at = self._fill(position, CHUNK_BYTES)
            if at + HEADER_SIZE > len(self._chunk):
                return self._stop("the file became shorter during the walk")
        size = i64(read_i32_be(self._chunk, at + 8)) + LENGTH_OVERHEAD
        if size < HEADER_SIZE or size > left:
            return self._stop(f"a batch has {size} bytes, but only {left} are left")
        if self._verifies:
            if size > _IN_MEMORY_BYTES_MAX:
                return self._next_piecewise(at, size)
            if at + size > len(self._chunk):
                at = self._fill(position, size if size > CHUNK_BYTES else CHUNK_BYTES)
            try:
                batch = read_batch(self._chunk, at, at + size, False)
            except ApiError as error:
                return self._stop(error.message)
        elif self._chunk[at + 16] != 2:
            return self._stop("the batch does not have magic 2")
        else:
            batch = Batch(self._chunk, at, at + size)
        self.position = position + size
        return batch

    def records(self, batch: Batch) -> bytes:
        """The complete bytes of the batch that `next` returned."""
        size = batch.end - batch.start
        if batch.end <= len(batch.frame):
            return batch.frame[batch.start : batch.end]
        return self._files.pread(self._fd, size, self.position - size)

    def _fill(self, position: i64, size: i64) -> i64:
        """Read the chunk from a position on. Returns 0, where the batch starts in the chunk."""
        left = self.end - position
        self._files.read_ahead(self._fd, position, _READ_AHEAD_BYTES)
        self._chunk = self._files.pread(self._fd, size if size < left else left, position)
        self._chunk_position = position
        return 0

    def _stop(self, error: str) -> Batch | None:
        self.error = error
        return None

    def _next_piecewise(self, at: i64, size: i64) -> Batch | None:
        """Verify the checksum of a large batch piece by piece. Returns only its header."""
        position = self.position
        header = self._chunk[at : at + HEADER_SIZE]
        crc = crc32c(header[21:])
        done: i64 = HEADER_SIZE
        while done < size:
            piece = size - done if size - done < CHUNK_BYTES else CHUNK_BYTES
            crc = crc32c(self._files.pread(self._fd, piece, position + done), crc)
            done += piece
        if header[16] != 2 or i64(read_i32_be(header, 17)) & 0xFFFFFFFF != crc:
            return self._stop("the checksum of a large batch is wrong")
        self.position = position + size
        return Batch(header, 0, size)
