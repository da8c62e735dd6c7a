"""Incremental fetch sessions (KIP-227): a consumer omits partitions that have not changed.

Pure: time and randomness are arguments. The cache has at most `sessions_max` sessions and
PARTITIONS_MAX partitions. If it is full, a consumer continues with full fetches (session id 0). The
Java client and franz-go use sessions, librdkafka does not.

1. The next epoch of a session is in 1..2^31-1; 0 only opens a session.
2. A session identifies topics either by id or by name, as its first request did.
3. partitions_count is the number of partitions in all sessions. After each request it is at most
   PARTITIONS_MAX.
"""

from typing import final

from mypy_extensions import i64

from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResult

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTION_AGE_MS = 120_000
PARTITIONS_MAX = 100_000
_EPOCH_MAX = 0x7FFFFFFF


@final
class CachedPartition:
    """The last request and the last response for a partition."""

    def __init__(self, part: FetchPartition) -> None:
        self.part = part
        self.high_watermark: i64 = -1
        self.log_start_offset: i64 = -1
        self.has_error = False

    def changed_by(self, result: FetchResult) -> bool:
        """Whether the result differs from the last response; stores it as the last one."""
        is_changed = (
            result.size > 0
            or result.error != 0
            or self.has_error
            or result.diverging_epoch >= 0
            or result.preferred_read_replica >= 0
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
        )
        self.has_error = result.error != 0
        self.high_watermark = result.high_watermark
        self.log_start_offset = result.log_start_offset
        return is_changed


@final
class Session:
    def __init__(self, session_id: i64, by_id: bool, now_ms: i64) -> None:
        self.session_id: i64 = session_id
        self.by_id = by_id
        self.epoch: i64 = 1
        self.used_ms: i64 = now_ms
        self.partitions: dict[tuple[bytes, int], CachedPartition] = {}

    def update(self, request: FetchRequest) -> None:
        for part in request.partitions:
            cached = self.partitions.get((part.key, part.index))
            if cached is None:
                self.partitions[(part.key, part.index)] = CachedPartition(part)
            else:
                cached.part = part
        for part in request.forgotten:
            self.partitions.pop((part.key, part.index), None)

    def requested(self) -> list[FetchPartition]:
        """The partitions in the order of reading, grouped by topic."""
        topics: dict[bytes, list[FetchPartition]] = {}
        for cached in self.partitions.values():
            topics.setdefault(cached.part.key, []).append(cached.part)
        return [part for partitions in topics.values() for part in partitions]

    def news(self, results: list[FetchResult]) -> list[FetchResult]:
        """The changed results. Partitions with records move to the end of the reading order."""
        reported: list[FetchResult] = []
        for result in results:
            key = (result.key, result.index)
            cached = self.partitions.get(key)
            if cached is None or cached.changed_by(result):
                reported.append(result)
            if cached is not None and result.size > 0:
                del self.partitions[key]
                self.partitions[key] = cached
        return reported


@final
class SessionCache:
    def __init__(self, sessions_max: i64) -> None:
        self.sessions_max: i64 = sessions_max
        self.sessions: dict[int, Session] = {}
        """Least recently used first."""
        self.partitions_count: i64 = 0

    def resolve(
        self, request: FetchRequest, by_id: bool, fresh_id: i64, now_ms: i64
    ) -> Session | None:
        """The session that this request continues or opens; None for a plain full fetch."""
        if request.session_epoch == FINAL_EPOCH:
            self._close(request.session_id)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._close(request.session_id)
            return self._open(request, by_id, fresh_id, now_ms)
        return self._continue(request, by_id, now_ms)

    def _open(
        self, request: FetchRequest, by_id: bool, fresh_id: i64, now_ms: i64
    ) -> Session | None:
        count: i64 = len(request.partitions)
        if fresh_id in self.sessions or not self._make_room(count, now_ms):
            return None
        session = Session(fresh_id, by_id, now_ms)
        session.update(request)
        self.sessions[fresh_id] = session
        self.partitions_count += len(session.partitions)
        return session

    def _close(self, session_id: i64) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.partitions_count -= len(session.partitions)

    def _make_room(self, count: i64, now_ms: i64) -> bool:
        """Close unused sessions until one more fits; returns whether it does."""
        while (
            len(self.sessions) >= self.sessions_max
            or self.partitions_count + count > PARTITIONS_MAX
        ):
            oldest: Session | None = None
            for session in self.sessions.values():
                oldest = session
                break
            if oldest is None or now_ms - oldest.used_ms <= EVICTION_AGE_MS:
                return False
            self._close(oldest.session_id)
        return True

    def _continue(self, request: FetchRequest, by_id: bool, now_ms: i64) -> Session:
        session = self.sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self.partitions_count -= len(session.partitions)
        session.update(request)
        self.partitions_count += len(session.partitions)
        if self.partitions_count > PARTITIONS_MAX:
            # The consumer requests a new session, gets none, and continues with full fetches.
            self._close(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        del self.sessions[session.session_id]
        self.sessions[session.session_id] = session
        return session
