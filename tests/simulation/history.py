"""What clients saw, and the checks over it."""

from collections import defaultdict
from typing import NamedTuple

from headrace.model.topics import TopicPartition


class Violation(AssertionError):
    """A promise was broken."""


class Acked(NamedTuple):
    partition: TopicPartition
    offset: int
    value: bytes


class History:
    """Every acknowledgement and every record that was shown, to anybody, ever."""

    def __init__(self) -> None:
        self.acked: list[Acked] = []
        self.sent: set[bytes] = set()
        self.shown: dict[tuple[TopicPartition, int], bytes] = {}

    def acknowledge(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        self.acked.append(Acked(partition, offset, value))
        self._note(partition, offset, value)

    def show(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        if value not in self.sent:
            raise Violation(f"I4: {partition}@{offset} shows {value!r}, which nobody sent")
        self._note(partition, offset, value)

    def _note(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        before = self.shown.setdefault((partition, offset), value)
        if before != value:
            raise Violation(f"I2: {partition}@{offset} was {before!r} and is {value!r}")

    def check_final(self, final: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
        """The whole log at the end: nothing lost, nothing twice, in the order it was sent."""
        at: dict[tuple[TopicPartition, int], bytes] = {}
        order: dict[tuple[TopicPartition, bytes], list[int]] = defaultdict(list)
        seen: set[bytes] = set()
        for partition, records in final.items():
            for offset, value in records:
                at[(partition, offset)] = value
                sender, _, number = value.rpartition(b":")
                if sender.startswith(b"noise"):
                    continue
                if value in seen:
                    raise Violation(f"I5: {value!r} is there twice")
                seen.add(value)
                order[(partition, sender)].append(int(number))
        for acked in self.acked:
            if at.get((acked.partition, acked.offset)) != acked.value:
                found = at.get((acked.partition, acked.offset))
                raise Violation(f"I1: {acked} was acknowledged, and {found!r} is there")
        for (partition, sender), numbers in order.items():
            if numbers != sorted(numbers):
                raise Violation(f"I3: {sender!r} is out of order in {partition}: {numbers}")
        for (partition, offset), value in self.shown.items():
            if at.get((partition, offset)) != value:
                raise Violation(f"I6: {partition}@{offset} was shown as {value!r}, and went away")
