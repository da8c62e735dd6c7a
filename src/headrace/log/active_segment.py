# HOT
"""The segment to which a log appends: what is in its file, and when it is full."""

from typing import Final, final

from mypy_extensions import i64

from headrace.log.roll_rules import RollRules
from headrace.log.segment import Segment

_RECENT_POSITIONS_MAX: Final = 256


@final
class ActiveSegment:
    def __init__(self, segment: Segment, rules: RollRules) -> None:
        self.segment = segment
        self.rules = rules
        self.written_size: i64 = segment.size
        """The number of bytes of the segment that are in its file."""
        self.has_indexes = False
        """Whether its indexes are in memory, and stay there."""
        self._recent_positions: dict[int, int] = {}
        """The positions at which recent writes began, by offset.

        A consumer that reads at the end of the log needs no look-up in the index.
        """

    def add_position(self, offset: i64) -> None:
        """Note that the next write begins with this offset."""
        recent_positions = self._recent_positions
        if len(recent_positions) >= _RECENT_POSITIONS_MAX:
            recent_positions.clear()
        recent_positions[offset] = self.written_size

    def written(self, now_ms: i64) -> None:
        """All batches of the segment are in the file."""
        segment = self.segment
        self.written_size = segment.size
        segment.appended_ms = now_ms
        segment.is_recently_used = True
        segment.save_state()

    def position_of(self, offset: i64) -> i64:
        """The position of an offset; -1 if no recent write began with it."""
        return self._recent_positions.get(offset, -1)
