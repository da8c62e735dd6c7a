"""The controller on a real embedded store: its writes, its image and its notifications."""

import asyncio
from pathlib import Path

from headrace.cluster.changes import ImageChange
from headrace.controller.service import Controller
from headrace.controller.topics_machine import TopicLimits
from headrace.coordination import layout
from headrace.coordination.embedded import EmbeddedServer
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicState
from tests.unit.controller.controller_scenario import ENDPOINTS, Broker, code_of, scenario, until


@scenario
async def test_a_started_broker_is_registered_and_is_the_controller(broker: Broker) -> None:
    image, store = broker.controller.image, broker.store
    assert image.controller_id == 1
    assert broker.controller.is_controller
    info = image.brokers[1]
    assert (info.endpoints, info.rack) == (ENDPOINTS, "r1")
    stat = await store.exists("/brokers/ids/1")
    assert stat is not None
    assert info.epoch == stat.czxid == broker.controller.broker_epoch
    assert stat.ephemeral_owner == store.session_id
    assert (await store.get("/controller_epoch"))[0] == b"1"
    assert len(image.cluster_id) == 22
    assert not image.cluster_id.startswith("-")


@scenario
async def test_a_restart_keeps_the_cluster_and_raises_every_epoch(broker: Broker) -> None:
    controller = broker.controller
    cluster_id, broker_epoch = controller.image.cluster_id, controller.broker_epoch
    topic = await controller.create_topic("t", partitions=3, configs={"retention.ms": "5"})
    await controller.alter_broker_configs(None, {"x": "1"})
    await controller.alter_broker_configs(1, {"y": "2"})
    for life in range(1, 4):
        controller = await broker.restart()
        assert controller.image.cluster_id == cluster_id
        assert controller.broker_epoch > broker_epoch
        broker_epoch = controller.broker_epoch
        assert controller.controller_epoch == life + 1
        again = controller.image.topics["t"]
        assert (again.topic_id, again.configs) == (topic.topic_id, {"retention.ms": "5"})
        assert [state.leader_epoch for state in again.partitions] == [life] * 3
        assert [state.partition_epoch for state in again.partitions] == [life] * 3
        assert {state.isr_epochs for state in again.partitions} == {(broker_epoch,)}
        assert controller.image.broker_configs == {None: {"x": "1"}, 1: {"y": "2"}}
        assert (await broker.topics_in_store())["t"] == again


@scenario
async def test_configured_cluster_id_applies_to_a_new_store(broker: Broker) -> None:
    other = Controller(broker.server.session(), 2)
    await other.start((), cluster_id="another")
    assert other.image.cluster_id == broker.controller.image.cluster_id != "another"
    assert not other.is_controller
    assert other.image.controller_id == 1
    assert await code_of(other.create_topic("t")) == ErrorCode.NOT_CONTROLLER
    await other.stop()


@scenario
async def test_created_topic_is_in_the_image_in_the_store_and_reported(broker: Broker) -> None:
    controller = broker.controller
    topic = await controller.create_topic("t", partitions=250, configs={"a": "b"})
    assert controller.image.topics["t"] == topic
    assert controller.image.names_by_id[topic.topic_id] == "t"
    assert topic.topic_id.version == 4
    assert broker.changes == [ImageChange(created=(topic,))]
    children = await broker.store.children("/brokers/topics/t")
    assert children == ["state-0", "state-100", "state-200"]
    assert (await broker.topics_in_store())["t"] == topic


@scenario
async def test_ten_thousand_partitions_are_written_together(broker: Broker) -> None:
    topic = await broker.controller.create_topic("t", partitions=10_000)
    assert len(topic.partitions) == 10_000
    assert await code_of(broker.controller.create_topic("u", partitions=10_001)) == (
        ErrorCode.INVALID_PARTITIONS
    )
    await broker.controller.create_topic("v", partitions=10_000)
    assert await code_of(broker.controller.create_topic("w")) == ErrorCode.INVALID_PARTITIONS
    await broker.controller.delete_topic("v")
    await broker.controller.create_topic("w", partitions=2_000)
    controller = await broker.restart()
    states = controller.image.topics["t"].partitions
    assert {state.leader_epoch for state in states} == {1}


def test_ten_thousand_partitions_of_three_replicas_fit_into_one_request(tmp_path: Path) -> None:
    async def run() -> None:
        server = await EmbeddedServer.open(str(tmp_path / "store.db"))
        first, *others = [Controller(server.session(), node) for node in (1001, 1002, 1003)]
        await first.start(ENDPOINTS)
        for other in others:
            await other.start(ENDPOINTS)
        await until(lambda: len(first.image.brokers) == 3)
        topic = await first.create_topic("t", partitions=10_000, replication_factor=3)
        assert {state.isr for state in topic.partitions} == {s.replicas for s in topic.partitions}
        await first.delete_topic("t")
        for controller in (first, *others):
            await controller.stop()
        await server.close()

    asyncio.run(run())


@scenario
async def test_of_concurrent_creates_of_one_topic_one_wins(broker: Broker) -> None:
    outcomes = await asyncio.gather(
        *(broker.controller.create_topic("t") for _ in range(10)), return_exceptions=True
    )
    made = [outcome for outcome in outcomes if isinstance(outcome, TopicState)]
    refused = [outcome.code for outcome in outcomes if isinstance(outcome, ApiError)]
    assert len(made) == 1
    assert refused == [ErrorCode.TOPIC_ALREADY_EXISTS] * 9
    assert broker.changes == [ImageChange(created=(made[0],))]


@scenario
async def test_of_concurrent_creates_of_colliding_names_one_wins(broker: Broker) -> None:
    names = ["a.b.c", "a_b_c", "a.b_c", "a_b.c"]
    outcomes = await asyncio.gather(
        *(broker.controller.create_topic(name) for name in names), return_exceptions=True
    )
    assert sum(isinstance(outcome, TopicState) for outcome in outcomes) == 1
    assert len(broker.controller.image.topics) == 1


@scenario
async def test_concurrent_creates_do_not_overfill_the_brokers(broker: Broker) -> None:
    broker.limits = TopicLimits(partitions_per_broker_max=100)
    await broker.restart()
    outcomes = await asyncio.gather(
        *(broker.controller.create_topic(f"t{turn}", partitions=30) for turn in range(10)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, TopicState) for outcome in outcomes) == 3


@scenario
async def test_validate_only_changes_nothing(broker: Broker) -> None:
    controller = broker.controller
    would_be = await controller.create_topic("t", partitions=4, validate_only=True)
    assert len(would_be.partitions) == 4
    assert would_be.topic_id.int == 0
    assert controller.image.topics == {}
    topic = await controller.create_topic("t", partitions=4)
    grown = await controller.create_partitions("t", 6, validate_only=True)
    assert len(grown.partitions) == 6
    await controller.alter_topic_configs("t", {"a": "b"}, validate_only=True)
    await controller.alter_broker_configs(1, {"a": "b"}, validate_only=True)
    assert controller.image.topics["t"] == topic
    assert controller.image.broker_configs == {}
    assert (await broker.topics_in_store())["t"] == topic
    assert len(broker.changes) == 1


@scenario
async def test_deleted_topic_is_removed_immediately_and_recreated_with_another_id(
    broker: Broker,
) -> None:
    controller = broker.controller
    first = await controller.create_topic("t", partitions=120, configs={"a": "b"})
    assert await controller.delete_topic("t", topic_id=first.topic_id) == first
    assert controller.image.topics == {}
    assert controller.image.names_by_id == {}
    assert await broker.store.exists("/config/topics/t") is None
    assert await code_of(controller.delete_topic("t")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    second = await controller.create_topic("t")
    assert second.topic_id != first.topic_id
    assert second.configs == {}
    assert await code_of(controller.delete_topic("t", topic_id=first.topic_id)) == (
        ErrorCode.UNKNOWN_TOPIC_ID
    )
    assert broker.changes == [
        ImageChange(created=(first,)),
        ImageChange(deleted=(first,)),
        ImageChange(created=(second,)),
    ]


@scenario
async def test_a_topic_grows_within_and_beyond_its_last_hundred(broker: Broker) -> None:
    controller = broker.controller
    before = await controller.create_topic("t", partitions=99)
    for count in (100, 101, 350):
        after = await controller.create_partitions("t", count)
        assert len(after.partitions) == count
        assert after.partitions[:99] == before.partitions
        assert (await broker.topics_in_store())["t"] == after
    code = await code_of(controller.create_partitions("t", 350))
    assert code == ErrorCode.INVALID_PARTITIONS
    assert [len(change.changed) for change in broker.changes] == [0, 1, 1, 1]


@scenario
async def test_topic_settings_are_set_removed_and_computed(broker: Broker) -> None:
    controller = broker.controller
    await controller.create_topic("t", configs={"a": "1", "b": "2"})
    after = await controller.alter_topic_configs("t", {"a": None, "c": "3"})
    assert after.configs == {"b": "2", "c": "3"}
    after = await controller.alter_topic_configs("t", lambda old: {"b": old["b"] + ",x"})
    assert after.configs == {"b": "2,x"}
    assert (await broker.topics_in_store())["t"] == after
    told = len(broker.changes)
    await controller.alter_topic_configs("t", {"b": "2,x"})
    assert len(broker.changes) == told
    for attempt in (
        controller.alter_topic_configs("t", {"bad": "1"}),
        controller.create_topic("u", configs={"bad": "1"}),
        controller.alter_broker_configs(1, {"bad": "1"}),
        controller.alter_topic_configs("t", {"b": "x" * 2_000_000}),
    ):
        assert await code_of(attempt) == ErrorCode.INVALID_CONFIG
    assert controller.image.topics["t"] == after
    code = await code_of(controller.alter_topic_configs("u", {}))
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@scenario
async def test_concurrent_changes_of_one_topic_are_all_kept(broker: Broker) -> None:
    controller = broker.controller
    await controller.create_topic("t")
    await asyncio.gather(
        *(controller.alter_topic_configs("t", {f"k{turn}": "v"}) for turn in range(20)),
        controller.create_partitions("t", 5),
    )
    topic = controller.image.topics["t"]
    assert len(topic.configs) == 20
    assert len(topic.partitions) == 5
    assert (await broker.topics_in_store())["t"] == topic


@scenario
async def test_settings_of_an_unknown_broker_are_rejected(broker: Broker) -> None:
    code = await code_of(broker.controller.alter_broker_configs(8, {"a": "b"}))
    assert code == ErrorCode.BROKER_ID_NOT_REGISTERED
    await broker.controller.alter_broker_configs(1, {"a": "b"})
    await broker.controller.alter_broker_configs(1, {"a": None})
    assert broker.controller.image.broker_configs[1] == {}
    assert broker.changes == [ImageChange(broker_configs=(1,))] * 2


@scenario
async def test_no_producer_id_is_given_twice(broker: Broker) -> None:
    controller = broker.controller
    first = (await controller.allocate_producer_ids())[0]
    blocks = await asyncio.gather(*(controller.allocate_producer_ids() for _ in range(5)))
    used = {first, *(block for block, _ in blocks)}
    assert len(used) == 6
    ids = await asyncio.gather(*(controller.next_producer_id() for _ in range(2500)))
    assert len({*ids}) == 2500
    assert min(ids) >= max(used) + 1000
    controller = await broker.restart()
    assert await controller.next_producer_id() > max(ids)


@scenario
async def test_no_producer_id_is_given_twice_if_the_store_is_an_older_copy(broker: Broker) -> None:
    admin = broker.controller._admin
    first, _ = await broker.controller.allocate_producer_ids()
    await broker.store.set(layout.PRODUCER_IDS, layout.encode_producer_ids(0))
    admin._wall_ms = lambda: first + 60_000
    assert await broker.controller.allocate_producer_ids() == (first + 60_000, 1000)
    # The clock is stepped back.
    admin._wall_ms = lambda: first
    assert await broker.controller.allocate_producer_ids() == (first + 61_000, 1000)


@scenario
async def test_full_disk_is_an_error_for_the_client_and_changes_nothing(
    broker: Broker,
) -> None:
    controller = broker.controller
    old = await controller.create_topic("old", configs={"a": "b"})
    broker.changes.clear()
    broker.database.is_full = True
    for attempt in (
        controller.create_topic("new", partitions=250),
        controller.delete_topic("old"),
        controller.create_partitions("old", 5),
        controller.alter_topic_configs("old", {"a": "c"}),
        controller.alter_broker_configs(None, {"a": "b"}),
        controller.alter_group_configs("g", {"a": "b"}),
    ):
        assert await code_of(attempt) == ErrorCode.KAFKA_STORAGE_ERROR
    assert await code_of(controller.next_producer_id()) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert controller.is_controller
    assert controller.image.topics == {"old": old}
    assert broker.changes == []
    broker.database.is_full = False
    assert await broker.topics_in_store() == {"old": old}
    new = await controller.create_topic("new", partitions=250)
    assert await controller.next_producer_id() > 0
    assert await broker.topics_in_store() == {"old": old, "new": new}


@scenario
async def test_settings_of_groups_are_stored_under_any_name_until_they_are_unset(
    broker: Broker,
) -> None:
    names = ["readers", "a/b", "..", "%2F", "Gruppe \u00fc"]
    for number, name in enumerate(names):
        await broker.controller.alter_group_configs(name, {"x": str(number)})
    await broker.controller.alter_group_configs("other", {"x": "1"}, validate_only=True)
    controller = await broker.restart()
    expected = {name: {"x": str(number)} for number, name in enumerate(names)}
    assert controller.image.group_configs == expected
    for name in names:
        assert await controller.alter_group_configs(name, {"x": None}) == {}
    assert controller.image.group_configs == {}
    controller = await broker.restart()
    assert controller.image.group_configs == {}
