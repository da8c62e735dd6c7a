"""The controller after a loss of its store, its session, its client or its role."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from headrace.cluster import store_elections
from headrace.cluster.changes import ImageChange
from headrace.controller.failover_machine import with_next_partition_epoch
from headrace.controller.service import Controller
from headrace.controller.state_writer import States
from headrace.coordination import layout
from headrace.coordination.port import ConnectionLost, Create, Delete, Set
from headrace.model.errors import ErrorCode
from tests.unit.controller.controller_scenario import ENDPOINTS, Broker, code_of, scenario, until


@scenario
async def test_write_of_unknown_outcome_that_was_applied_is_a_success(broker: Broker) -> None:
    controller, faults = broker.controller, broker.store.faults
    faults.leave_next_outcome_unknown(applied=True)
    created = await controller.create_topic("t", partitions=2)
    faults.leave_next_outcome_unknown(applied=True)
    grown = await controller.create_partitions("t", 150)
    faults.leave_next_outcome_unknown(applied=True)
    altered = await controller.alter_topic_configs("t", {"a": "b"})
    assert (grown.topic_id, len(altered.partitions)) == (created.topic_id, 150)
    assert controller.image.topics["t"] == altered == (await broker.topics_in_store())["t"]
    faults.leave_next_outcome_unknown(applied=True)
    await controller.alter_broker_configs(1, {"a": "b"})
    assert controller.image.broker_configs == {1: {"a": "b"}}
    faults.leave_next_outcome_unknown(applied=True)
    assert await controller.delete_topic("t") == altered
    assert controller.image.topics == {}
    first, count = await controller.allocate_producer_ids()
    faults.leave_next_outcome_unknown(applied=True)
    # The block of the unknown outcome is skipped.
    assert (await controller.allocate_producer_ids())[0] >= first + 2 * count


@scenario
async def test_write_of_unknown_outcome_that_was_lost_is_repeated(
    broker: Broker,
) -> None:
    controller, faults = broker.controller, broker.store.faults
    faults.leave_next_outcome_unknown(applied=False)
    await controller.create_topic("t", partitions=2)
    faults.leave_next_outcome_unknown(applied=False)
    await controller.create_partitions("t", 150)
    faults.leave_next_outcome_unknown(applied=False)
    altered = await controller.alter_topic_configs("t", {"a": "b"})
    assert controller.image.topics["t"] == altered == (await broker.topics_in_store())["t"]
    faults.leave_next_outcome_unknown(applied=False)
    await controller.alter_broker_configs(1, {"a": "b"})
    faults.leave_next_outcome_unknown(applied=False)
    await controller.delete_topic("t")
    assert await broker.topics_in_store() == {}
    faults.leave_next_outcome_unknown(applied=False)
    assert (await controller.allocate_producer_ids())[1] == 1000


@scenario
async def test_reads_continue_and_writes_are_retriable_during_a_store_outage(
    broker: Broker,
) -> None:
    controller = broker.controller
    topic = await controller.create_topic("t")
    broker.store.faults.suspend()
    for attempt in (
        controller.create_topic("u"),
        controller.delete_topic("t"),
        controller.create_partitions("t", 5),
        controller.alter_topic_configs("t", {"a": "b"}),
        controller.alter_broker_configs(1, {"a": "b"}),
    ):
        assert await code_of(attempt) == ErrorCode.NOT_CONTROLLER
    code = await code_of(controller.allocate_producer_ids())
    assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert controller.image.topics == {"t": topic}
    broker.store.faults.resume()
    await controller.create_topic("u")
    assert controller.image.topics["t"] == topic


@scenario
async def test_unknown_outcome_is_resolved_when_the_store_returns(
    broker: Broker,
) -> None:
    controller = broker.controller
    attempt = await broker.database.close_gate(controller.create_topic("t"))
    broker.store.faults.suspend()
    assert await code_of(attempt) == ErrorCode.REQUEST_TIMED_OUT
    assert controller.image.topics == {}
    broker.database.gate.set()
    broker.store.faults.resume()
    await until(lambda: "t" in controller.image.topics)
    assert broker.changes == [ImageChange(created=(controller.image.topics["t"],))]
    code = await code_of(controller.create_topic("t"))
    assert code == ErrorCode.TOPIC_ALREADY_EXISTS


@scenario
async def test_broker_registers_with_new_epochs_after_a_lost_session(
    broker: Broker,
) -> None:
    controller = broker.controller
    await controller.create_topic("t")
    epoch = controller.broker_epoch
    await broker.store.faults.expire()
    assert not controller.is_controller
    assert "t" in controller.image.topics
    assert broker.is_lost
    assert controller.broker_epoch == -1
    assert await code_of(controller.create_topic("u")) == ErrorCode.NOT_CONTROLLER
    broker.store.faults.renew()
    await until(lambda: controller.image.topics["t"].partitions[0].leader_epoch == 1)
    assert controller.broker_epoch > epoch
    assert controller.controller_epoch == 2
    assert broker.changes[-1].changed[0][1] == controller.image.topics["t"]
    await controller.create_topic("u")


@scenario
async def test_a_zombie_controller_writes_nothing(broker: Broker) -> None:
    zombie = broker.controller
    await zombie.create_topic("t")
    other = broker.server.session()
    _, epoch = await other.get(layout.CONTROLLER_EPOCH)
    await other.multi(
        [
            Delete(layout.CONTROLLER),
            Create(layout.CONTROLLER, layout.encode_controller(2), ephemeral=True),
            Set(layout.CONTROLLER_EPOCH, layout.encode_controller_epoch(2), epoch.version),
        ]
    )
    successor = Controller(other, 2)
    await successor.start(ENDPOINTS)
    assert successor.is_controller
    before = successor.image.topics.copy()
    assert await code_of(zombie.create_topic("u")) == ErrorCode.NOT_CONTROLLER
    assert not zombie.is_controller
    assert await code_of(zombie.delete_topic("t")) == ErrorCode.NOT_CONTROLLER
    assert successor.image.topics == before
    await successor.create_topic("u")
    await until(lambda: "u" in zombie.image.topics)
    await successor.stop()


@scenario
async def test_second_broker_with_the_same_id_is_rejected(broker: Broker) -> None:
    twin = Controller(broker.server.session(), 1, registration_wait_s=0.01)
    code = await code_of(twin.start(ENDPOINTS))
    assert code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    await broker.controller.create_topic("t")


@scenario
async def test_broker_waits_until_its_former_registration_expires(broker: Broker) -> None:
    former = broker.server.session()
    await former.create("/brokers/ids/5", ephemeral=True)
    late = Controller(broker.server.session(), 5, registration_wait_s=20)
    start = asyncio.ensure_future(late.start(ENDPOINTS))
    await asyncio.sleep(0)
    await former.close()
    await start
    assert 5 in late.image.brokers
    await late.stop()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_slow_store_lets_a_broker_wait_longer_for_the_former_session(
    is_lost: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The ensemble expires no session while it is slow or has no leader."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(store_elections, "_SLOW_RESPONSE_S", 0.02)

    @scenario
    async def check(broker: Broker) -> None:
        former, store = broker.server.session(), broker.server.session()
        await former.create("/brokers/ids/5", ephemeral=True)
        sync, calls = store.sync, 0

        async def slow_sync() -> None:
            nonlocal calls
            calls += 1
            if calls == 1 and is_lost:
                raise ConnectionLost("no leader")
            if calls == 1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.2)
            if calls == 3:
                await former.close()
            await sync()

        monkeypatch.setattr(store, "sync", slow_sync)
        late = Controller(store, 5, registration_wait_s=0.06)
        monkeypatch.setattr(store_elections, "_CHECK_INTERVAL_S", 0.02)
        await late.start(ENDPOINTS)
        assert 5 in late.image.brokers
        await late.stop()

    check(tmp_path)
    assert "waiting until it expires: broker=5" in caplog.text
    assert "store is slow, waiting longer" in caplog.text


@scenario
async def test_a_broker_that_loses_its_connection_during_start_up_retries(broker: Broker) -> None:
    store = broker.server.session()
    store.faults.suspend()
    late = Controller(store, 5, registration_wait_s=60)
    start = asyncio.ensure_future(late.start(ENDPOINTS))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not start.done()
    store.faults.resume()
    await start
    assert 5 in late.image.brokers
    await late.stop()


@scenario
async def test_start_without_a_store_fails_after_a_timeout(broker: Broker) -> None:
    store = broker.server.session()
    store.faults.suspend()
    with pytest.raises(ConnectionLost):
        await Controller(store, 5, registration_wait_s=0.01).start(ENDPOINTS)


@scenario
async def test_a_registration_of_unknown_outcome_is_found(broker: Broker) -> None:
    for applied in (True, False):
        store = broker.server.session()
        store.faults.leave_next_outcome_unknown(applied=applied)
        late = Controller(store, 5)
        await late.start(ENDPOINTS)
        assert 5 in late.image.brokers
        await late.stop()
    assert (await broker.store.get("/brokers/incarnations/5"))[1].version == 1


@scenario
async def test_cancelled_create_request_still_adds_the_topic_to_the_image(broker: Broker) -> None:
    attempt = await broker.database.close_gate(broker.controller.create_topic("t"))
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    broker.database.gate.set()
    await until(lambda: "t" in broker.controller.image.topics)
    assert len(broker.changes) == 1


@scenario
async def test_stopped_broker_is_deregistered_and_rejects_requests(broker: Broker) -> None:
    other = broker.server.session()
    attempt = asyncio.ensure_future(broker.controller.create_topic("t"))
    await asyncio.sleep(0)
    await broker.controller.stop()
    await attempt
    assert await other.exists("/brokers/ids/1") is None
    assert await other.exists("/controller") is None
    code = await code_of(broker.controller.create_topic("u"))
    assert code == ErrorCode.NOT_CONTROLLER


@scenario
async def test_a_listener_that_raises_does_not_stop_the_others(
    broker: Broker,
) -> None:
    heard: list[ImageChange] = []

    def broken(change: ImageChange) -> None:
        raise RuntimeError("broken listener")

    broker.controller.on_change(broken)
    broker.controller.on_change(heard.append)
    await broker.controller.create_topic("t")
    assert len(heard) == 1


@scenario
async def test_a_document_that_cannot_be_read_is_named(broker: Broker) -> None:
    await broker.controller.create_topic("t")
    await broker.store.multi([Set("/brokers/topics/t/state-0", b"\0garbled")])
    other = Controller(broker.server.session(), 2)
    with pytest.raises(layout.LayoutError, match="/brokers/topics/t/state-0"):
        await other.start(())


@pytest.mark.parametrize("is_recreated", [True, False])
def test_a_state_that_was_written_for_a_former_topic_is_not_shown(
    tmp_path: Path, is_recreated: bool
) -> None:
    """The image is read again during the write: another controller has deleted the topic."""

    @scenario
    async def test(broker: Broker) -> None:
        controller = broker.controller
        before = await controller.create_topic("t")
        after = replace(before, topic_id=UUID(int=7))

        def decide(states: States) -> None:
            states.put("t", 0, with_next_partition_epoch(before.partitions[0]))

        writing = await broker.database.close_gate(controller._states.edit(decide))
        controller._live_image.set_topic("t", after if is_recreated else None)
        broker.database.gate.set()
        await writing
        assert controller.image.topics == ({"t": after} if is_recreated else {})

    test(tmp_path)
