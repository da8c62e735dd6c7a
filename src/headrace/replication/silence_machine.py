"""Decides when a leader acts on silent followers: it hands over, or removes them from the ISR.

Pure: time is an argument. A follower sends a fetch at least every replica.fetch.wait.max.ms (0.5 s
by default). A follower that sent none for six times as long, but at least SILENCE_S_MIN, is silent:
it cannot reach this broker, or is stopped.

If most of the ISR is silent, this leader hands over: it cannot commit records, but a leader among
the silent members might be able to. If fewer are silent, they leave the ISR, and the leader commits
without them. If too few members would remain for that, the leader also hands over, because another
member might reach replicas that this one does not. Each action is a request to the controller. The
ISR does not change before its response.

1. Followers must be silent in two checks, so that a new leader waits for the first fetches.
2. A check that comes late shows that this process was paused. Silence is then counted from now.
3. A broker hands over a partition at most once in HAND_OVER_INTERVAL_S, so that leadership does not
   follow an unstable link. An attempt that the controller rejected is repeated after RETRY_S.
4. Silent followers are removed only if records wait for them, and if min.insync.replicas members
   remain.
5. The silence of a follower that never sent a fetch begins when a record first waits for it. Kafka
   gives such a follower all of replica.lag.time.max.ms.
"""

from collections.abc import Collection
from enum import Enum

SILENCE_S_MIN = 3.0
CHECK_S = 1.0
RETRY_S = 5.0
HAND_OVER_INTERVAL_S = 60.0
_LATE_CHECKS = 2
_SILENT_FETCHES = 6

Key = tuple[str, int]


class Action(Enum):
    NONE = 0
    HAND_OVER = 1
    REMOVE_SILENT = 2


class FollowerSilence:
    def __init__(self, fetch_wait_s: float) -> None:
        self._silence_s = max(SILENCE_S_MIN, _SILENT_FETCHES * fetch_wait_s)
        self._fetched: dict[int, float] = {}
        """When each follower sent its last fetch."""
        self._checked = 0.0
        """When the last check began."""
        self._resumed = 0.0
        """When this process was last found to have been paused."""
        self._silent: frozenset[int] = frozenset()
        """The followers that are silent in this check."""
        self.unreached: frozenset[int] = frozenset()
        """The followers that were silent in the last two checks."""
        self.is_isolated = False
        """Whether `unreached` has most of the brokers that follow partitions of this one."""
        self._suspected_before: dict[Key, int] = {}
        """Partitions with a silent member in the last check, with their leader epoch."""
        self._suspected_now: dict[Key, int] = {}
        """The same for the present check."""
        self._attempts: dict[Key, tuple[int, float]] = {}
        """The leader epoch and the time of the last attempt to change each partition."""

    def fetched(self, node_id: int, now: float) -> None:
        self._fetched[node_id] = now

    def expect(self, node_id: int, now: float) -> None:
        """A record waits for this follower. If it never sent a fetch, it is silent from now on."""
        self._fetched.setdefault(node_id, now)

    def tracks(self, node_id: int) -> bool:
        """Whether a fetch from this broker was received, or is expected."""
        return node_id in self._fetched

    def check(self, registered: Collection[int], now: float) -> bool:
        """Begin a check; returns whether any registered follower is silent."""
        if now - self._checked > _LATE_CHECKS * CHECK_S:
            self._resumed = now
        self._checked = now
        self._fetched = {
            node: fetched_at for node, fetched_at in self._fetched.items() if node in registered
        }
        before = self._silent
        self._silent = frozenset(
            node
            for node, fetched_at in self._fetched.items()
            if now - max(fetched_at, self._resumed) >= self._silence_s
        )
        self.unreached = self._silent & before
        self.is_isolated = 2 * len(self.unreached) > len(self._fetched)
        self._suspected_before, self._suspected_now = self._suspected_now, {}
        self._attempts = {
            key: attempt
            for key, attempt in self._attempts.items()
            if now - attempt[1] < HAND_OVER_INTERVAL_S
        }
        return bool(self._silent)

    def decide(
        self,
        key: Key,
        leader_epoch: int,
        others: Collection[int],
        replicas: int,
        needed: int,
        now: float,
        *,
        is_waiting: bool,
    ) -> Action:
        """The action of a leader for one partition. Must be called once per check.

        `others` are the other members of the ISR. The partition has `replicas` replicas, of which
        `needed` must be in sync. `is_waiting` is True if records wait to be committed.
        """
        silent = sum(node in self._silent for node in others)
        if not silent:
            return Action.NONE
        self._suspected_now[key] = leader_epoch
        if self._suspected_before.get(key) != leader_epoch:
            return Action.NONE
        last_epoch, attempted_at = self._attempts.get(
            key, (leader_epoch, now - HAND_OVER_INTERVAL_S)
        )
        half_responds = 2 * silent <= len(others) + 1
        if half_responds and len(others) + 1 - silent >= needed:
            action, wait_s = Action.REMOVE_SILENT, RETRY_S
            is_useful = is_waiting
        else:
            action = Action.HAND_OVER
            wait_s = RETRY_S if last_epoch == leader_epoch else HAND_OVER_INTERVAL_S
            is_useful = replicas > needed and (is_waiting or not half_responds)
        if not is_useful or now - attempted_at < wait_s:
            return Action.NONE
        self._attempts[key] = (leader_epoch, now)
        return action
