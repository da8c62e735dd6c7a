"""Elects leaders for all partitions when brokers start or stop; runs on the controller.

Owns the failed logs that brokers reported, and the times of leadership hand-overs. The image
contains all other state that a new controller needs. `failover_machine` decides, and `state_writer`
writes. Does nothing on a broker that is not the controller.

1. After a change of brokers, a run checks all partitions. After a change of topics, it checks only
   these topics, so that the cost does not depend on the number of all partitions. Changes during a
   run cause another run.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from headrace.cluster.failure_detection.liveness_machine import Liveness
from headrace.cluster.live_image import LiveImage
from headrace.controller import failover_machine as machine
from headrace.controller.failover_machine import IsrChange
from headrace.controller.fenced_writer import FencedWriter
from headrace.controller.last_isr import LastIsrElections, RequestLogEnds
from headrace.controller.reassignment_machine import finish_reassignment
from headrace.controller.state_writer import States, StateWriter
from headrace.coordination import layout
from headrace.coordination.port import Check, Delete, NoNode, Op, Store, StoreUnavailable
from headrace.env.clock import Clock
from headrace.model.cluster import BrokerInfo, LiveBroker
from headrace.model.errors import ApiError
from headrace.model.topics import NO_LEADER, PartitionState, TopicPartition, TopicState

HANDOVER_INTERVAL_S = 60.0
RETRY_S = 0.5
_REMOVAL_ATTEMPTS_MAX = 5
_log = logging.getLogger(__name__)


class TopicRules(NamedTuple):
    min_insync: int = 1
    elects_unclean: bool = False


class Handover(NamedTuple):
    """The replacement of a leader with too few in-sync replicas by another in-sync replica."""

    partition: TopicPartition
    before: PartitionState
    after: PartitionState


Rules = Callable[[Mapping[str, str]], TopicRules]
"""Returns the rules for a topic's settings, with the broker's defaults."""


def rules_of_settings(settings: Mapping[str, str]) -> TopicRules:
    return TopicRules(
        int(settings.get("min.insync.replicas", "1")),
        settings.get("unclean.leader.election.enable", "false") == "true",
    )


class Failover:
    def __init__(
        self,
        store: Store,
        live_image: LiveImage,
        writer: FencedWriter,
        states: StateWriter,
        clock: Clock,
        rules: Rules,
        liveness: Liveness,
        request_log_ends: RequestLogEnds,
    ) -> None:
        self._store = store
        self._liveness = liveness
        self._image = live_image.image
        self._writer = writer
        self._states = states
        self._clock = clock
        self._rules = rules
        self._last_isr_elections = LastIsrElections(
            self._image,
            states,
            self.live,
            self.brokers_with_offline_log,
            self.min_insync,
            request_log_ends,
            lambda topic: self._rules(topic.configs).elects_unclean,
        )
        self._offline_logs: dict[tuple[UUID, int], dict[int, int]] = {}
        """Brokers whose log of a partition has failed, with their epoch at that time."""
        self._handed_over_at: dict[TopicPartition, dict[int, float]] = {}
        """When each broker last was the former or the next leader of a hand-over."""
        self._is_due = False
        self._due_topics: dict[str, None] = {}
        """The topics that the next run checks, unless it checks all."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def live(self) -> dict[int, LiveBroker]:
        return self._liveness.live(self._image.brokers)

    async def fit_to_live(self, extra: Callable[[], Sequence[Op]] = tuple) -> None:
        """Update the ISRs and leaders of all partitions for the live brokers.

        The first request to the store also contains the operations that `extra` returns.
        """
        await self._states.edit(self._update_states, extra)

    async def remove_dead(self, info: BrokerInfo) -> None:
        """Delete the registration of a dead broker in the request that elects other leaders."""
        _log.warning("broker is dead, its port refuses connections: broker=%d", info.node_id)
        self._liveness.mark_dead(info.node_id, info.epoch)
        try:
            for _ in range(_REMOVAL_ATTEMPTS_MAX):
                ops = await _removal(self._store, info)
                if not ops:
                    return
                await self.fit_to_live(_OperationsOnce(ops))
        except (ApiError, StoreUnavailable) as error:
            # The end of its session deletes the registration, and elections are retried.
            _log.warning("registration not removed: broker=%d error=%s", info.node_id, error)
        finally:
            self.run_soon()

    async def controlled_shutdown(self, node_id: int, epoch: int) -> bool:
        """Remove a stopping broker from each ISR that has other members.

        Returns whether it can stop: it leads no partition that has another live replica.
        """
        self._liveness.mark_stopping(node_id, epoch)
        await self.fit_to_live()
        live = self.live()
        others = [node for node in live if node != node_id and not live[node].is_stopping]
        return not any(
            state.leader == node_id and any(node in others for node in state.replicas)
            for topic in self._image.topics.values()
            for state in topic.partitions
        )

    def note_offline_log(self, partition: TopicPartition, node_id: int, epoch: int) -> None:
        """A broker's log has failed. The log stays out of the ISR until the broker registers again.

        The next `fit_to_live` removes it.
        """
        topic = self._image.topics.get(partition.topic)
        if topic is not None:
            self._offline_logs.setdefault((topic.topic_id, partition.partition), {})[node_id] = (
                epoch
            )

    def better_leader(
        self,
        partition: TopicPartition,
        state: PartitionState,
        change: IsrChange,
        responding: Collection[int],
    ) -> Handover | None:
        """A hand-over to another leader, if the requested ISR shrink would stop writes; else None.

        Only brokers that are `responding` now can become leader, unless they were the former or the
        next leader of a hand-over in the last minute. If no such broker exists, the shrink is
        accepted.
        """
        min_insync = self.min_insync(self._image.topics[partition.topic])
        live = self.live()
        now = self._clock.monotonic()
        handed_over_at = self._handed_over_at.get(partition, {})
        for node in machine.successors(state, change, live, min_insync):
            if node not in responding:
                continue
            if now - handed_over_at.get(node, -HANDOVER_INTERVAL_S) >= HANDOVER_INTERVAL_S:
                after = machine.hand_over(state, node, live, min_insync)
                return Handover(partition, state, after)
        return None

    def min_insync(self, topic: TopicState) -> int:
        return self._rules(topic.configs).min_insync

    def record_handovers(self, handovers: Iterable[Handover]) -> None:
        now = self._clock.monotonic()
        for partition, before, after in handovers:
            _log.warning(
                "leader replaced, too few in-sync replicas: partition=%s former=%d leader=%d",
                partition,
                before.leader,
                after.leader,
            )
            handed_over_at = self._handed_over_at.setdefault(partition, {})
            handed_over_at[before.leader] = handed_over_at[after.leader] = now

    def run_soon(self, topics: Iterable[str] | None = None) -> None:
        """Check these topics, or all topics, for elections: now, or after the run in progress."""
        if topics is None or not self._writer.role.is_controller:
            self._is_due = True
        else:
            self._due_topics.update(dict.fromkeys(topics))
        if self._task is None and self._writer.role.is_controller:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._last_isr_elections.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while (self._is_due or self._due_topics) and self._writer.role.is_controller:
                due = None if self._is_due else list(self._due_topics)
                self._is_due = False
                self._due_topics.clear()
                await self._states.edit(partial(self._update_states, topics=due))
                if due is None or any(map(self._lacks_leader, due)):
                    self._last_isr_elections.start_if_possible()
        except Exception as error:  # noqa: BLE001 - no other run would elect these leaders
            bug = None if isinstance(error, ApiError) else error
            _log.warning("partition states not updated, retrying: error=%s", error, exc_info=bug)
            self._run_in(RETRY_S)
        finally:
            self._task = None

    def _run_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.run_soon)

    def _lacks_leader(self, name: str) -> bool:
        topic = self._image.topics.get(name)
        return topic is not None and any(each.leader == NO_LEADER for each in topic.partitions)

    def _update_states(self, states: States, topics: Iterable[str] | None = None) -> None:
        live = self.live()
        for name in self._image.topics if topics is None else topics:
            topic = self._image.topics.get(name)
            if topic is None:
                continue
            rules = self._rules(topic.configs)
            for index in range(len(topic.partitions)):
                self._update_state(states, TopicPartition(topic.name, index), live, rules)

    def _update_state(
        self,
        states: States,
        partition: TopicPartition,
        live: Mapping[int, LiveBroker],
        rules: TopicRules,
    ) -> None:
        state = states.get(*partition)
        assert state is not None
        offline, min_insync = self.brokers_with_offline_log(partition), rules.min_insync
        after = machine.fit_to_live(state, live, offline, min_insync)
        unclean: PartitionState | None = None
        if (after or state).leader == NO_LEADER:
            unclean = self._elect_unproven(partition, state, live, rules)
        after = unclean or after
        if state.adding or state.removing:
            after = finish_reassignment(after or state, live, min_insync) or after
        if after is not None:
            states.put(*partition, after, is_unclean=unclean is not None)

    def _elect_unproven(
        self,
        partition: TopicPartition,
        state: PartitionState,
        live: Mapping[int, LiveBroker],
        rules: TopicRules,
    ) -> PartitionState | None:
        """Elect a replica without a comparison of logs, if only one replica could be elected.

        That is the only replica for which the partition waits, or, with unclean elections, the only
        live one. If several are live, `last_isr` compares their logs first.
        """
        offline = self.brokers_with_offline_log(partition)
        state = replace(state, leader=NO_LEADER)
        after = machine.elect_only_comparable(state, live, rules.min_insync, offline)
        if after is None and rules.elects_unclean:
            is_only = len(machine.comparable(state, live, offline)) == 1
            if is_only and machine.missing(state, live, offline, rules.min_insync):
                after = machine.elect_unclean(state, live, offline)
            if after is not None:
                _log.warning(
                    "unclean election, records can be lost: partition=%s leader=%d",
                    partition,
                    after.leader,
                )
        return after

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Mapping[int, machine.LogEnd]]:
        """The ends of the logs of all live replicas that respond."""
        return await self._last_isr_elections.log_ends(partitions)

    def brokers_with_offline_log(self, partition: TopicPartition) -> Collection[int]:
        topic = self._image.topics.get(partition.topic)
        if not self._offline_logs or topic is None:
            return ()
        brokers = self._image.brokers
        return [
            node
            for node, epoch in self._offline_logs.get(
                (topic.topic_id, partition.partition), {}
            ).items()
            if node in brokers and brokers[node].epoch == epoch
        ]


async def _removal(store: Store, info: BrokerInfo) -> list[Op]:
    """Operations that delete this registration, but no later one; empty if it is deleted."""
    incarnation = layout.incarnation_path(info.node_id)
    # Read this node first. If the broker then registers again, the Check fails.
    stat = await store.exists(incarnation)
    try:
        _, registration = await store.get(layout.broker_path(info.node_id))
    except NoNode:
        return []
    if stat is None or registration.czxid != info.epoch:
        return []
    return [Check(incarnation, stat.version), Delete(layout.broker_path(info.node_id))]


class _OperationsOnce:
    """Operations for the first attempt; the elections are retried without them."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops

    def __call__(self) -> Sequence[Op]:
        ops, self._ops = self._ops, ()
        return ops
