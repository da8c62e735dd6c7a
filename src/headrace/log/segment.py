# HOT
"""One segment: a log file, its indexes, and facts about it that need no open file.

Opens its file and indexes at their first use, and can release them. The indexes of a sealed segment
are used only if their checksums match those of the checkpoint; otherwise they are rebuilt from the
log.

1. The first `size` bytes of the file are complete batches; bytes beyond are never read.
2. Indexes that are not on disk yet stay in memory.
"""

import logging
from typing import Final, final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from headrace.env.files import Files
from headrace.log.file import LogFile, NotCached, OpenSegments
from headrace.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from headrace.log.scan import Walk
from headrace.log.transactions import (
    ENTRY_SIZE,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import HEADER_SIZE, LENGTH_OVERHEAD, NO_TIMESTAMP, crc32c

_LOG: Final = logging.getLogger(__name__)

SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex")
"""The suffixes of a segment's files, the log first."""
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
_DAY_MS: Final = 86_400_000
_SEARCH_BYTES: Final = 8192
"""The size of one read in a search: usually up to the next index entry."""


@final
class Segment:
    __slots__ = (
        "_aborted",
        "_cache",
        "_files",
        "_index",
        "_marked_aborted",
        "_marked_index",
        "_marked_largest",
        "_marked_largest_offset",
        "_marked_since_index",
        "_marked_size",
        "_marked_time_index",
        "_time_index",
        "aborted_crc",
        "aborted_size",
        "appended_ms",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "file",
        "first_timestamp",
        "index_crc",
        "index_size",
        "indexes_on_disk",
        "is_listed",
        "is_sealed",
        "largest_timestamp",
        "largest_timestamp_offset",
        "size",
        "stem",
        "suffix",
        "synced_entry",
        "time_index_crc",
        "time_index_size",
        "used",
    )

    def __init__(
        self, files: Files, cache: OpenSegments, directory: str, base_offset: int, now_ms: int
    ) -> None:
        self._files: Files = files
        self._cache: OpenSegments = cache
        self.stem: str = f"{directory}/{base_offset:020d}"
        self.suffix: str = ""
        """A suffix of its file names while they replace others (`.swap`).

        In the meantime a worker removes it from the names, so each file exists with or without it.
        """
        self.base_offset: i64 = base_offset
        self.size: i64 = 0
        self.file: LogFile | None = None
        self.used: bool = False
        self.is_listed: bool = False
        """Whether the cache of open segments contains it."""
        self.is_sealed: bool = False
        self.synced_entry: bool = False
        """Whether the file's name is known to survive a power failure."""
        self.created_ms: i64 = now_ms
        self.appended_ms: i64 = now_ms
        self.first_timestamp: i64 = NO_TIMESTAMP
        """The start of segment.ms: the largest timestamp of the first batch."""
        self.largest_timestamp: i64 = NO_TIMESTAMP
        self.largest_timestamp_offset: i64 = base_offset
        """The last offset of the batch with the largest timestamp."""
        self.bytes_since_index: i64 = 0
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.indexes_on_disk: bool = False
        self.index_size: i64 = 0
        self.index_crc: i64 = 0
        self.time_index_size: i64 = 0
        self.time_index_crc: i64 = 0
        self.aborted_size: i64 = 0
        self.aborted_crc: i64 = 0
        self._marked_size: i64 = 0
        self._marked_index: i64 = 0
        self._marked_time_index: i64 = 0
        self._marked_since_index: i64 = 0
        self._marked_largest: i64 = NO_TIMESTAMP
        self._marked_largest_offset: i64 = base_offset
        self._marked_aborted: i64 = 0

    def path(self, kind: str) -> str:
        """The path of one of its files: `.log` or an index."""
        return self.stem + kind + self.suffix

    def paths(self) -> list[str]:
        """All names that its files can have; some do not exist."""
        names = [self.stem + kind for kind in SUFFIXES]
        return names + [name + self.suffix for name in names] if self.suffix else names

    def is_open(self) -> bool:
        return self.file is not None or (self._index is not None and self.indexes_on_disk)

    def forget(self) -> None:
        """Release everything that can be opened again."""
        self.file = None
        if self.indexes_on_disk:
            self._index = None
            self._time_index = None
            self._aborted = None

    def open(self) -> LogFile:
        file = self.file
        if file is None:
            path = self.path(".log")
            try:
                fd = self._files.open(path, write=not self.is_sealed)
            except FileNotFoundError:
                if not self.suffix:
                    raise
                path = self.stem + ".log"
                fd = self._files.open(path)
            file = LogFile(self._files, path, fd)
            self.file = file
            self._cache.opened(self)
        self.used = True
        return file

    def create(self) -> None:
        """Create the file of a new segment; truncate an abandoned one of that name."""
        path = self.path(".log")
        file = LogFile(self._files, path, self._files.open(path, write=True, create=True))
        if self._files.size(file.fd):
            self._files.truncate(file.fd, 0)
        self.begin_with(file)

    def begin_with(self, file: LogFile) -> None:
        """Use this empty file for a new segment."""
        self.file = file
        self.used = True
        self.start_indexes()
        self._cache.opened(self)

    def start_indexes(self) -> None:
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        self._aborted = []
        self.indexes_on_disk = False
        self.bytes_since_index = 0
        self.first_timestamp = NO_TIMESTAMP
        self.largest_timestamp = NO_TIMESTAMP
        self.largest_timestamp_offset = self.base_offset

    def begin(self, timestamp: i64, now_ms: i64) -> None:
        """Record the timestamp of the first batch, unless it is far in the future.

        A wrong clock must not keep the segment open forever: then the file's age applies.
        """
        self.first_timestamp = timestamp if timestamp < now_ms + _DAY_MS else NO_TIMESTAMP

    def note(self, position: i64, size: i64, last_offset: i64, timestamp: i64, gap: i64) -> None:
        """Index the next batch: add an entry every `gap` bytes."""
        if timestamp > self.largest_timestamp:
            self.largest_timestamp = timestamp
            self.largest_timestamp_offset = last_offset
        if self.bytes_since_index > gap:
            self.indexes_on_disk = False
            base_offset = self.base_offset
            self.index().append(last_offset - base_offset, position)
            self.time_index().maybe_append(
                self.largest_timestamp, self.largest_timestamp_offset - base_offset
            )
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def mark(self) -> None:
        """Save the state for `take_back`."""
        self._marked_size = self.size
        self._marked_index = len(self.index().offsets)
        self._marked_time_index = len(self.time_index().offsets)
        self._marked_since_index = self.bytes_since_index
        self._marked_largest = self.largest_timestamp
        self._marked_largest_offset = self.largest_timestamp_offset
        if self._aborted is not None:
            self._marked_aborted = len(self._aborted)
        else:
            self._marked_aborted = self.aborted_size // ENTRY_SIZE

    def take_back(self) -> None:
        """Remove the batches since the mark."""
        self.size = self._marked_size
        self.index().cut(self._marked_index)
        self.time_index().cut(self._marked_time_index)
        self.bytes_since_index = self._marked_since_index
        self.largest_timestamp = self._marked_largest
        self.largest_timestamp_offset = self._marked_largest_offset
        if self._aborted is not None:
            del self._aborted[self._marked_aborted :]

    def index(self) -> OffsetIndex:
        index = self._index
        if index is None:
            data = self._load(".index", self.index_size, self.index_crc)
            index = OffsetIndex.from_bytes(data) if data is not None else self.reindex()
            self._index = index
            self._cache.opened(self)
        return index

    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            data = self._load(".timeindex", self.time_index_size, self.time_index_crc)
            if data is None:
                self.reindex()
                index = self._time_index
                assert index is not None
                return index
            index = TimeIndex.from_bytes(data)
            self._time_index = index
        return index

    def aborted(self) -> list[AbortedTransaction] | None:
        """The transactions aborted in this segment; None if their index is damaged."""
        found = self._aborted
        if found is None:
            if self.aborted_size == 0:
                found = []
            else:
                data = self._load(".txnindex", self.aborted_size, self.aborted_crc)
                if data is None:
                    return None
                found = decode_aborted(data)
            self._aborted = found
        return found

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Add a transaction. `aborted` must have loaded the earlier ones."""
        transactions = self.aborted()
        assert transactions is not None
        transactions.append(transaction)
        self.indexes_on_disk = False

    def set_aborted(self, transactions: list[AbortedTransaction]) -> None:
        self._aborted = transactions
        self.indexes_on_disk = False

    def _load(self, suffix: str, size: i64, crc: i64) -> bytes | None:
        path = self.stem + suffix
        names = [path, path + self.suffix] if self.suffix else [path]
        while names:
            try:
                data = self._files.read_file(names.pop())
            except FileNotFoundError:
                data = b""
            if len(data) == size and crc32c(data) == crc:
                return data
        _LOG.warning("index is missing or damaged, rebuilding it: file=%s", path)
        return None

    def reindex(self, gap: int = 4096) -> OffsetIndex:
        """Rebuild both indexes from the batch headers, unless the log file cannot be opened."""
        file = self.open()
        aborted = self._aborted
        first_timestamp = self.first_timestamp
        largest_timestamp = self.largest_timestamp
        largest_timestamp_offset = self.largest_timestamp_offset
        self.start_indexes()
        self._aborted = aborted
        try:
            self._note_all(file, gap)
        except OSError:
            # Incomplete indexes must not be used: the next use rebuilds them.
            self._index = None
            self._time_index = None
            self.largest_timestamp = largest_timestamp
            self.largest_timestamp_offset = largest_timestamp_offset
            raise
        finally:
            self.first_timestamp = first_timestamp
        if self.is_sealed:
            self.seal()
        index = self._index
        assert index is not None
        return index

    def _note_all(self, file: LogFile, gap: int) -> None:
        """Index all batches of the file."""
        walk = Walk(self._files, file.fd, 0, self.size, False)
        position: i64 = 0
        while True:
            batch = walk.next()
            if batch is None:
                break
            self.note(
                position, walk.position - position, batch.last_offset(), batch.max_timestamp, gap
            )
            position = walk.position
        if walk.error:
            _LOG.error(
                "log is damaged: segment=%s byte=%d error=%s", self.stem, walk.position, walk.error
            )

    def seal(self) -> None:
        """Mark the segment as complete: no batch follows."""
        self.is_sealed = True
        self.end_time_index()

    def end_time_index(self) -> None:
        """Add the largest timestamp to the time index, as Kafka does at roll and close."""
        time_index = self.time_index()
        length = len(time_index)
        time_index.maybe_append(
            self.largest_timestamp, self.largest_timestamp_offset - self.base_offset
        )
        if len(time_index) != length:
            self.indexes_on_disk = False

    def derived_files(self) -> list[tuple[str, bytes]]:
        """Paths and contents of the current index files; stores their checksums.

        The index of aborted transactions exists only if there are any.
        """
        index = self.index().to_bytes()
        time_index = self.time_index().to_bytes()
        self.index_size = len(index)
        self.index_crc = crc32c(index)
        self.time_index_size = len(time_index)
        self.time_index_crc = crc32c(time_index)
        found = [(self.path(".index"), index), (self.path(".timeindex"), time_index)]
        transactions = self._aborted
        if transactions:
            aborted = encode_aborted(transactions)
            self.aborted_size = len(aborted)
            self.aborted_crc = crc32c(aborted)
            found.append((self.path(".txnindex"), aborted))
        elif transactions is not None:
            self.aborted_size = 0
            self.aborted_crc = 0
        return found

    def has_room(self, index_bytes_max: i64) -> bool:
        """Whether both indexes have space for one more entry, and one for the last timestamp."""
        index = self._index
        time_index = self._time_index
        if index is None or time_index is None:
            return True
        return (
            len(index) < index_bytes_max // OFFSET_ENTRY_SIZE - 1
            and len(time_index) < index_bytes_max // TIME_ENTRY_SIZE - 1
        )

    def locate(self, offset: i64, limit: i64, wait: bool) -> tuple[i64, i64]:
        """Position and size of the first batch below `limit` that ends at or after an offset.

        (limit, 0) if none does. With `wait` false, raises NotCached instead of waiting for the
        disk.
        """
        if self._index is None and not wait and not self._is_index_cached():
            raise NotCached(self.open(), 0, 0, self.stem + ".index")
        found = self._search(offset, limit, wait)
        if found[0] < 0 and self.is_sealed:
            _LOG.warning("index does not match its log, rebuilding it: segment=%s", self.stem)
            self.reindex()
            found = self._search(offset, limit, wait)
        if found[0] < 0:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"The log is damaged between offsets {self.base_offset} and {offset}.",
            )
        return found

    def _search(self, offset: i64, limit: i64, wait: bool) -> tuple[i64, i64]:
        file = self.open()
        position = self.index().lookup(offset - self.base_offset)
        is_first = True
        while position < limit:
            size = limit - position if limit - position < _SEARCH_BYTES else _SEARCH_BYTES
            if wait:
                chunk = self._files.pread(file.fd, size, position)
            else:
                cached = self._files.pread_cached(file.fd, size, position)
                if cached is None:
                    raise NotCached(file, position, size, "")
                chunk = cached
            length: i64 = len(chunk)
            at: i64 = 0
            while at + HEADER_SIZE <= length:
                batch_size = i64(read_i32_be(chunk, at + 8)) + LENGTH_OVERHEAD
                base_offset = read_i64_be(chunk, at)
                if batch_size < HEADER_SIZE or position + at + batch_size > limit:
                    return -1, 0
                if is_first and position > 0 and base_offset > offset:
                    return -1, 0
                is_first = False
                if base_offset + i64(read_i32_be(chunk, at + 23)) >= offset:
                    return position + at, batch_size
                at += batch_size
            if at == 0:
                return -1, 0
            position += at
        return limit, 0

    def _is_index_cached(self) -> bool:
        """Whether the first page is cached: index files are read and written completely."""
        if self.index_size == 0:
            return True
        try:
            fd = self._files.open(self.stem + ".index")
        except FileNotFoundError:
            return True
        try:
            return self._files.pread_cached(fd, 1, 0) is not None
        finally:
            self._files.close(fd)
