"""Incremental fetch sessions, as the Java client uses them."""

import pytest

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.fetch_sessions import EVICTION_AGE_MS, Session, SessionCache
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResult


def request(
    session_id: int,
    epoch: int,
    *requested: tuple[bytes, int],
    forgotten: tuple[bytes, int] = (b"", 0),
) -> FetchRequest:
    made = FetchRequest()
    made.session_id, made.session_epoch = session_id, epoch
    made.partitions = [FetchPartition(key, index) for key, index in requested]
    if forgotten[0]:
        made.forgotten = [FetchPartition(*forgotten)]
    return made


def opened(cache: SessionCache, session_id: int, *requested: tuple[bytes, int]) -> Session:
    session = cache.resolve(request(0, 0, *requested), False, session_id, now_ms=0)
    assert session is not None
    return session


def result(key: bytes, index: int, *, size: int = 0, watermark: int = 5) -> FetchResult:
    made = FetchResult(key, index)
    made.size, made.high_watermark, made.log_start_offset = size, watermark, 0
    return made


def test_fetch_session_keeps_partitions_until_they_are_forgotten() -> None:
    cache = SessionCache(10)
    opened(cache, 7, (b"a", 0), (b"b", 0), (b"a", 1))
    session = cache.resolve(request(7, 1, (b"c", 0), forgotten=(b"a", 0)), False, 9, 0)
    assert session is not None
    requested = [(part.key, part.index) for part in session.requested()]
    assert requested == [(b"b", 0), (b"a", 1), (b"c", 0)]


def test_partitions_of_one_topic_get_responses_together() -> None:
    session = opened(SessionCache(10), 7, (b"a", 0), (b"b", 0), (b"a", 1))
    assert [part.key for part in session.requested()] == [b"a", b"a", b"b"]


def test_incremental_response_has_only_changes() -> None:
    session = opened(SessionCache(10), 7, (b"a", 0), (b"a", 1))
    first = [result(b"a", 0), result(b"a", 1)]
    assert session.news(first) == first
    assert session.news([result(b"a", 0), result(b"a", 1)]) == []
    moved = result(b"a", 1, watermark=6)
    assert session.news([result(b"a", 0), moved]) == [moved]


def test_incremental_response_has_errors_and_their_end() -> None:
    session = opened(SessionCache(10), 7, (b"a", 0))
    session.news([result(b"a", 0)])
    broken = result(b"a", 0)
    broken.error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert session.news([broken]) == [broken]
    healed = result(b"a", 0)
    assert session.news([healed]) == [healed]
    assert session.news([result(b"a", 0)]) == []


def test_partition_with_data_is_last_in_the_next_response() -> None:
    session = opened(SessionCache(10), 7, (b"a", 0), (b"b", 0))
    session.news([result(b"a", 0, size=100), result(b"b", 0)])
    assert [part.key for part in session.requested()] == [b"b", b"a"]


@pytest.mark.parametrize(
    ("session_id", "epoch", "by_id", "code"),
    [
        (8, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (7, 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (7, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_session_larger_than_the_limit_is_rejected(
    session_id: int, epoch: int, by_id: bool, code: ErrorCode
) -> None:
    cache = SessionCache(10)
    opened(cache, 7, (b"a", 0))
    with pytest.raises(ApiError) as refused:
        cache.resolve(request(session_id, epoch), by_id, 9, now_ms=0)
    assert refused.value.code == code


def test_the_epoch_rises_with_each_request_and_wraps_to_one() -> None:
    cache = SessionCache(10)
    session = opened(cache, 7, (b"a", 0))
    cache.resolve(request(7, 1), False, 9, 0)
    assert session.epoch == 2
    session.epoch = 0x7FFFFFFF
    cache.resolve(request(7, 0x7FFFFFFF), False, 9, 0)
    assert session.epoch == 1


def test_the_final_epoch_ends_the_session() -> None:
    cache = SessionCache(10)
    opened(cache, 7, (b"a", 0))
    assert cache.resolve(request(7, -1, (b"a", 0)), False, 9, 0) is None
    assert not cache.sessions


def test_a_hundred_thousand_new_sessions_take_no_more_than_the_slots() -> None:
    cache = SessionCache(1000)
    for number in range(1, 100_001):
        cache.resolve(request(0, 0, (b"a", 0)), False, number, now_ms=0)
    assert len(cache.sessions) == 1000
    assert cache.resolve(request(0, 0, (b"a", 0)), False, 100_001, now_ms=0) is None


def test_full_cache_evicts_the_least_recently_used_session() -> None:
    cache = SessionCache(2)
    opened(cache, 1, (b"a", 0))
    opened(cache, 2, (b"a", 0))
    cache.resolve(request(1, 1), False, 9, now_ms=EVICTION_AGE_MS)
    late = cache.resolve(request(0, 0, (b"a", 0)), False, 3, now_ms=EVICTION_AGE_MS + 1)
    assert late is not None
    assert sorted(cache.sessions) == [1, 3]
