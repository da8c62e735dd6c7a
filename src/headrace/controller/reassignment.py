"""Starts reassignments, and elects leaders by request, on the controller.

`failover_machine` and `reassignment_machine` decide. `failover` completes the reassignments, also
those that a former controller has started.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from headrace.controller import failover_machine as machine
from headrace.controller import reassignment_machine
from headrace.controller.failover import Failover
from headrace.controller.state_writer import States, StateWriter
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicPartition

Outcomes = dict[TopicPartition, ApiError | None]
_log = logging.getLogger(__name__)


class Reassignments:
    def __init__(self, image: ClusterImage, states: StateWriter, failover: Failover) -> None:
        self._image = image
        self._states = states
        self._failover = failover

    async def elect(
        self, partitions: Collection[TopicPartition] | None, *, is_unclean: bool
    ) -> Outcomes:
        """Elect the preferred replicas, or with `is_unclean` any replica if no leader exists.

        If `partitions` is None, of all partitions.
        """
        requested = self._all_partitions() if partitions is None else partitions
        ends: Mapping[TopicPartition, Mapping[int, machine.LogEnd]] = {}
        if is_unclean:
            ends = await self._failover.log_ends(
                [each for each in requested if self._lacks_leader(each)]
            )

        def decide(states: States) -> Outcomes:
            outcomes: Outcomes = {}
            for partition in requested:
                after = self._elected(states, partition, is_unclean)
                if isinstance(after, PartitionState):
                    states.put(*partition, after)
                    outcomes[partition] = None
                elif is_unclean and self._elect_unclean(states, partition, ends.get(partition, {})):
                    outcomes[partition] = None
                elif partitions is not None or after is not ErrorCode.ELECTION_NOT_NEEDED:
                    outcomes[partition] = ApiError(after)
            return outcomes

        return await self._states.edit(decide)

    def _elected(
        self, states: States, partition: TopicPartition, is_unclean: bool
    ) -> PartitionState | ErrorCode:
        state = states.get(*partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        live, offline = self._failover.live(), self._failover.brokers_with_offline_log(partition)
        if not is_unclean:
            return machine.elect_preferred(state, live, offline)
        if state.leader in live:
            return ErrorCode.ELECTION_NOT_NEEDED
        min_insync = self._failover.min_insync(self._image.topics[partition.topic])
        after = machine.fit_to_live(state, live, offline, min_insync) or state
        return after if after.leader in live else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE

    def _elect_unclean(
        self, states: States, partition: TopicPartition, ends: Mapping[int, machine.LogEnd]
    ) -> bool:
        state = states.get(*partition)
        live = self._failover.live()
        if state is None or state.leader in live:
            return False
        after = machine.elect_unclean(
            state, live, self._failover.brokers_with_offline_log(partition), ends
        )
        if after is None:
            return False
        _log.warning(
            "unclean election by request, records can be lost: partition=%s leader=%d logs=%s",
            partition,
            after.leader,
            dict(sorted(ends.items())),
        )
        states.put(*partition, after, is_unclean=True)
        return True

    def _lacks_leader(self, partition: TopicPartition) -> bool:
        state = self._image.partition(*partition)
        return state is not None and state.leader not in self._failover.live()

    async def balance(self, imbalance_max: float) -> int:
        """Elect the preferred replicas of brokers that lead too few of their partitions.

        A broker's partitions are those whose preferred replica it is. Returns the number of
        elections.
        """
        led_by_others: dict[int, list[TopicPartition]] = {}
        preferring: dict[int, int] = {}
        for partition in self._all_partitions():
            state = self._image.topics[partition.topic].partitions[partition.partition]
            preferred = state.replicas[0]
            preferring[preferred] = preferring.get(preferred, 0) + 1
            if state.leader != preferred:
                led_by_others.setdefault(preferred, []).append(partition)
        live = self._failover.live()
        wanted = [
            partition
            for node, partitions in led_by_others.items()
            if node in live and len(partitions) > imbalance_max * preferring[node]
            for partition in partitions
        ]
        outcomes = await self.elect(wanted, is_unclean=False) if wanted else {}
        return sum(error is None for error in outcomes.values())

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, keeps_factor: bool
    ) -> Outcomes:
        """Start to reassign each partition to its target replicas; a target of None cancels."""

        def decide(states: States) -> Outcomes:
            outcomes: Outcomes = {}
            for partition, target in targets.items():
                outcomes[partition] = None
                try:
                    self._begin(states, partition, target, keeps_factor)
                except ApiError as error:
                    outcomes[partition] = error
            return outcomes

        outcomes = await self._states.edit(decide)
        # A reassignment that adds no replica is already complete.
        self._failover.run_soon()
        return outcomes

    def _begin(
        self,
        states: States,
        partition: TopicPartition,
        target: Sequence[int] | None,
        keeps_factor: bool,
    ) -> None:
        state = states.get(*partition)
        if state is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        min_insync = self._failover.min_insync(self._image.topics[partition.topic])
        if target is None:
            after = reassignment_machine.cancel(state, min_insync)
        else:
            after = reassignment_machine.begin(
                state, target, self._image.brokers, min_insync, keeps_factor=keeps_factor
            )
        if (after.replicas, after.adding, after.removing) != (
            state.replicas,
            state.adding,
            state.removing,
        ):
            states.put(*partition, after)

    def _all_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, index)
            for topic in self._image.topics.values()
            for index in range(len(topic.partitions))
        ]
