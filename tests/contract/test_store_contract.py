"""Contract of all coordination stores: nodes, order, multi, sessions, outcomes.

These tests use only the methods of the port and the clock of the store.
"""

import asyncio
import time

import pytest

from headrace.coordination.port import (
    REQUEST_BYTES_MAX,
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    EventType,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SessionExpired,
    SessionState,
    Set,
    StoreError,
    TooLarge,
    UnknownOutcome,
)
from headrace.coordination.zookeeper import ZooKeeperStore
from tests.contract.ensembles import Ensemble, Seen, States, live


@live
async def test_a_created_node_is_read_back_with_its_stat(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    created = await store.create("/a", b"one")
    data, stat = await store.get("/a")
    assert data == b"one"
    assert stat == created
    assert (stat.version, stat.cversion, stat.ephemeral_owner) == (0, 0, 0)
    assert stat.czxid == stat.mzxid == stat.pzxid > 0
    assert await store.exists("/a") == stat
    has_own_clock = isinstance(store, ZooKeeperStore)
    assert has_own_clock == (abs(stat.created_ms - time.time() * 1000) < 60_000)


@live
async def test_missing_node_raises_no_node(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    assert await store.exists("/a") is None
    for attempt in (
        store.get("/a"),
        store.children("/a"),
        store.set("/a", b""),
        store.delete("/a"),
        store.create("/a/b"),
    ):
        with pytest.raises(NoNode):
            await attempt


@live
async def test_a_node_is_created_once(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a", b"first")
    with pytest.raises(NodeExists):
        await store.create("/a", b"second")
    assert (await store.get("/a"))[0] == b"first"


@live
async def test_set_compares_and_increments_the_version(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    created = await store.create("/a", b"0")
    first = await store.set("/a", b"1", 0)
    assert (first.version, first.czxid) == (1, created.czxid)
    assert first.mzxid > created.mzxid
    with pytest.raises(BadVersion):
        await store.set("/a", b"lost", 0)
    assert (await store.set("/a", b"2")).version == 2
    assert (await store.get("/a"))[0] == b"2"


@live
async def test_delete_compares_the_version_and_rejects_nodes_with_children(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    with pytest.raises(BadVersion):
        await store.delete("/a/b", 7)
    await store.delete("/a/b", 0)
    await store.delete("/a")
    assert await store.exists("/a") is None


@live
async def test_children_are_sorted_and_change_the_stat_of_the_parent(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    parent = await store.create("/a")
    for name in ("c", "a", "b"):
        last = await store.create(f"/a/{name}")
    assert await store.children("/a") == ["a", "b", "c"]
    stat = await store.exists("/a")
    assert stat is not None
    assert (stat.pzxid, stat.version, stat.mzxid) == (last.czxid, 0, parent.mzxid)
    assert stat.cversion == 3
    assert "a" in await store.children("/")


@live
async def test_recreated_node_has_another_creation_id(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    first = await store.create("/a")
    await store.delete("/a")
    second = await store.create("/a")
    assert second.czxid > first.czxid
    assert second.version == first.version == 0


@live
async def test_zxids_rise_over_all_sessions_and_restarts(ensemble: Ensemble) -> None:
    seen: list[int] = []
    for life in range(3):
        one, two = await ensemble.session(), await ensemble.session()
        for turn, store in enumerate((one, two, one)):
            seen.append((await store.create(f"/n{life}{turn}", ephemeral=turn == 2)).czxid)
        await ensemble.stop()
        await ensemble.start()
    assert seen == sorted(set(seen))


@live
async def test_nodes_survive_a_restart_of_the_store(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a", b"x")
    await store.create("/a/b", bytes(range(256)))
    stat = await store.set("/a", b"y")
    await store.create("/gone")
    await store.delete("/gone")
    before = await store.exists("/a")
    await ensemble.stop()
    await ensemble.start()
    store = await ensemble.session()
    data, after = await store.get("/a")
    assert data == b"y"
    assert after == before
    assert after.version == stat.version
    assert (await store.get("/a/b"))[0] == bytes(range(256))
    assert await store.exists("/gone") is None


@live
async def test_malformed_path_raises_value_error(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    for path in ("", "a", "/a/", "//a", "/a/../b", "/./a", "/a\0"):
        with pytest.raises(ValueError, match="path"):
            await store.create(path)
        with pytest.raises(ValueError, match="path"):
            await store.get(path)


@live
async def test_a_request_too_large_for_the_store_is_rejected_before_it_is_sent(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    with pytest.raises(TooLarge):
        await store.create("/a", bytes(REQUEST_BYTES_MAX))
    half = bytes(REQUEST_BYTES_MAX // 2)
    with pytest.raises(TooLarge):
        await store.multi([Create("/a", half), Create("/b", half)])
    assert await store.exists("/a") is None
    await store.create("/a", half)
    assert (await store.get("/a"))[0] == half


@live
async def test_read_sees_earlier_writes_of_its_session(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a", b"0")
    writes = [asyncio.ensure_future(store.set("/a", b"%d" % turn)) for turn in range(1, 20)]
    await asyncio.sleep(0)
    assert (await store.get("/a"))[0] == b"19"
    assert [stat.version for stat in await asyncio.gather(*writes)] == list(range(1, 20))


@live
async def test_of_concurrent_writers_of_one_version_one_wins(ensemble: Ensemble) -> None:
    stores = [await ensemble.session() for _ in range(5)]
    await stores[0].create("/a")
    outcomes = await asyncio.gather(
        *(store.set("/a", b"x", 0) for store in stores), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["BadVersion"] * 4 + ["Stat"]


@live
async def test_after_sync_a_session_sees_acknowledged_writes_of_another(ensemble: Ensemble) -> None:
    one, two = await ensemble.session(), await ensemble.session()
    for turn in range(10):
        await one.create(f"/n{turn}")
        await two.sync()
        assert await two.exists(f"/n{turn}") is not None


@live
async def test_cancelled_request_does_not_affect_later_ones(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    task = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    task.cancel()
    await store.create("/b")
    await store.sync()
    assert await store.exists("/a") is not None


@live
async def test_multi_is_atomic_under_one_zxid(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/epoch", b"1")
    await store.create("/old")
    results = await store.multi(
        [
            Check("/epoch", 0),
            Create("/a", b"a"),
            Create("/a/b", b"b"),
            Set("/epoch", b"2", 0),
            Delete("/old", 0),
        ]
    )
    assert [type(result).__name__ for result in results] == [*["NoneType"] * 3, "Stat", "NoneType"]
    (_, a), (_, b), (data, epoch) = [await store.get(p) for p in ("/a", "/a/b", "/epoch")]
    assert data == b"2"
    assert a.czxid == b.czxid == epoch.mzxid
    assert results[3] == epoch
    assert await store.exists("/old") is None


FAILING: list[tuple[str, Op, type[StoreError]]] = [
    ("check", Check("/there", 9), BadVersion),
    ("check of nothing", Check("/missing"), NoNode),
    ("create", Create("/there"), NodeExists),
    ("create without a parent", Create("/missing/child"), NoNode),
    ("set", Set("/there", b"", 9), BadVersion),
    ("delete", Delete("/there", 9), BadVersion),
    ("delete of a parent", Delete("/parent"), NotEmpty),
]


@live
async def test_failed_multi_changes_nothing_and_returns_the_failed_operation(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    for path in ("/there", "/parent", "/parent/child", "/victim"):
        await store.create(path, b"as it was")
    before = [await store.get(path) for path in ("/", "/there", "/parent", "/victim")]
    for what, op, kind in FAILING:
        with pytest.raises(MultiFailed) as failed:
            await store.multi(
                [
                    Create("/new"),
                    Create("/new/below"),
                    Set("/there", b"changed"),
                    Set("/there", b"again"),
                    Delete("/victim"),
                    Create("/victim", b"another"),
                    op,
                    Create("/never"),
                ]
            )
        assert (failed.value.index, type(failed.value.error)) == (6, kind), what
        assert failed.value.op == op
        assert [await store.get(p) for p in ("/", "/there", "/parent", "/victim")] == before, what
        assert await store.exists("/new") is None
        assert await store.exists("/never") is None


@live
async def test_later_operations_of_a_multi_see_the_earlier_ones(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.multi([Create("/a"), Check("/a", 0), Set("/a", b"1", 0), Check("/a", 1)])
    await store.multi([Delete("/a", 1), Create("/a", b"2"), Check("/a", 0)])
    assert (await store.get("/a"))[0] == b"2"


@live
async def test_the_write_of_a_fenced_writer_gets_bad_version(ensemble: Ensemble) -> None:
    zombie, successor = await ensemble.session(), await ensemble.session()
    await zombie.create("/controller_epoch", b"1")
    await zombie.create("/state", b"old")
    await zombie.create("/controller", ephemeral=True)
    await successor.delete("/controller")
    await successor.multi(
        [Create("/controller", ephemeral=True), Set("/controller_epoch", b"2", 0)]
    )
    with pytest.raises(MultiFailed) as failed:
        await zombie.multi([Check("/controller_epoch", 0), Set("/state", b"zombie's")])
    assert failed.value.index == 0
    assert isinstance(failed.value.error, BadVersion)
    assert (await zombie.get("/state"))[0] == b"old"


@live
async def test_ephemeral_has_its_owner_and_is_deleted_with_the_session(
    ensemble: Ensemble,
) -> None:
    one, two = await ensemble.session(), await ensemble.session()
    assert one.session_id != two.session_id
    stat = await one.create("/e", b"", ephemeral=True)
    await one.create("/p")
    await two.create("/mine", ephemeral=True)
    assert stat.ephemeral_owner == one.session_id
    await two.sync()
    seen = Seen()
    assert await two.exists("/e", seen) is not None
    await one.close()
    assert await seen.wait(1) == [(EventType.DELETED, "/e")]
    assert await two.exists("/e") is None
    assert await two.exists("/p") is not None
    assert await two.exists("/mine") is not None


@live
async def test_an_ephemeral_has_no_children(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        await store.create("/e/child")


@live
async def test_ephemerals_of_a_former_process_are_deleted_with_their_sessions(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    first = await store.create("/e", ephemeral=True)
    await store.close()
    await ensemble.stop()
    await ensemble.start()
    store = await ensemble.session()
    assert await store.exists("/e") is None
    assert (await store.create("/e", ephemeral=True)).czxid > first.czxid


@live
async def test_closed_session_rejects_requests(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    states = States(store)
    await store.close()
    await store.close()
    assert states.seen == [SessionState.LOST]
    with pytest.raises(SessionExpired):
        await store.create("/a")
    with pytest.raises(SessionExpired):
        await store.get("/")


@live
async def test_suspended_session_rejects_requests_and_continues_after_a_reconnect(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    session_id = store.session_id
    await store.create("/e", ephemeral=True)
    states = States(store)
    await ensemble.suspend(store)
    await states.until(SessionState.SUSPENDED)
    assert store.state is SessionState.SUSPENDED
    for attempt in (store.create("/a"), store.get("/e"), store.children("/"), store.sync()):
        with pytest.raises(ConnectionLost):
            await attempt
    await ensemble.resume(store)
    await states.until(SessionState.CONNECTED)
    assert store.session_id == session_id
    assert await store.exists("/a") is None
    stat = await store.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == session_id
    assert states.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]


@live
async def test_an_expired_session_loses_its_ephemerals_and_a_new_one_follows(
    ensemble: Ensemble,
) -> None:
    store, other = await ensemble.session(), await ensemble.session()
    before = await store.create("/e", ephemeral=True)
    states = States(store)
    await ensemble.expire(store)
    await states.until(SessionState.LOST)
    with pytest.raises(SessionExpired):
        await store.create("/a")
    await other.sync()
    assert await other.exists("/e") is None
    await ensemble.renew(store)
    await states.until(SessionState.CONNECTED)
    assert store.session_id != before.ephemeral_owner
    after = await store.create("/e", ephemeral=True)
    assert after.ephemeral_owner == store.session_id
    assert after.czxid > before.czxid


@live
async def test_session_can_expire_in_the_store_before_the_client_is_notified(
    ensemble: Ensemble,
) -> None:
    store, other = await ensemble.session(), await ensemble.session()
    await store.create("/e", ephemeral=True)
    await other.sync()
    seen = Seen()
    await other.exists("/e", seen)
    states = States(store)
    await ensemble.suspend(store)
    await ensemble.expire(store)
    await seen.wait(1)
    # On a busy machine, the client can notice the broken connection later than the store.
    await states.until(SessionState.SUSPENDED)
    await ensemble.resume(store)
    await states.until(SessionState.LOST)
    assert states.seen[0] is SessionState.SUSPENDED


@live
async def test_write_with_unknown_outcome_can_be_applied(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a", b"old")
    states = States(store)
    ensemble.leave_next_outcome_unknown(store, applied=True)
    with pytest.raises(UnknownOutcome):
        await store.set("/a", b"new", 0)
    await states.until_connected()
    await store.sync()
    data, stat = await store.get("/a")
    assert (data, stat.version) == (b"new", 1)


@live
async def test_write_with_unknown_outcome_can_be_lost(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a", b"old")
    states = States(store)
    ensemble.leave_next_outcome_unknown(store, applied=False)
    with pytest.raises(UnknownOutcome):
        await store.multi([Set("/a", b"new", 0), Create("/b")])
    await states.until_connected()
    await store.sync()
    data, stat = await store.get("/a")
    assert (data, stat.version) == (b"old", 0)
    assert await store.exists("/b") is None
    assert (await store.set("/a", b"new", 0)).version == 1


@live
async def test_write_in_flight_during_a_disconnect_has_an_unknown_outcome(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    states = States(store)
    task = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    await ensemble.suspend(store)
    await states.until(SessionState.SUSPENDED)
    with pytest.raises(UnknownOutcome):
        await task
    await ensemble.resume(store)
    await states.until(SessionState.CONNECTED)
    await store.sync()
    try:
        await store.create("/a")
    except NodeExists:
        assert (await store.get("/a"))[1].version == 0
