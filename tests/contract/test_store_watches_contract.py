"""Contract of all coordination stores: watches. These tests use only the methods of the port."""

import asyncio

import pytest

from headrace.coordination.port import (
    Check,
    Delete,
    EventType,
    MultiFailed,
    NoNode,
    SessionState,
    Set,
    WatchEvent,
)
from tests.contract.ensembles import Ensemble, Seen, States, live


@live
async def test_a_data_watch_fires_once_for_a_change(ensemble: Ensemble) -> None:
    store, other = await ensemble.session(), await ensemble.session()
    await store.create("/a", b"0")
    seen = Seen()
    await store.get("/a", seen)
    await other.set("/a", b"1")
    assert await seen.wait(1) == [(EventType.CHANGED, "/a")]
    await other.set("/a", b"2")
    await store.sync()
    assert len(seen.events) == 1


@live
async def test_data_watch_fires_when_the_node_is_deleted(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a")
    seen = Seen()
    await store.get("/a", seen)
    await store.delete("/a")
    assert await seen.wait(1) == [(EventType.DELETED, "/a")]


@live
async def test_existence_watch_fires_when_the_node_is_created(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    seen = Seen()
    assert await store.exists("/a", seen) is None
    await store.create("/a")
    assert await seen.wait(1) == [(EventType.CREATED, "/a")]


@live
async def test_failed_get_sets_no_watch(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    seen = Seen()
    with pytest.raises(NoNode):
        await store.get("/a", seen)
    with pytest.raises(NoNode):
        await store.children("/a", seen)
    await store.create("/a")
    await store.delete("/a")
    await store.sync()
    assert seen.events == []


@live
async def test_children_watch_fires_for_created_and_deleted_children_but_not_for_data(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    await store.create("/a")
    seen = Seen()
    assert await store.children("/a", seen) == []
    await store.set("/a", b"data")
    await store.sync()
    assert seen.events == []
    await store.create("/a/b")
    assert await seen.wait(1) == [(EventType.CHILDREN, "/a")]
    await store.children("/a", seen)
    await store.set("/a/b", b"data")
    await store.delete("/a/b")
    assert await seen.wait(2) == [(EventType.CHILDREN, "/a")] * 2
    await store.children("/a", seen)
    await store.delete("/a")
    assert (await seen.wait(3))[2] == (EventType.DELETED, "/a")


@live
async def test_a_watch_fires_before_the_result_of_a_later_write(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    seen = Seen()
    await store.create("/a")
    await store.get("/a", seen)
    await store.exists("/b", seen)
    await store.set("/a", b"1")
    await store.create("/b")
    assert seen.events == [(EventType.CHANGED, "/a"), (EventType.CREATED, "/b")]


@live
async def test_read_after_a_watch_event_sees_the_change(ensemble: Ensemble) -> None:
    store, other = await ensemble.session(), await ensemble.session()
    await store.create("/a", b"0")
    read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def look() -> None:
        read.set_result((await store.get("/a"))[0])

    tasks: list[asyncio.Task[None]] = []
    await store.get("/a", lambda _: tasks.append(asyncio.create_task(look())))
    await other.set("/a", b"1")
    assert await read == b"1"


@live
async def test_events_of_a_multi_have_the_order_of_its_operations(
    ensemble: Ensemble,
) -> None:
    store = await ensemble.session()
    for path in ("/a", "/b", "/c"):
        await store.create(path)
    seen = Seen()
    for path in ("/c", "/a", "/b"):
        await store.get(path, seen)
    await store.multi([Set("/b", b""), Delete("/a"), Set("/c", b"")])
    assert await seen.wait(3) == [
        (EventType.CHANGED, "/b"),
        (EventType.DELETED, "/a"),
        (EventType.CHANGED, "/c"),
    ]


@live
async def test_a_multi_that_fails_fires_nothing(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    await store.create("/a")
    seen = Seen()
    await store.get("/a", seen)
    with pytest.raises(MultiFailed):
        await store.multi([Set("/a", b"x"), Check("/missing")])
    await store.sync()
    assert seen.events == []


@live
async def test_watch_is_lost_with_the_connection(ensemble: Ensemble) -> None:
    store, other = await ensemble.session(), await ensemble.session()
    await store.create("/a")
    states = States(store)
    seen = Seen()
    await store.get("/a", seen)
    await ensemble.suspend(store)
    await states.until(SessionState.SUSPENDED)
    await ensemble.resume(store)
    await states.until(SessionState.CONNECTED)
    await other.sync()
    await other.set("/a", b"1")
    await store.sync()
    assert seen.events == []
    await store.get("/a", seen)
    await other.set("/a", b"2")
    assert await seen.wait(1) == [(EventType.CHANGED, "/a")]


@live
async def test_a_watch_is_lost_with_its_session(ensemble: Ensemble) -> None:
    store, other = await ensemble.session(), await ensemble.session()
    await store.create("/a")
    await store.create("/e", ephemeral=True)
    states = States(store)
    seen = Seen()
    await store.get("/a", seen)
    await ensemble.expire(store)
    await states.until(SessionState.LOST)
    await other.set("/a", b"1")
    await ensemble.renew(store)
    await states.until(SessionState.CONNECTED)
    await store.sync()
    assert seen.events == []


@live
async def test_a_watcher_that_raises_does_not_stop_the_store(ensemble: Ensemble) -> None:
    store = await ensemble.session()
    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    await store.create("/a")

    def broken(event: WatchEvent) -> None:
        raise RuntimeError("broken watcher")

    seen = Seen()
    await store.get("/a", broken)
    await store.exists("/a", seen)
    await store.set("/a", b"1")
    await seen.wait(1)
    assert len(reports) == 1
