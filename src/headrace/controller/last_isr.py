"""Partitions of whose last ISR every member restarted uncleanly: whose log goes furthest?

Owns the waiting and the asking (I12): up to ten seconds for all members to be back, or where they
are fewer than min.insync.replicas for all replicas; then the one with the greatest (last leader
epoch, log end) leads. Whoever else is there is asked, too, and not waited for. A log of a replica
that is no member counts only if it goes on from the furthest member's: what had been in sync is
kept. Decisions are made in `failover_machine`.

1. An answer counts only for the incarnation of the broker that gave it.
2. Without an answer of a member nobody is elected, however long it takes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from headrace.controller import failover_machine as machine
from headrace.controller.failover_machine import LAST_EPOCH, Live, LogEnd
from headrace.controller.moving_machine import finish
from headrace.controller.states import States, StateWriter
from headrace.env.clock import Clock
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError
from headrace.model.topics import NO_LEADER, TopicPartition, TopicState

WAIT_S = 10.0
"""For those that are away."""
ANSWER_S = 30.0
"""For those that are there: they may be busy reading their logs."""
RETRY_S = 0.5
_log = logging.getLogger(__name__)

AskEnds = Callable[[int, Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, LogEnd]]]
"""Asks a broker where an epoch of each partition ends in its log."""
Ends = dict[TopicPartition, dict[int, LogEnd]]


class LastIsrs:
    def __init__(
        self,
        image: ClusterImage,
        states: StateWriter,
        clock: Clock,
        live: Callable[[], Mapping[int, Live]],
        offline_on: Callable[[TopicPartition], Collection[int]],
        min_insync: Callable[[TopicState], int],
        ask_ends: AskEnds,
    ) -> None:
        self._image = image
        self._states = states
        self._clock = clock
        self._live = live
        self._offline_on = offline_on
        self._min_insync = min_insync
        self._ask_ends = ask_ends
        self._since: dict[TopicPartition, float] = {}
        """When the first member of each was back."""
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Begin to wait where there is something to wait for."""
        if self._task is None and self._waiting():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while waiting := self._waiting():
                due = [where for where in waiting if self._is_complete(where)]
                if due:
                    await self._elect(due)
                # New members are noticed within this time; it is no use to hurry.
                await asyncio.sleep(RETRY_S)
        except ApiError as error:
            _log.warning("The controller could not elect from the last ISR: %s", error)
        finally:
            self._task = None
            self._since.clear()

    def _waiting(self) -> list[TopicPartition]:
        live = self._live()
        now = self._clock.monotonic()
        before, self._since = self._since, {}
        for topic in self._image.topics.values():
            for index, state in enumerate(topic.partitions):
                if state.leader != NO_LEADER:
                    continue
                where = TopicPartition(topic.name, index)
                if machine.awaits_members(state, live, self._offline_on(where)):
                    self._since[where] = before.get(where, now)
        return list(self._since)

    def _asked(self, where: TopicPartition) -> list[int]:
        """Who is there and can be asked."""
        state = self._image.partition(*where)
        if state is None:
            return []
        return machine.candidates(state, self._live(), self._offline_on(where))

    def _awaited(self, where: TopicPartition) -> list[int]:
        """Who should answer, whether it is there or not."""
        state = self._image.partition(*where)
        if state is None:
            return []
        min_insync = self._min_insync(self._image.topics[where.topic])
        offline = self._offline_on(where)
        return [node for node in machine.awaited(state, min_insync) if node not in offline]

    def _is_complete(self, where: TopicPartition) -> bool:
        return set(self._awaited(where)) <= set(self._asked(where)) or self._waited(where, WAIT_S)

    def _waited(self, where: TopicPartition, seconds: float) -> bool:
        return self._clock.monotonic() - self._since[where] >= seconds

    async def _elect(self, due: list[TopicPartition]) -> None:
        live = self._live()
        ends = await self._ask(
            {where: dict.fromkeys(self._asked(where), LAST_EPOCH) for where in due}
        )
        # Who is silent may have the longest log: it is asked again while there is time.
        known = {where: ends[where] for where in due if self._is_heard(where, ends[where])}
        await self._drop_parted(known)
        if known:
            await self._states.edit(lambda states: self._decide(states, known, live))

    async def _ask(self, epochs: dict[TopicPartition, dict[int, int]]) -> Ends:
        """Where these epochs end on these brokers, of those that answer."""
        asked: dict[int, dict[TopicPartition, int]] = {}
        for where, nodes in epochs.items():
            for node, epoch in nodes.items():
                asked.setdefault(node, {})[where] = epoch
        answers = await asyncio.gather(*(self._ask_ends(n, asked[n]) for n in asked))
        ends: Ends = {where: {} for where in epochs}
        for node, answer in zip(asked, answers, strict=True):
            for where, end in answer.items():
                ends[where][node] = end
        return ends

    async def _drop_parted(self, known: Ends) -> None:
        """Leave out replicas whose logs lack something of the furthest member's."""
        bases: dict[TopicPartition, LogEnd] = {}
        for where, ends in known.items():
            state = self._image.partition(*where)
            base = None if state is None else machine.furthest_member(state, ends)
            if state is not None and base is not None:
                bases[where] = base
        others = {
            where: {node: base[0] for node, end in known[where].items() if end > base}
            for where, base in bases.items()
        }
        found = await self._ask(others)
        for where, nodes in others.items():
            for node in nodes:
                answer = found[where].get(node)
                if answer is None or not machine.goes_on_from(bases[where], answer):
                    del known[where][node]

    def _is_heard(self, where: TopicPartition, ends: Mapping[int, LogEnd]) -> bool:
        """Whether everybody has answered for whom it is worth waiting."""
        missing = [node for node in self._awaited(where) if node not in ends]
        if self._waited(where, WAIT_S):
            present = self._asked(where)
            missing = [node for node in missing if node in present]
        return not missing or self._waited(where, ANSWER_S)

    def _decide(self, states: States, ends: Ends, asked: Mapping[int, Live]) -> None:
        live = self._live()
        for where, known in ends.items():
            state = states.get(*where)
            if state is None or state.leader != NO_LEADER:
                continue
            if any(node not in live or live[node].epoch != asked[node].epoch for node in known):
                continue  # Another life of it is asked next.
            after = machine.recover(state, live, known, self._offline_on(where))
            if after is not None:
                _log.warning(
                    "Every in-sync replica of %s restarted uncleanly; broker %d leads it now.",
                    where,
                    after.leader,
                )
                min_insync = self._min_insync(self._image.topics[where.topic])
                states.put(*where, finish(after, live, min_insync) or after)
