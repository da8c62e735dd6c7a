"""Checks the segments of an open log for damage, in steps.

It uses the same walk as `headrace log check`. A worker thread calls `step`, which reads the file
and uses no state of the log. Before a problem is reported, `is_current` must hold: the log can be
truncated and rewritten during the read.
"""

from headrace.log.log import Log
from headrace.log.scan import Walk
from headrace.log.segment import Segment


class SegmentScrub:
    def __init__(self, log: Log, segment: Segment) -> None:
        """Raises OSError if the file cannot be opened."""
        self.log = log
        self.segment = segment
        self.problem = ""
        """The problem at `position`; empty if there is none."""
        self._truncations = int(log.truncations)
        self._size = int(log.written_size if segment is log.active() else segment.size)
        self._file = segment.open()
        self._walk = Walk(log.files, self._file.fd, 0, self._size, True)
        self._end_offset = int(segment.base_offset)

    @property
    def position(self) -> int:
        return int(self._walk.position)

    def step(self, bytes_max: int) -> bool:
        """Check up to `bytes_max` bytes; true at the end of the segment, or after a problem."""
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
        """Whether the log still has the checked bytes. Call it on the loop."""
        log, segment = self.log, self.segment
        return (
            not log.is_closed
            and segment in log.segments.all
            and log.truncations == self._truncations
            and segment.file in (self._file, None)
            and self._size <= (log.written_size if segment is log.active() else segment.size)
        )
