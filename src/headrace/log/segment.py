# HOT
"""One segment: a log file, its indexes, and facts about it that need no open file.

Opens its file and indexes at their first use, and can release them. An index is loaded only if its
checksum is that of the checkpoint. Otherwise it is rebuilt from the log.

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
from headrace.log.index_file import NO_INDEX_FILE, IndexFile, index_file_of
from headrace.log.scan import BatchWalk
from headrace.log.segment_mark import SegmentMark
from headrace.log.transactions import (
    ENTRY_SIZE,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import HEADER_SIZE, LENGTH_OVERHEAD, NO_TIMESTAMP

_LOG: Final = logging.getLogger(__name__)

SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex")
"""The suffixes of a segment's files, the log first."""
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
"""The largest difference between an offset and the base offset of its segment."""
_DAY_MS: Final = 86_400_000
_SEARCH_BYTES: Final = 8192
"""The size of one read in a search. It usually extends to the next index entry."""


@final
class Segment:
    __slots__ = (
        "_aborted",
        "_files",
        "_index",
        "_mark",
        "_open_segments",
        "_time_index",
        "aborted_file",
        "appended_ms",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "file",
        "first_timestamp",
        "index_file",
        "indexes_on_disk",
        "is_name_synced",
        "is_recently_used",
        "is_sealed",
        "is_tracked",
        "largest_timestamp",
        "largest_timestamp_offset",
        "size",
        "stem",
        "suffix",
        "time_index_file",
    )

    def __init__(
        self,
        files: Files,
        open_segments: OpenSegments,
        directory: str,
        base_offset: int,
        now_ms: int,
    ) -> None:
        self._files: Files = files
        self._open_segments: OpenSegments = open_segments
        self.stem: str = f"{directory}/{base_offset:020d}"
        self.suffix: str = ""
        """The last suffix of its file names while they replace other files (`.swap`).

        A worker removes this suffix from the names, so each file exists with or without it.
        """
        self.base_offset: i64 = base_offset
        self.size: i64 = 0
        self.file: LogFile | None = None
        self.is_recently_used: bool = False
        """Whether it was used since `OpenSegments` last considered closing it."""
        self.is_tracked: bool = False
        """Whether `OpenSegments` contains it."""
        self.is_sealed: bool = False
        self.is_name_synced: bool = False
        """Whether the file's name is known to survive a power failure."""
        self.created_ms: i64 = now_ms
        self.appended_ms: i64 = now_ms
        self.first_timestamp: i64 = NO_TIMESTAMP
        """The largest timestamp of the first batch. segment.ms is measured from it."""
        self.largest_timestamp: i64 = NO_TIMESTAMP
        self.largest_timestamp_offset: i64 = base_offset
        """The last offset of the batch with the largest timestamp."""
        self.bytes_since_index: i64 = 0
        """The number of bytes after the batch of the last index entry."""
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.indexes_on_disk: bool = False
        """Whether the index files are up to date, so that the indexes can be loaded from them."""
        self.index_file: IndexFile = NO_INDEX_FILE
        self.time_index_file: IndexFile = NO_INDEX_FILE
        self.aborted_file: IndexFile = NO_INDEX_FILE
        self._mark: SegmentMark | None = None
        """The state that `restore_state` restores; None before the first use for appends."""

    def path(self, kind: str) -> str:
        """The path of one of its files. `kind` is one of `SUFFIXES`."""
        return self.stem + kind + self.suffix

    def paths(self) -> list[str]:
        """All paths that its files can have; some do not exist."""
        paths = [self.stem + kind for kind in SUFFIXES]
        return paths + [path + self.suffix for path in paths] if self.suffix else paths

    def is_open(self) -> bool:
        """Whether `close` would release something."""
        return self.file is not None or (self._index is not None and self.indexes_on_disk)

    def close(self) -> None:
        """Release the file, and the indexes that can be loaded again."""
        self.file = None
        if self.indexes_on_disk:
            self._index = None
            self._time_index = None
            self._aborted = None

    def open(self) -> LogFile:
        """Return the open file. Opens it if necessary."""
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
            self._open_segments.add(self)
        self.is_recently_used = True
        return file

    def create(self) -> None:
        """Create the file of a new segment. Truncate it if it exists after a failed attempt."""
        path = self.path(".log")
        file = LogFile(self._files, path, self._files.open(path, write=True, create=True))
        if self._files.size(file.fd):
            self._files.truncate(file.fd, 0)
        self.use_new_file(file)

    def use_new_file(self, file: LogFile) -> None:
        """Use this empty file for a new segment."""
        self.file = file
        self.is_recently_used = True
        self.start_indexes()
        self._open_segments.add(self)

    def start_indexes(self) -> None:
        """Start with empty indexes."""
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        self._aborted = []
        self.indexes_on_disk = False
        self.bytes_since_index = 0
        self.first_timestamp = NO_TIMESTAMP
        self.largest_timestamp = NO_TIMESTAMP
        self.largest_timestamp_offset = self.base_offset

    def set_first_timestamp(self, timestamp: i64, now_ms: i64) -> None:
        """Store the timestamp of the first batch, unless it is more than a day in the future.

        Such a timestamp would keep the segment active forever. The file's age applies instead.
        """
        self.first_timestamp = timestamp if timestamp < now_ms + _DAY_MS else NO_TIMESTAMP

    def index_batch(
        self, position: i64, size: i64, last_offset: i64, timestamp: i64, index_interval: i64
    ) -> None:
        """Process the next batch. Adds an entry to both indexes after `index_interval` bytes."""
        if timestamp > self.largest_timestamp:
            self.largest_timestamp = timestamp
            self.largest_timestamp_offset = last_offset
        if self.bytes_since_index > index_interval:
            self.indexes_on_disk = False
            base_offset = self.base_offset
            self.index().append(last_offset - base_offset, position)
            self.time_index().maybe_append(
                self.largest_timestamp, self.largest_timestamp_offset - base_offset
            )
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def save_state(self) -> None:
        """Save the state for `restore_state`. All batches up to here are in the file."""
        mark = self._mark
        if mark is None:
            mark = SegmentMark()
        mark.size = self.size
        mark.index_length = len(self.index().offsets)
        mark.time_index_length = len(self.time_index().offsets)
        mark.bytes_since_index = self.bytes_since_index
        mark.largest_timestamp = self.largest_timestamp
        mark.largest_timestamp_offset = self.largest_timestamp_offset
        if self._aborted is not None:
            mark.aborted_count = len(self._aborted)
        else:
            mark.aborted_count = self.aborted_file.size // ENTRY_SIZE
        self._mark = mark

    def restore_state(self) -> None:
        """Remove the batches since the last call of `save_state`, but not from the file."""
        mark = self._mark
        if mark is None:
            return  # No batch was staged in this segment.
        self.size = mark.size
        self.index().cut(mark.index_length)
        self.time_index().cut(mark.time_index_length)
        self.bytes_since_index = mark.bytes_since_index
        self.largest_timestamp = mark.largest_timestamp
        self.largest_timestamp_offset = mark.largest_timestamp_offset
        if self._aborted is not None:
            del self._aborted[mark.aborted_count :]

    def index(self) -> OffsetIndex:
        """The offset index. Loads or rebuilds it if necessary."""
        index = self._index
        if index is None:
            data = self._load(".index", self.index_file)
            index = OffsetIndex.from_bytes(data) if data is not None else self.reindex()
            self._index = index
            self._open_segments.add(self)
        return index

    def time_index(self) -> TimeIndex:
        """The time index. Loads or rebuilds it if necessary."""
        index = self._time_index
        if index is None:
            data = self._load(".timeindex", self.time_index_file)
            if data is None:
                self.reindex()
                index = self._time_index
                assert index is not None
                return index
            index = TimeIndex.from_bytes(data)
            self._time_index = index
        return index

    def aborted(self) -> list[AbortedTransaction] | None:
        """The transactions with an abort marker in this segment; None if their index is damaged."""
        transactions = self._aborted
        if transactions is None:
            if self.aborted_file.size == 0:
                transactions = []
            else:
                data = self._load(".txnindex", self.aborted_file)
                if data is None:
                    return None
                transactions = decode_aborted(data)
            self._aborted = transactions
        return transactions

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Add an aborted transaction. The earlier ones must be in memory."""
        transactions = self.aborted()
        assert transactions is not None
        transactions.append(transaction)
        self.indexes_on_disk = False

    def replace_aborted(self, transactions: list[AbortedTransaction]) -> None:
        self._aborted = transactions
        self.indexes_on_disk = False

    def _load(self, kind: str, index_file: IndexFile) -> bytes | None:
        """Read an index file. None if its content is not that of the checkpoint."""
        path = self.stem + kind
        paths = [path, path + self.suffix] if self.suffix else [path]
        while paths:
            try:
                data = self._files.read_file(paths.pop())
            except FileNotFoundError:
                data = b""
            if index_file.holds(data):
                return data
        _LOG.warning("index is missing or damaged, rebuilding it: file=%s", path)
        return None

    def reindex(self, index_interval: int = 4096) -> OffsetIndex:
        """Rebuild the offset index and the time index from the batch headers."""
        file = self.open()
        aborted = self._aborted
        first_timestamp = self.first_timestamp
        largest_timestamp = self.largest_timestamp
        largest_timestamp_offset = self.largest_timestamp_offset
        self.start_indexes()
        self._aborted = aborted
        try:
            self._index_all(file, index_interval)
        except (OSError, MemoryError):
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

    def _index_all(self, file: LogFile, index_interval: int) -> None:
        """Index all batches of the file."""
        walk = BatchWalk(self._files, file.fd, 0, self.size, False)
        position: i64 = 0
        while True:
            batch = walk.next()
            if batch is None:
                break
            self.index_batch(
                position,
                walk.position - position,
                batch.last_offset(),
                batch.max_timestamp,
                index_interval,
            )
            position = walk.position
        if walk.error:
            _LOG.error(
                "log is damaged: segment=%s byte=%d error=%s", self.stem, walk.position, walk.error
            )

    def seal(self) -> None:
        """Complete the segment: no batch follows."""
        self.is_sealed = True
        self.add_last_time_entry()

    def add_last_time_entry(self) -> None:
        """Add the largest timestamp to the time index, as Kafka does at roll and close."""
        time_index = self.time_index()
        length = len(time_index)
        time_index.maybe_append(
            self.largest_timestamp, self.largest_timestamp_offset - self.base_offset
        )
        if len(time_index) != length:
            self.indexes_on_disk = False

    def derived_files(self) -> list[tuple[str, bytes]]:
        """Encode the indexes: returns paths and contents of their files, and stores the checksums.

        `.txnindex` exists only if a transaction was aborted.
        """
        index = self.index().to_bytes()
        time_index = self.time_index().to_bytes()
        self.index_file = index_file_of(index)
        self.time_index_file = index_file_of(time_index)
        contents = [(self.path(".index"), index), (self.path(".timeindex"), time_index)]
        transactions = self._aborted
        if transactions:
            aborted = encode_aborted(transactions)
            self.aborted_file = index_file_of(aborted)
            contents.append((self.path(".txnindex"), aborted))
        elif transactions is not None:
            self.aborted_file = NO_INDEX_FILE
        return contents

    def has_space_for_entry(self, index_bytes_max: i64) -> bool:
        """Whether both indexes have space for one more entry, and for one when it is sealed."""
        index = self._index
        time_index = self._time_index
        if index is None or time_index is None:
            return True
        return (
            len(index) < index_bytes_max // OFFSET_ENTRY_SIZE - 1
            and len(time_index) < index_bytes_max // TIME_ENTRY_SIZE - 1
        )

    def locate(self, offset: i64, limit: i64, wait: bool) -> tuple[i64, i64]:
        """Return position and size of the first batch whose last offset is not below `offset`.

        Searches up to the position `limit`. Returns (limit, 0) if no such batch is below it. With
        `wait` false, raises NotCached instead of waiting for the disk.
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
        """As `locate`; (-1, 0) if the index points to no batch, or the file is damaged."""
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
        """Whether the page cache has the first page of the index file, and so probably all of it.

        Index files are read and written as a whole.
        """
        if self.index_file.size == 0:
            return True
        try:
            fd = self._files.open(self.stem + ".index")
        except FileNotFoundError:
            return True
        try:
            return self._files.pread_cached(fd, 1, 0) is not None
        finally:
            self._files.close(fd)
