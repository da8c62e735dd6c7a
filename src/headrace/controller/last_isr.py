"""Elects leaders of partitions if no member of ISR and ELR can prove that it kept its data.

Compares their logs (I12). Each member of the last ISR and of the ELR had every committed record,
but can have lost the end of its log. When all of them are live again, each reports its last leader
epoch and log end offset. The member with the greatest pair becomes leader: it has every committed
record that any member still has.

Other live replicas also report, because one of them can have a record that all members have lost.
If such a replica has a greater pair, that proves nothing: it can have records that were never
committed, and lack committed ones. So it is elected only if its log contains all records of the
member with the greatest pair. `failover_machine` decides.

1. While a member is missing or does not respond, the partition has no leader: waiting longer never
   causes an election. A log line names the missing brokers whenever they change. Only a topic with
   unclean.leader.election.enable then elects the longest log of the replicas that respond.
2. A response is valid only for the incarnation of the broker that sent it: the next incarnation can
   have lost more records.
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
"""Requests from a broker the end offset of one epoch in the log of each partition."""
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
        """The number of partitions that wait for each set of brokers, as last logged."""
        self._task: asyncio.Task[None] | None = None

    def start_if_possible(self) -> None:
        """Start elections in the background, if some partitions no longer wait for a broker."""
        if self._task is None and self._ready_partitions():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while ready := self._ready_partitions():
                await self._elect(ready)
                # A broker that is still loading its logs returns no ends yet.
                await asyncio.sleep(RETRY_S)
        except ApiError as error:
            _log.warning("election from the last ISR failed, retrying later: error=%s", error)
        finally:
            self._task = None

    def _ready_partitions(self) -> list[TopicPartition]:
        """The partitions without a leader whose logs can be compared now.

        They wait for no broker, or they have a live replica and allow unclean elections.
        """
        live = self._live()
        ready: list[TopicPartition] = []
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
                    ready.append(partition)
                elif missing:
                    waiting.setdefault(tuple(sorted(missing)), []).append(partition)
                elif missing is not None:
                    ready.append(partition)
        self._log_waiting(waiting)
        return ready

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

    async def _elect(self, ready: list[TopicPartition]) -> None:
        # Read the incarnations before the requests: the response of a broker that registers again
        # during the requests is outdated.
        live = self._live()
        reported = await self.log_ends(ready)
        # A replica that did not respond can have the longest log.
        ends = {
            partition: partition_ends
            for partition, partition_ends in reported.items()
            if self._has_enough_ends(partition, partition_ends)
        }
        await self._drop_incomplete(ends)
        if ends:
            await self._states.edit(lambda states: self._decide(states, ends, live))

    def _has_enough_ends(self, partition: TopicPartition, ends: Mapping[int, LogEnd]) -> bool:
        """Whether all logs that must be compared were reported; for unclean elections, any log."""
        state = self._image.partition(*partition)
        if ends and state is not None and self._elects_unclean(self._image.topics[partition.topic]):
            return True
        return state is not None and all(
            n in ends for n in machine.must_compare(state, self._live())
        )

    async def _request_ends(self, epochs: dict[TopicPartition, dict[int, int]]) -> Ends:
        """The end offsets of these epochs on these brokers, of the brokers that respond."""
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

    async def _drop_incomplete(self, ends: Ends) -> None:
        """Drop replicas whose logs end beyond the furthest member, but lack some of its records."""
        furthest: dict[TopicPartition, LogEnd] = {}
        for partition, partition_ends in ends.items():
            state = self._image.partition(*partition)
            end = None if state is None else machine.furthest_member(state, partition_ends)
            if end is not None:
                furthest[partition] = end
        # The epochs of the furthest members, by replica with a log that ends beyond them.
        epochs = {
            partition: {
                node: member_end[0] for node, end in ends[partition].items() if end > member_end
            }
            for partition, member_end in furthest.items()
        }
        epoch_ends = await self._request_ends(epochs)
        for partition, nodes in epochs.items():
            for node in nodes:
                end = epoch_ends[partition].get(node)
                if end is None or not machine.contains_log_with_end(furthest[partition], end):
                    del ends[partition][node]

    def _decide(self, states: States, ends: Ends, live_before: Mapping[int, LiveBroker]) -> None:
        """Elect leaders. `live_before` are the brokers to which the requests were sent."""
        live = self._live()
        for partition, known in ends.items():
            state = states.get(*partition)
            if state is None:
                continue
            if any(
                node not in live or live[node].epoch != live_before[node].epoch for node in known
            ):
                continue  # A broker registered again; the next attempt queries it.
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
