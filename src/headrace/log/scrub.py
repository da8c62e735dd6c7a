"""Looks for damage in the segments of a log that is in use, a piece at a time.

The walk is that of `headrace log check`. A worker thread calls `step`; it reads the file and
touches nothing of the log. What it finds is looked at again before it is believed: a log may be
cut and written anew under a reader.
"""

from headrace.log.log import Log
from headrace.log.scan import Walk
from headrace.log.segment import Segment


class SegmentScrub:
    def __init__(self, log: Log, segment: Segment) -> None:
        """OSError where the file cannot be opened."""
        self.log = log
        self.segment = segment
        self.problem = ""
        """What is wrong at `position`; empty while nothing is."""
        self._truncations = int(log.truncations)
        self._size = int(log.written_size if segment is log.active() else segment.size)
        self._file = segment.open()
        self._walk = Walk(log.files, self._file.fd, 0, self._size, True)
        self._end_offset = int(segment.base_offset)

    @property
    def position(self) -> int:
        return int(self._walk.position)

    def step(self, bytes_max: int) -> bool:
        """Check some more; true once the segment is done, or a problem found."""
        walk = self._walk
        stop = int(walk.position) + bytes_max
        try:
            while walk.position < stop:
                batch = walk.next()
                if batch is None:
                    self.problem = walk.error
                    return True
                if batch.base_offset < self._end_offset:
                    self.problem = f"offset {batch.base_offset} comes after {self._end_offset - 1}"
                    return True
                self._end_offset = int(batch.last_offset()) + 1
        except OSError as error:
            self.problem = f"it cannot be read: {error.strerror}"
            return True
        return False

    def is_current(self) -> bool:
        """Whether the log still has what was looked at. On the loop."""
        log, segment = self.log, self.segment
        return (
            not log.is_closed
            and segment in log.segments
            and log.truncations == self._truncations
            and segment.file in (self._file, None)
            and self._size <= (log.written_size if segment is log.active() else segment.size)
        )
