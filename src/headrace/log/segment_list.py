# HOT
"""The segments of one log, in the order of their offsets. The last one is active.

Owns the list, the base offsets for searches, and the size of the sealed segments. Only its methods
change them.
"""

from typing import final

from mypy_extensions import i64

from headrace.log.segment import Segment


@final
class SegmentList:
    def __init__(self, segments: list[Segment]) -> None:
        self.all: list[Segment] = []
        self.base_offsets: list[int] = []
        self.sealed_bytes: i64 = 0
        """The total size of the sealed segments."""
        self.replace_all(segments)

    def append(self, segment: Segment) -> None:
        """Add a new active segment. The former one is sealed."""
        assert segment.base_offset > self.all[-1].base_offset, "L4"
        self.sealed_bytes += self.all[-1].size
        self.all.append(segment)
        self.base_offsets.append(int(segment.base_offset))

    def replace_all(self, segments: list[Segment]) -> None:
        self.all = segments
        self.base_offsets = [int(segment.base_offset) for segment in segments]
        self.sealed_bytes = sum([int(segment.size) for segment in segments[:-1]])

    def replace(self, index: int, count: int, segment: Segment) -> list[Segment]:
        """Replace `count` sealed segments by one, and return them."""
        replaced = self.all[index : index + count]
        self.all[index : index + count] = [segment]
        self.base_offsets[index : index + count] = [int(segment.base_offset)]
        self.sealed_bytes += segment.size - sum([int(each.size) for each in replaced])
        return replaced

    def remove_first(self, count: int) -> list[Segment]:
        """Remove the oldest `count` segments, and return them."""
        removed = self.all[:count]
        del self.all[:count]
        del self.base_offsets[:count]
        self.sealed_bytes -= sum([int(each.size) for each in removed])
        return removed

    def assert_invariants(self) -> None:
        """Assert L4: the base offsets rise, and the stored offsets and sizes are correct."""
        bases = [int(segment.base_offset) for segment in self.all]
        assert bases == self.base_offsets, f"L4: {bases} and {self.base_offsets}"
        assert bases == sorted(set(bases)), f"L4: {bases}"
        sealed = sum([int(segment.size) for segment in self.all[:-1]])
        assert self.sealed_bytes == sealed, f"L4: {self.sealed_bytes} of {sealed} bytes"
