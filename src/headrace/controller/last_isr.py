"""Elects leaders of partitions if no member of ISR and ELR can prove that it kept its data.

Owns the comparison of logs (I12). Each member of the last ISR and of the ELR had every committed
record, but can have lost the end of its log. When all of them are live again, each reports its last
leader epoch and log end offset. The one with the greatest pair becomes leader: it has every
committed record that any of them still has.

Other live replicas also report, because one of them can have a record that all members have lost.
Their greater pair proves nothing: they can have records that were never committed, and lack
committed ones. So one of them is elected only if its log has all records of the furthest member.
`failover_machine` decides.

1. No election follows from a wait: while a member is missing, or does not respond, the partition
   has no leader. The log names the missing brokers whenever they change. Only a topic with
   unclean.leader.election.enable elects the longest log of those that respond.
2. A response counts only for the incarnation of the broker that sent it: the next one can have lost
   more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from headrace.controller import failover_machine as machine
from headrace.controller.failover_machine import LAST_EPOCH, LogEnd
from headrace.controller.reassignment_machine import finish_reassignment
from headrace.controller.state_writer import States, StateWriter
from headrace.model.cluster import ClusterImage, LiveBroker
from headrace.model.errors import ApiError
from headrace.model.topics import NO_LEADER, TopicPartition, TopicState

RETRY_S = 0.5
_log = logging.getLogger(__name__)

RequestLogEnds = Callable[
    [int, Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, LogEnd]]
]
"""Requests from a broker the end offset of an epoch in the log of each partition."""
Ends = dict[TopicPartition, dict[int, LogEnd]]


class LastIsrElections:
    def __init__(
        self,
        image: ClusterImage,
        states: StateWriter,
        live: Callable[[], Mapping[int, LiveBroker]],
        brokers_with_offline_log: Callable[[TopicPartition], Collection[int]],
        min_insync: Callable[[TopicState], int],
        request_log_ends: RequestLogEnds,
        elects_unclean: Callable[[TopicState], bool],
    ) -> None:
        self._image = image
        self._states = states
        self._live = live
        self._brokers_with_offline_log = brokers_with_offline_log
        self._min_insync = min_insync
        self._request_log_ends = request_log_ends
        self._elects_unclean = elects_unclean
        self._last_logged: dict[tuple[int, ...], int] = {}
        """How many partitions wait for each set of brokers, according to the last log line."""
        self._task: asyncio.Task[None] | None = None

    def start_if_possible(self) -> None:
        """Start elections in the background, if the awaited brokers of a partition are live."""
        if self._task is None and self._due():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while due := self._due():
                await self._elect(due)
                # Some brokers might still be reading their logs.
                await asyncio.sleep(RETRY_S)
        except ApiError as error:
            _log.warning("election from the last ISR failed, retrying later: error=%s", error)
        finally:
            self._task = None

    def _due(self) -> list[TopicPartition]:
        """The partitions without a leader of which all awaited brokers are live."""
        live = self._live()
        due: list[TopicPartition] = []
        waiting: dict[tuple[int, ...], list[TopicPartition]] = {}
        for topic in self._image.topics.values():
            for index, state in enumerate(topic.partitions):
                if state.leader != NO_LEADER:
                    continue
                partition = TopicPartition(topic.name, index)
                offline = self._brokers_with_offline_log(partition)
                missing = machine.missing(state, live, offline, self._min_insync(topic))
                has_comparable = bool(machine.comparable(state, live, offline))
                if missing and has_comparable and self._elects_unclean(topic):
                    due.append(partition)
                elif missing:
                    waiting.setdefault(tuple(sorted(missing)), []).append(partition)
                elif missing is not None:
                    due.append(partition)
        self._log_waiting(waiting)
        return due

    def _log_waiting(self, waiting: Mapping[tuple[int, ...], list[TopicPartition]]) -> None:
        counts = {brokers: len(partitions) for brokers, partitions in waiting.items()}
        if counts == self._last_logged:
            return
        self._last_logged = counts
        for brokers, partitions in waiting.items():
            _log.warning(
                "no leader, waiting for brokers: brokers=%s partitions=%d first=%s",
                ",".join(map(str, brokers)),
                len(partitions),
                partitions[0],
            )

    async def log_ends(self, partitions: Collection[TopicPartition]) -> Ends:
        """The ends of the logs of all live replicas that respond."""
        live = self._live()
        requested: dict[TopicPartition, dict[int, int]] = {}
        for partition in partitions:
            state = self._image.partition(*partition)
            if state is not None:
                nodes = machine.comparable(state, live, self._brokers_with_offline_log(partition))
                requested[partition] = dict.fromkeys(nodes, LAST_EPOCH)
        return await self._request_ends(requested)

    async def _elect(self, due: list[TopicPartition]) -> None:
        # Before the requests: a broker that registers again after this has an outdated response.
        live = self._live()
        ends = await self.log_ends(due)
        # A replica that did not respond can have the longest log.
        known = {
            partition: found
            for partition, found in ends.items()
            if self._is_complete(partition, found)
        }
        await self._drop_incomplete(known)
        if known:
            await self._states.edit(lambda states: self._decide(states, known, live))

    def _is_complete(self, partition: TopicPartition, ends: Mapping[int, LogEnd]) -> bool:
        """Whether all logs that must be compared were reported."""
        state = self._image.partition(*partition)
        if ends and state is not None and self._elects_unclean(self._image.topics[partition.topic]):
            return True
        return state is not None and all(
            n in ends for n in machine.must_compare(state, self._live())
        )

    async def _request_ends(self, epochs: dict[TopicPartition, dict[int, int]]) -> Ends:
        """The end offsets of these epochs on these brokers, as far as they respond."""
        requested: dict[int, dict[TopicPartition, int]] = {}
        for partition, nodes in epochs.items():
            for node, epoch in nodes.items():
                requested.setdefault(node, {})[partition] = epoch
        replies = await asyncio.gather(
            *(self._request_log_ends(n, requested[n]) for n in requested)
        )
        ends: Ends = {partition: {} for partition in epochs}
        for node, reply in zip(requested, replies, strict=True):
            for partition, end in reply.items():
                ends[partition][node] = end
        return ends

    async def _drop_incomplete(self, known: Ends) -> None:
        """Drop replicas whose logs end beyond the furthest member, but lack some of its records."""
        bases: dict[TopicPartition, LogEnd] = {}
        for partition, ends in known.items():
            state = self._image.partition(*partition)
            base = None if state is None else machine.furthest_member(state, ends)
            if base is not None:
                bases[partition] = base
        others = {
            partition: {node: base[0] for node, end in known[partition].items() if end > base}
            for partition, base in bases.items()
        }
        found = await self._request_ends(others)
        for partition, nodes in others.items():
            for node in nodes:
                end = found[partition].get(node)
                if end is None or not machine.contains_log_with_end(bases[partition], end):
                    del known[partition][node]

    def _decide(self, states: States, ends: Ends, requested: Mapping[int, LiveBroker]) -> None:
        live = self._live()
        for partition, known in ends.items():
            state = states.get(*partition)
            if state is None:
                continue
            if any(node not in live or live[node].epoch != requested[node].epoch for node in known):
                continue  # The broker registered again; the next attempt queries it.
            topic = self._image.topics[partition.topic]
            min_insync, offline = self._min_insync(topic), self._brokers_with_offline_log(partition)
            after = machine.recover(state, live, known, offline, min_insync)
            has_missing = bool(machine.missing(state, live, offline, min_insync))
            if after is None and has_missing and self._elects_unclean(topic):
                after = machine.elect_unclean(state, live, offline, known)
            if after is not None:
                _log.warning(
                    "no in-sync replica is known to be complete, elected the one with the longest "
                    "log: partition=%s leader=%d logs=%s",
                    partition,
                    after.leader,
                    dict(sorted(known.items())),
                )
                states.put(
                    *partition,
                    finish_reassignment(after, live, min_insync) or after,
                    is_unclean=True,
                )
