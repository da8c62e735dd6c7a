"""Checks a segment of an open log for damage, in steps.

A worker thread calls `step`, which reads the file and uses no state of the log. A problem is
reported only if `is_current` is true afterwards: a truncation during the check can have changed the
file.
"""

from headrace.log.log import Log
from headrace.log.scan import BatchWalk
from headrace.log.segment import Segment


class SegmentScrub:
    def __init__(self, log: Log, segment: Segment) -> None:
        """Raises OSError if the file cannot be opened."""
        self.log = log
        self.segment = segment
        self.problem = ""
        """The problem at `position`; empty if none was found."""
        self._truncation_count = int(log.truncation_count)
        self._size = int(log.written_size if segment is log.active() else segment.size)
        self._file = segment.open()
        self._walk = BatchWalk(log.files, self._file.fd, 0, self._size, True)
        self._end_offset = int(segment.base_offset)

    @property
    def position(self) -> int:
        return int(self._walk.position)

    def step(self, bytes_max: int) -> bool:
        """Check up to `bytes_max` bytes. True at the end of the segment, or after a problem."""
        walk = self._walk
        stop = int(walk.position) + bytes_max
        try:
            while walk.position < stop:
                batch = walk.next()
                if batch is None:
                    self.problem = walk.error
                    return True
                if batch.base_offset < self._end_offset:
                    self.problem = (
                        f"offset {batch.base_offset} follows offset {self._end_offset - 1}"
                    )
                    return True
                self._end_offset = int(batch.last_offset()) + 1
        except OSError as error:
            self.problem = f"it cannot be read: {error.strerror}"
            return True
        return False

    def is_current(self) -> bool:
        """Whether the log still contains the checked bytes. Call it on the loop."""
        log, segment = self.log, self.segment
        return (
            not log.is_closed
            and segment in log.segments.all
            and log.truncation_count == self._truncation_count
            and segment.file in (self._file, None)
            and self._size <= (log.written_size if segment is log.active() else segment.size)
        )
