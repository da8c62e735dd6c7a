"""Finds the partitions and offsets to read, on the driver.

Owns the driver's client, and sends the requests of planning. It reads no records.

1. The client retries after a temporary error, such as a missing leader, and the complete request is
   repeated before records are considered lost.
2. For a short time, the end offset of a new leader can be below a position that was already read.
   Such end offsets are requested again, and never returned.
3. For a short time, a broker can respond with the id of a topic that was deleted: ids are requested
   again before a topic is reported as another one.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from headrace.client import (
    AtTime,
    Client,
    ClientError,
    TopicPartition,
    UnknownTopic,
    Unreachable,
)
from headrace.client.core.options import Isolation
from headrace.client.core.values import Start
from headrace.spark.connections import connect
from headrace.spark.option_values import EARLIEST, LATEST, Bound, OptionError
from headrace.spark.options import ReadOptions
from headrace.spark.values import DataLoss, OffsetRange, Positions, named

T = TypeVar("T")
_METADATA_AGE_S = 1.0
_BEHIND_WAIT_S = 10.0
_BEHIND_PAUSE_S = 0.1


class Planner:
    """Requests about the partitions and offsets that one set of options reads."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._client: Client | None = None
        self._was_connected = False
        self._partitions: list[TopicPartition] = []
        self._topic_ids: dict[str, str] = {}
        self._read_s = -_METADATA_AGE_S
        self._shorter: set[TopicPartition] = set()
        """Partitions whose end offset was still below the known position after the wait."""
        self._reported: set[str] = set()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = connect(self.options.connection, patient=self._was_connected)
            self._was_connected = True
        return self._client

    def _retry(self, request: Callable[[], T]) -> T:
        """Retry at most `fetchOffset.numRetries` times, with a pause in between."""
        for _ in range(self.options.fetch_attempts - 1):
            try:
                return request()
            except Unreachable:
                self.close()
            except ClientError:
                self._read_s = -_METADATA_AGE_S
            time.sleep(self.options.retry_interval_ms / 1000)
        return request()

    # Partitions.

    def partitions(self, *, refresh: bool = False) -> list[TopicPartition]:
        """The subscribed partitions, from metadata that is at most a second old."""
        if refresh or time.monotonic() - self._read_s >= _METADATA_AGE_S:
            self._partitions = self._retry(self._read_partitions)
            self._read_s = time.monotonic()
        return self._partitions

    def _read_partitions(self) -> list[TopicPartition]:
        options = self.options
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            topics = self.client.list_topics()
            names = [
                name
                for name, info in topics.items()
                if pattern.fullmatch(name) and not info.is_internal
            ]
        else:
            names = list(
                options.topics or {partition.topic: None for partition in options.assigned}
            )
        found = self.client.refresh_topics(names) if names else {}
        self._topic_ids = {
            name: str(info.topic_id) for name, info in found.items() if info.topic_id is not None
        }
        partitions = [
            TopicPartition(name, part.index)
            for name, info in found.items()
            for part in info.partitions
        ]
        if options.assigned:
            return [partition for partition in options.assigned if partition in partitions]
        return sorted(partitions)

    def require_topics(self) -> list[TopicPartition]:
        """The partitions. Raises an error if a topic or partition in the options does not exist."""
        partitions = self.partitions(refresh=True)
        topics = {partition.topic for partition in partitions}
        missing = [name for name in self.options.topics if name not in topics]
        missing += [
            str(partition) for partition in self.options.assigned if partition not in partitions
        ]
        if missing:
            option = "assign" if self.options.assigned else "subscribe"
            raise OptionError(
                f"option {option!r}: unknown topic or partition: {', '.join(missing)}"
            )
        return partitions

    def topic_ids(self, positions: Positions) -> dict[str, str]:
        """The ids of the topics of these partitions, where the brokers have ids."""
        self.partitions()
        names = {partition.topic for partition in positions}
        return {name: id_ for name, id_ in self._topic_ids.items() if name in names}

    def check_topics(self, known: Mapping[str, str]) -> None:
        """Report loss if one of these topics now has another id."""
        deadline = time.monotonic() + _BEHIND_WAIT_S
        self.partitions()
        while other := [name for name in known if self._is_other(name, known[name])]:
            if time.monotonic() >= deadline:
                self.report_loss(
                    f"{', '.join(sorted(other))} was deleted and created again, or is a topic of "
                    "another cluster: the offsets of the stream are those of the former topic. To "
                    "read the new topic from its start, use a new checkpoint (in a pipeline: "
                    "--full-refresh TABLE)"
                )
                return
            time.sleep(_BEHIND_PAUSE_S)
            self.partitions(refresh=True)

    def _is_other(self, topic: str, id_: str) -> bool:
        return self._topic_ids.get(topic, id_) != id_

    # Offsets.

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._listed(partitions, "earliest")

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._listed(partitions, "latest")

    def at_time(self, times_ms: Positions) -> dict[TopicPartition, int]:
        """The first offset of each partition at or after a time; -1 without such a record."""
        if not times_ms:
            return {}
        at: dict[TopicPartition, Start] = {
            partition: AtTime(ms) for partition, ms in times_ms.items()
        }
        return self._list(at)

    def _listed(
        self, partitions: Iterable[TopicPartition], start: Start
    ) -> dict[TopicPartition, int]:
        at = dict.fromkeys(partitions, start)
        return self._list(at) if at else {}

    def _list(self, at: dict[TopicPartition, Start]) -> dict[TopicPartition, int]:
        committed = self.options.read_committed
        isolation: Isolation = "read_committed" if committed else "read_uncommitted"
        listed = self._retry(lambda: self.client.list_offsets(at, isolation=isolation))
        return {partition: found.offset for partition, found in listed.items()}

    def ends(self, known: Positions) -> dict[TopicPartition, int]:
        """The ends of all existing partitions, none below a known position."""
        deadline = time.monotonic() + _BEHIND_WAIT_S
        while True:
            found = self._latest_of_all()
            behind = {
                partition for partition, end in found.items() if end < known.get(partition, 0)
            }
            if time.monotonic() >= deadline and behind - self._shorter:
                self.report_loss(
                    f"the log of {named(behind)} ends before offsets that were already read: "
                    "records were lost, or the topic was recreated (then start with a new "
                    "checkpoint)"
                )
                self._shorter |= behind
            if behind <= self._shorter:
                self._shorter = behind
                return {
                    partition: max(end, known.get(partition, 0)) for partition, end in found.items()
                }
            time.sleep(_BEHIND_PAUSE_S)
            self.partitions(refresh=True)

    def _latest_of_all(self) -> dict[TopicPartition, int]:
        try:
            return self.latest(self.partitions())
        except UnknownTopic:
            # A topic was deleted since its partitions were read.
            return self.latest(self.partitions(refresh=True))

    def report_loss(self, loss: str) -> None:
        """Raise DataLoss or, if failOnDataLoss is false, print each loss once and continue."""
        if loss not in self._reported:
            report_loss(loss, fail=self.options.fail_on_data_loss)
            self._reported.add(loss)

    # Bounds.

    def resolve(
        self, bound: Bound, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Offsets of a bound for all these partitions."""
        if bound.kind == "earliest":
            return self.earliest(partitions)
        if bound.kind == "latest":
            return self.latest(partitions)
        if bound.kind == "time":
            return self._times(bound, dict.fromkeys(partitions, bound.time_ms))
        if set(bound.places) != set(partitions):
            missing = named(set(partitions) - set(bound.places))
            unknown = named(set(bound.places) - set(partitions))
            wrong = f"lacks {missing}" if missing else f"has {unknown}, which is not subscribed"
            raise OptionError(
                f"option {bound.option!r} {wrong}: list every partition (-2 earliest, -1 latest)"
            )
        if bound.kind == "times":
            return self._times(bound, bound.places)
        offsets = dict(bound.places)
        offsets |= self.earliest(
            partition for partition, at in bound.places.items() if at == EARLIEST
        )
        offsets |= self.latest(partition for partition, at in bound.places.items() if at == LATEST)
        return offsets

    def _times(self, bound: Bound, times_ms: Positions) -> dict[TopicPartition, int]:
        found = self.at_time(times_ms)
        late = [partition for partition, offset in found.items() if offset < 0]
        if late and bound.option.startswith("starting") and self.options.unmatched_start == "error":
            raise OptionError(
                f"option {bound.option!r}: {named(late)} has no record at or after this time; "
                "choose an earlier time, or set 'startingOffsetsByTimestampStrategy' to latest"
            )
        return found | self.latest(late)


def plan_ranges(planner: Planner) -> list[OffsetRange]:
    """The offset ranges of a batch: one per partition, from the options.

    A range that ends before it starts is rejected, as by the connector.
    """
    starting, ending = planner.options.starting, planner.options.ending
    partitions = planner.require_topics()
    starts, ends = planner.resolve(starting, partitions), planner.resolve(ending, partitions)
    for partition in partitions:
        if starts[partition] > ends[partition]:
            raise OptionError(
                f"option {starting.option!r}: the start offset {starts[partition]} of {partition} "
                f"is after its end offset {ends[partition]}: choose an earlier start, or a later "
                f"{ending.option!r}"
            )
    return [OffsetRange(partition, starts[partition], ends[partition]) for partition in partitions]


def report_loss(loss: str, *, fail: bool) -> None:
    """Raise DataLoss, or print the loss of records and continue."""
    if fail:
        raise DataLoss(
            f"{loss}. To continue without these records, set the option 'failOnDataLoss' to false."
        )
    consequence = "continuing, because 'failOnDataLoss' is false"
    print(f"headrace: {loss}; {consequence}", file=sys.stderr, flush=True)
