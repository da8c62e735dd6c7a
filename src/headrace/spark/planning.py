"""Finds the partitions and offsets to read, on the driver.

Owns the driver's client and every question to the cluster that planning has. It reads no records.

1. An error that may pass (no leader, a broker that is away) is waited for by the client, and the
   whole question asked again, before anything is called lost.
2. A new leader's end may lie behind what was read already, for a moment: ends below a known
   position are asked for again, and never returned.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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
    """Questions to the cluster, about what one set of options reads."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._client: Client | None = None
        self._was_there = False
        self._partitions: list[TopicPartition] = []
        self._looked_s = -_METADATA_AGE_S
        self._shorter: set[TopicPartition] = set()
        """Partitions that were waited for long enough: they end before what was read."""
        self._told: set[str] = set()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = connect(self.options.connection, patient=self._was_there)
            self._was_there = True
        return self._client

    def _ask(self, question: Callable[[], T]) -> T:
        """As often as `fetchOffset.numRetries` says, with a pause in between."""
        for _ in range(self.options.fetch_attempts - 1):
            try:
                return question()
            except Unreachable:
                self.close()
            except ClientError:
                self._looked_s = -_METADATA_AGE_S
            time.sleep(self.options.retry_interval_ms / 1000)
        return question()

    # Partitions.

    def partitions(self, *, afresh: bool = False) -> list[TopicPartition]:
        """What the subscription covers now, or did less than a second ago."""
        if afresh or time.monotonic() - self._looked_s >= _METADATA_AGE_S:
            self._partitions = self._ask(self._look)
            self._looked_s = time.monotonic()
        return self._partitions

    def _look(self) -> list[TopicPartition]:
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
            names = list(options.topics or {place.topic: None for place in options.assigned})
        found = self.client.refresh_topics(names) if names else {}
        places = [
            TopicPartition(name, part.index)
            for name, info in found.items()
            for part in info.partitions
        ]
        if options.assigned:
            return [place for place in options.assigned if place in places]
        return sorted(places)

    def require_topics(self) -> list[TopicPartition]:
        """The partitions, all of the topics and partitions that were named among them."""
        places = self.partitions(afresh=True)
        topics = {place.topic for place in places}
        missing = [name for name in self.options.topics if name not in topics]
        missing += [str(place) for place in self.options.assigned if place not in places]
        if missing:
            option = "assign" if self.options.assigned else "subscribe"
            raise OptionError(
                f"option {option!r}: unknown topic or partition: {', '.join(missing)}"
            )
        return places

    # Offsets.

    def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._listed(places, "earliest")

    def latest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._listed(places, "latest")

    def at_time(self, times_ms: Positions) -> dict[TopicPartition, int]:
        """For each partition, the first offset at or after the given time; -1 if there is none."""
        if not times_ms:
            return {}
        at: dict[TopicPartition, Start] = {place: AtTime(ms) for place, ms in times_ms.items()}
        return self._list(at)

    def _listed(self, places: Iterable[TopicPartition], where: Start) -> dict[TopicPartition, int]:
        at = dict.fromkeys(places, where)
        return self._list(at) if at else {}

    def _list(self, at: dict[TopicPartition, Start]) -> dict[TopicPartition, int]:
        committed = self.options.read_committed
        isolation: Isolation = "read_committed" if committed else "read_uncommitted"
        listed = self._ask(lambda: self.client.list_offsets(at, isolation=isolation))
        return {place: found.offset for place, found in listed.items()}

    def ends(self, known: Positions) -> dict[TopicPartition, int]:
        """The ends of all existing partitions, none below a known position."""
        deadline = time.monotonic() + _BEHIND_WAIT_S
        while True:
            found = self._latest_of_all()
            behind = {place for place, end in found.items() if end < known.get(place, 0)}
            if time.monotonic() >= deadline and behind - self._shorter:
                self.report_loss(
                    f"the log of {named(behind)} ends before offsets that were already read: "
                    "records "
                    "were lost, or the topic was recreated (then start with a new checkpoint)"
                )
                self._shorter |= behind
            if behind <= self._shorter:
                self._shorter = behind
                return {place: max(end, known.get(place, 0)) for place, end in found.items()}
            time.sleep(_BEHIND_PAUSE_S)
            self.partitions(afresh=True)

    def _latest_of_all(self) -> dict[TopicPartition, int]:
        try:
            return self.latest(self.partitions())
        except UnknownTopic:
            # A topic was deleted since its partitions were read.
            return self.latest(self.partitions(afresh=True))

    def report_loss(self, what: str) -> None:
        """Fail, or report it once and continue, depending on failOnDataLoss."""
        if what not in self._told:
            report_loss(what, fail=self.options.fail_on_data_loss)
            self._told.add(what)

    # Bounds.

    def resolve(self, bound: Bound, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Offsets of a bound for all these partitions."""
        if bound.kind == "earliest":
            return self.earliest(places)
        if bound.kind == "latest":
            return self.latest(places)
        if bound.kind == "time":
            return self._times(bound, dict.fromkeys(places, bound.time_ms))
        if set(bound.places) != set(places):
            missing = named(set(places) - set(bound.places))
            unknown = named(set(bound.places) - set(places))
            wrong = f"lacks {missing}" if missing else f"has {unknown}, which is not subscribed"
            raise OptionError(
                f"option {bound.option!r} {wrong}: list every partition (-2 earliest, -1 latest)"
            )
        if bound.kind == "times":
            return self._times(bound, bound.places)
        offsets = dict(bound.places)
        offsets |= self.earliest(place for place, at in bound.places.items() if at == EARLIEST)
        offsets |= self.latest(place for place, at in bound.places.items() if at == LATEST)
        return offsets

    def _times(self, bound: Bound, times_ms: Positions) -> dict[TopicPartition, int]:
        found = self.at_time(times_ms)
        late = [place for place, offset in found.items() if offset < 0]
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
    places = planner.require_topics()
    starts, ends = planner.resolve(starting, places), planner.resolve(ending, places)
    for place in places:
        if starts[place] > ends[place]:
            raise OptionError(
                f"option {starting.option!r}: the start offset {starts[place]} of {place} is after "
                f"its end offset {ends[place]}: choose an earlier start, or a later "
                f"{ending.option!r}"
            )
    return [OffsetRange(place, starts[place], ends[place]) for place in places]


def report_loss(what: str, *, fail: bool) -> None:
    if fail:
        raise DataLoss(
            f"{what}. To continue without these records, set the option 'failOnDataLoss' to false."
        )
    consequence = "continuing, because 'failOnDataLoss' is false"
    print(f"headrace: {what}; {consequence}", file=sys.stderr, flush=True)
