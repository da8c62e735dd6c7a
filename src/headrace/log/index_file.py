# HOT
"""The size and the checksum of an index file, by which a loaded index is accepted."""

from typing import Final, final

from mypy_extensions import i64

from headrace.record.batch import crc32c


@final
class IndexFile:
    __slots__ = ("crc", "size")

    def __init__(self, size: i64, crc: i64) -> None:
        self.size: i64 = size
        self.crc: i64 = crc

    def holds(self, data: bytes) -> bool:
        """Whether this is the content of the file."""
        return len(data) == self.size and crc32c(data) == self.crc


NO_INDEX_FILE: Final = IndexFile(0, 0)


def index_file_of(data: bytes) -> IndexFile:
    return IndexFile(len(data), crc32c(data))
