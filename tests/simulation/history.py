"""Records all responses to clients, and checks them.

1. A record may be absent only if something explains it: a DeleteRecords request or retention
   (`removed_to`), a later record of the same key in a compacted topic, or the deletion of its
   topic.
2. What a client was promised holds for all readers: an offset has one value, an acknowledged
   DeleteRecords stays, and within a leader epoch neither end of a log moves backwards.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model.topics import TopicPartition

FAR = 1 << 62
"""An offset beyond all others."""
_TOMBSTONE = b"tombstone of "


class Violation(AssertionError):
    """A promise was broken."""


class Seen(NamedTuple):
    key: bytes
    value: bytes


class Acked(NamedTuple):
    partition: TopicPartition
    offset: int
    content: Seen
    timestamp: int


class Ends(NamedTuple):
    log_start_offset: int
    high_watermark: int


Final = Mapping[TopicPartition, list[tuple[int, Seen]]]


def seen(key: bytes | None, value: bytes | None) -> Seen:
    """A record as the history keeps it. A tombstone has no value that identifies it."""
    key = bytes(key or b"")
    return Seen(key, _TOMBSTONE + key if value is None else bytes(value))


class History:
    """Every acknowledgement, and every record that any reader saw."""

    def __init__(self) -> None:
        self.acked: list[Acked] = []
        self.sent: set[bytes] = set()
        self.shown: dict[tuple[TopicPartition, int], Seen] = {}
        self.compacted: set[str] = set()
        """Topics that are compacted."""
        self.removed_to: dict[TopicPartition, int] = defaultdict(int)
        """Every removal below this offset is explained."""
        self.deleted_to: dict[TopicPartition, int] = defaultdict(int)
        """Acknowledged DeleteRecords: the log starts here or later."""
        self.deleted_without: dict[TopicPartition, set[int]] = defaultdict(set)
        """Replicas that were not in sync when records were deleted: as in Apache Kafka, the
        deletion is undone if one of them is elected (an eligible leader replica, KIP-966)."""
        self.confined: dict[bytes, object] = {}
        """Values that were written to this incarnation of a topic, and to no other."""
        self.acked_to: dict[TopicPartition, int] = defaultdict(int)
        """Every leader has all offsets below: they were acknowledged."""
        self.last_acked: dict[TopicPartition, dict[bytes, tuple[int, Seen]]] = defaultdict(dict)
        """The last acknowledged record of each key, in compacted topics."""
        self._skipped_to: dict[TopicPartition, int] = defaultdict(int)
        self._ends: dict[tuple[TopicPartition, int], Ends] = {}

    def acknowledge(
        self, partition: TopicPartition, offset: int, content: Seen, timestamp: int
    ) -> None:
        self.acked.append(Acked(partition, offset, content, timestamp))
        self.acked_to[partition] = max(self.acked_to[partition], offset + 1)
        if partition.topic in self.compacted:
            known = self.last_acked[partition].get(content.key, (-1, content))
            self.last_acked[partition][content.key] = max(known, (offset, content))
        self._note(partition, offset, content)

    def show(self, partition: TopicPartition, offset: int, content: Seen) -> None:
        if content.value not in self.sent:
            raise Violation(f"I4: {partition}@{offset} shows {content}, which no client sent")
        self._note(partition, offset, content)

    def _note(self, partition: TopicPartition, offset: int, content: Seen) -> None:
        before = self.shown.setdefault((partition, offset), content)
        if before != content:
            raise Violation(f"I2: {partition}@{offset} was {before} and is {content}")

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """A reader found that the log starts at this offset."""
        self._skipped_to[partition] = max(self._skipped_to[partition], offset)

    # Both ends of a log, as one leader shows them.

    def ends(self, partition: TopicPartition, epoch: int) -> Ends:
        """What readers have seen so far; a request that is sent now sees no less."""
        return self._ends.get((partition, epoch), Ends(0, 0))

    def see_ends(self, partition: TopicPartition, epoch: int, before: Ends, now: Ends) -> None:
        if now.high_watermark < before.high_watermark:
            raise Violation(
                f"I6: the end of {partition} in epoch {epoch} went from {before} to {now}"
            )
        if now.log_start_offset < before.log_start_offset:
            raise Violation(
                f"I6: the start of {partition} in epoch {epoch} went from {before} to {now}"
            )
        known = self.ends(partition, epoch)
        self._ends[partition, epoch] = Ends(
            max(known.log_start_offset, now.log_start_offset),
            max(known.high_watermark, now.high_watermark),
        )

    # The verdict.

    def is_gone(self, partition: TopicPartition, offset: int) -> bool:
        return offset < self.removed_to[partition]

    def check_final(self, final: Final, starts: Mapping[TopicPartition, int]) -> None:
        """The complete log at the end: nothing lost, nothing twice, in the order it was sent."""
        at = {
            (partition, offset): content
            for partition, records in final.items()
            for offset, content in records
        }
        last: dict[tuple[TopicPartition, bytes], int] = {}
        for partition, records in final.items():
            _check_order(partition, records)
            last.update(((partition, content.key), offset) for offset, content in records)
        for partition, start in starts.items():
            if start < self.deleted_to[partition]:
                raise Violation(
                    f"I6: records of {partition} were deleted up to offset "
                    f"{self.deleted_to[partition]}, and the log starts at {start}"
                )
        for partition, offset in self._skipped_to.items():
            if offset > self.removed_to[partition]:
                raise Violation(f"I1: {partition} started at {offset}, which nothing explains")

        def is_explained(partition: TopicPartition, offset: int, content: Seen) -> bool:
            if partition not in final or self.is_gone(partition, offset):
                return True
            is_compacted = partition.topic in self.compacted
            return is_compacted and last.get((partition, content.key), -1) > offset

        for partition, offset, content, _ in self.acked:
            found = at.get((partition, offset))
            if found != content and (found or not is_explained(partition, offset, content)):
                raise Violation(
                    f"I1: {partition}@{offset} was acknowledged as {content} and is {found}"
                )
        for (partition, offset), content in self.shown.items():
            found = at.get((partition, offset))
            if found != content and (found or not is_explained(partition, offset, content)):
                raise Violation(f"I6: {partition}@{offset} was shown as {content} and is {found}")


def _check_order(partition: TopicPartition, records: Iterable[tuple[int, Seen]]) -> None:
    """No value twice; the numbers of one sender rise."""
    known: set[bytes] = set()
    numbers: dict[bytes, int] = {}
    for _, content in records:
        sender, _, number = content.value.rpartition(b":")
        if sender.startswith((b"noise", _TOMBSTONE)) or content.value.startswith(_TOMBSTONE):
            continue
        if content.value in known:
            raise Violation(f"I5: {content} is in {partition} twice")
        known.add(content.value)
        if int(number) < numbers.get(sender, -1):
            raise Violation(f"I3: {content} of {partition} follows {numbers[sender]}")
        numbers[sender] = int(number)
