"""Somebody who moves partitions about while things break, and where they may lie at the end."""

import asyncio
from collections.abc import Sequence

from headrace.model.errors import ErrorCode
from headrace.model.topics import PartitionState
from headrace.runtime.link import LinkBroken
from tests.simulation.clients import TOPIC, Client
from tests.simulation.history import Violation

ALTER_PARTITION_REASSIGNMENTS = 45
_REFUSALS = frozenset({ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})
Replicas = frozenset[int]


class Mover(Client):
    """Asks for one move after the other, of any partition; a request is never sent again."""

    def begin(self, stored: Sequence[PartitionState]) -> None:
        """Remember where everything is."""
        self._tasks: list[asyncio.Task[None]] = []
        self._free = asyncio.Lock()
        self._ends = [{frozenset(state.replicas)} for state in stored]
        """Where each partition may be once all is quiet, by the answers so far."""
        self._origins: list[set[Replicas]] = [set() for _ in stored]
        """Where the last move would go back to."""
        self._asked = [{frozenset(state.replicas)} for state in stored]
        self._in_doubt: set[int] = set()
        """Partitions with a request that nobody answered: it may still be carried out."""

    def move(self, index: int, target: Sequence[int] | None) -> None:
        """Begin a move, or with None give one up."""
        self._tasks.append(self.process.spawn(self._move(index, target)))

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
        # The last one may be done already, or be replaced half-way.
        self._origins[index] |= self._ends[index]
        self._ends[index] = {frozenset(target)}

    def has_heard(self) -> bool:
        """Whether every request has its answer, or its time was up."""
        return all(task.done() for task in self._tasks)

    def check_final(self, stored: Sequence[PartitionState]) -> None:
        """Each partition is where it was, or where it was told to go."""
        for task in self._tasks:
            task.result()
        for index, state in enumerate(stored):
            allowed = self._asked if index in self._in_doubt else self._ends
            if frozenset(state.replicas) not in allowed[index]:
                told = sorted(map(sorted, allowed[index]))
                raise Violation(f"partition {index} lies on {state.replicas}, not on {told}")
