"""A client that reassigns partitions during faults, and checks their replicas at the end."""

import asyncio
from collections.abc import Sequence

from headrace.model.errors import ErrorCode
from headrace.model.topics import PartitionState, TopicPartition
from headrace.runtime.link import LinkBroken
from tests.simulation.clients import TOPIC, Client
from tests.simulation.history import Violation

ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 43, 45
_REFUSALS = frozenset({ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})
Replicas = frozenset[int]


class Mover(Client):
    """Sends one reassignment at a time, of any partition. A request is never repeated."""

    def begin(self, stored: Sequence[PartitionState]) -> None:
        """Remember the replicas of each partition."""
        self._tasks: list[asyncio.Task[None]] = []
        self._free = asyncio.Lock()
        self._ends = [{frozenset(state.replicas)} for state in stored]
        """The replicas that each partition can have at the end, by the responses so far."""
        self._origins: list[set[Replicas]] = [set() for _ in stored]
        """The replicas after a cancellation of the last reassignment."""
        self._asked = [{frozenset(state.replicas)} for state in stored]
        self._in_doubt: set[int] = set()
        """Partitions with a request without a response: it can take effect later."""

    def move(self, index: int, target: Sequence[int] | None) -> None:
        """Begin a reassignment; None cancels it."""
        self._tasks.append(self.process.spawn(self._move(index, target)))

    def elect_preferred(self, where: TopicPartition) -> None:
        """Elect the first replica, if it is in sync."""
        self._tasks.append(self.process.spawn(self._elect(where)))

    async def _elect(self, where: TopicPartition) -> None:
        partitions = [{"topic": where.topic, "partitions": [where.partition]}]
        request = {"election_type": 0, "topic_partitions": partitions, "timeout_ms": 1500}
        await self.ask_once(self.world.random.choice(self._hosts), ELECT_LEADERS, 2, request)

    async def _move(self, index: int, target: Sequence[int] | None) -> None:
        async with self._free:
            if target is not None:
                self._asked[index].add(frozenset(target))
            code = await self._ask_once(index, target)
            if code is ErrorCode.NONE:
                self._carried_out(index, target)
            elif code not in _REFUSALS:
                self._in_doubt.add(index)

    async def _ask_once(self, index: int, target: Sequence[int] | None) -> ErrorCode | None:
        partitions = [{"partition_index": index, "replicas": target}]
        request = {"timeout_ms": 1500, "topics": [{"name": TOPIC, "partitions": partitions}]}
        host = self.world.random.choice(self._hosts)
        try:
            answer = await self.ask(host, ALTER_PARTITION_REASSIGNMENTS, 0, request)
        except (LinkBroken, TimeoutError):
            return None
        if answer["error_code"] != ErrorCode.NONE:
            return None
        return ErrorCode(answer["responses"][0]["partitions"][0]["error_code"])

    def _carried_out(self, index: int, target: Sequence[int] | None) -> None:
        if target is None:
            self._ends[index] = set(self._origins[index])
            return
        # The last reassignment can be complete, or be replaced before that.
        self._origins[index] |= self._ends[index]
        self._ends[index] = {frozenset(target)}

    def has_heard(self) -> bool:
        """Whether every request has a response, or has timed out."""
        return all(task.done() for task in self._tasks)

    def check_final(self, stored: Sequence[PartitionState]) -> None:
        """Each partition has its first replicas, or those of a reassignment."""
        for task in self._tasks:
            task.result()
        for index, state in enumerate(stored):
            allowed = self._asked if index in self._in_doubt else self._ends
            if frozenset(state.replicas) not in allowed[index]:
                expected = sorted(map(sorted, allowed[index]))
                raise Violation(f"partition {index} has {state.replicas}, not one of {expected}")
