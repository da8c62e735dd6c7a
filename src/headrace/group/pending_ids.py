"""Member ids of all groups that were assigned and not used yet (KIP-394).

Any client can request one, so they are limited in number and in bytes. The oldest are deleted
first, because a normal client uses its id within milliseconds.
"""

from headrace.group.coordinator_kind import GroupShardRuntime

COUNT_MAX = 20_000
BYTES_MAX = 16 * 1024 * 1024
_OVERHEAD_BYTES = 500


class PendingIds:
    def __init__(self) -> None:
        self._shards: dict[tuple[str, str], GroupShardRuntime] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._shards)

    def add(self, shard_runtime: GroupShardRuntime, group_id: str, member_id: str) -> None:
        self._shards[group_id, member_id] = shard_runtime
        self._bytes += _size(group_id, member_id)

    def discard(self, group_id: str, member_id: str) -> None:
        if self._shards.pop((group_id, member_id), None) is not None:
            self._bytes -= _size(group_id, member_id)

    def pop_surplus(self) -> tuple[GroupShardRuntime, str, str] | None:
        """Remove and return the oldest id if a limit is exceeded; else return None."""
        if len(self._shards) <= COUNT_MAX and self._bytes <= BYTES_MAX:
            return None
        group_id, member_id = next(iter(self._shards))
        shard_runtime = self._shards[group_id, member_id]
        self.discard(group_id, member_id)
        return shard_runtime, group_id, member_id


def _size(group_id: str, member_id: str) -> int:
    return len(group_id) + len(member_id) + _OVERHEAD_BYTES
