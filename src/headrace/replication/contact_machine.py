"""Decides when a leader that its followers no longer reach hands over its partitions.

Pure: time is an argument. A follower sends a fetch at least every replica.fetch.wait.max.ms (0.5 s
by default). One that sent none for six times as long, but at least SILENCE_S_MIN, cannot reach this
broker, or is stopped. If that is true of most of the ISR, the others can commit records and this
leader cannot.

1. A partition must be cut off in two checks, so that a new leader waits for the first fetches.
2. A check that comes late shows that this process was paused. Silence is then counted from now.
3. A broker hands over a partition at most once in AGAIN_S, so that leadership does not follow an
   unstable link. An attempt that the controller rejected is repeated after RETRY_S.
"""

from collections.abc import Collection

SILENCE_S_MIN = 3.0
CHECK_S = 1.0
RETRY_S = 5.0
AGAIN_S = 60.0
_LATE_CHECKS = 2
_SILENT_FETCHES = 6

Key = tuple[str, int]


class Contacts:
    def __init__(self, fetch_wait_s: float) -> None:
        self._silence_s = max(SILENCE_S_MIN, _SILENT_FETCHES * fetch_wait_s)
        self._fetched: dict[int, float] = {}
        """When each follower sent its last fetch."""
        self._checked = 0.0
        self._resumed = 0.0
        self._silent: frozenset[int] = frozenset()
        self._suspects: dict[Key, int] = {}
        """Partitions that were cut off in the last check, with their leader epoch."""
        self._found: dict[Key, int] = {}
        self._attempts: dict[Key, tuple[int, float]] = {}
        """The leader epoch and the time of the last attempt to hand over each partition."""

    def fetched(self, node_id: int, now: float) -> None:
        self._fetched[node_id] = now

    def check(self, registered: Collection[int], now: float) -> bool:
        """Begin a check; returns whether any registered follower is silent."""
        if now - self._checked > _LATE_CHECKS * CHECK_S:
            self._resumed = now
        self._checked = now
        self._fetched = {node: at for node, at in self._fetched.items() if node in registered}
        self._silent = frozenset(
            node
            for node, at in self._fetched.items()
            if now - max(at, self._resumed) >= self._silence_s
        )
        self._suspects, self._found = self._found, {}
        self._attempts = {
            key: attempt for key, attempt in self._attempts.items() if now - attempt[1] < AGAIN_S
        }
        return bool(self._silent)

    def hands_over(
        self, key: Key, leader_epoch: int, others: Collection[int], needed: int, now: float
    ) -> bool:
        """Whether a leader hands over a partition to `others`, the other members of its ISR.

        `needed` is how many replicas must be in sync. Call it once per check.
        """
        silent = sum(node in self._silent for node in others)
        if 2 * silent <= len(others) + 1 or len(others) < needed:
            return False
        self._found[key] = leader_epoch
        if self._suspects.get(key) != leader_epoch:
            return False
        last_epoch, at = self._attempts.get(key, (leader_epoch, now - RETRY_S))
        if now - at < (RETRY_S if last_epoch == leader_epoch else AGAIN_S):
            return False
        self._attempts[key] = (leader_epoch, now)
        return True
