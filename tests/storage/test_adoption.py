"""Data directories of Apache Kafka: what is adopted, and what is rejected."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from headrace.config.topic import TopicConfig
from headrace.log.directory.directory_lock import DirectoryError
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.upkeep.checkpoints import encode_epochs, encode_offsets, encode_partition_metadata
from headrace.model.acls import Acl, Operation
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.tokens import Token
from headrace.model.topics import TopicPartition
from headrace.node.adoption import Adoption
from headrace.record.build import NewRecord, build_batch
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import ManualClock
from tests.unit.node.test_kafka_metadata import (
    acl,
    config,
    credential,
    producer_ids,
    token,
    topic,
    written,
)

ORDERS = UUID(int=11)
OTHER = UUID(int=12)


def partition(
    files: SimulatedFiles,
    name: str,
    topic_id: UUID | None = ORDERS,
    *,
    epochs: tuple[int, ...] = (0,),
    producer_id: int = -1,
) -> None:
    """A partition as Kafka leaves it: a segment with a batch of each epoch, and small files."""
    path = f"/data/{name}"
    files.make_directory(path)
    batches = [
        build_batch(
            [NewRecord(b"k", b"v", 1)],
            base_offset=at,
            leader_epoch=epoch,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=at if producer_id >= 0 else -1,
        )
        for at, epoch in enumerate(epochs)
    ]
    files.write_file(f"{path}/00000000000000000000.log", b"".join(batches), sync=True)
    if topic_id is not None:
        data = encode_partition_metadata(topic_id)
        files.write_file(f"{path}/partition.metadata", data, sync=True)


def accepts(_: object) -> None:
    pass


def looked(files: SimulatedFiles, known: tuple[str, ...] = ()) -> Adoption:
    logs = LogDirectory("/data", files, ManualClock())
    logs.open()
    adoption = Adoption(logs, known)
    adoption.find_topics(accepts)
    return adoption


def refused(files: SimulatedFiles) -> str:
    with pytest.raises(DirectoryError) as error:
        looked(files)
    return str(error.value)


class NotedController:
    """Accepts every request, like the controller."""

    def __init__(self) -> None:
        self.created: dict[str, dict[str, Any]] = {}
        self.first_id_min = 0
        self.users: dict[str, Any] = {}
        self.acls: list[Acl] = []
        self.image = ClusterImage("cluster")
        self.tokens: list[Token] = []

    async def alter_user(self, user: str, edit: Any) -> None:
        assert not self.created
        self.users[user] = edit(self.users.get(user, {}))

    async def create_acls(self, acls: list[Acl]) -> None:
        assert not self.created
        self.acls += acls

    async def create_token(self, make: Any) -> None:
        assert not self.created
        self.tokens.append(make("another id"))

    async def create_topic(self, name: str, **options: Any) -> None:
        self.created[name] = options

    async def allocate_producer_ids(self, first_min: int) -> tuple[int, int]:
        self.first_id_min = first_min
        return first_min, 1000


def carried_out(adoption: Adoption) -> NotedController:
    controller = NotedController()
    asyncio.run(adoption.create_topics(controller))  # type: ignore[arg-type]
    return controller


def test_name_and_count_come_from_the_directories_and_the_id_from_their_metadata() -> None:
    files = SimulatedFiles()
    for index in range(3):
        partition(files, f"orders-with-dashes-{index}", epochs=(0, 4, 9)[: index + 1])
    (found,) = looked(files).topics
    assert found.name == "orders-with-dashes"
    assert found.topic_id == ORDERS
    assert found.leader_epochs == [0, 4, 9]


def test_users_tokens_and_acls_are_adopted_before_the_topics_and_only_with_them() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    records = (
        topic("orders", ORDERS),
        credential("ann"),
        acl(1),
        acl(2, operation=4),
        token("t1"),
        token("t2"),
    )
    written(files, "00000000000000000000.log", 0, *records)
    controller = carried_out(looked(files))
    assert list(controller.created) == ["orders"]
    assert list(controller.users) == ["ann"]
    assert [each.token_id for each in controller.tokens] == ["t1", "t2"]
    assert [each.operation for each in controller.acls] == [Operation.READ, Operation.WRITE]
    again = carried_out(looked(files.killed(), known=("orders",)))
    assert (again.users, again.acls, again.tokens) == ({}, [], [])


def test_directory_with_an_unknown_acl_is_rejected() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    written(files, "00000000000000000000.log", 0, topic("orders", ORDERS), acl(1, operation=99))
    assert "1 ACLs that this version does not know" in refused(files)


def test_topics_are_created_with_their_id_and_higher_leader_epochs() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0", epochs=(3, 7))
    partition(files, "orders-1", epochs=())
    controller = carried_out(looked(files))
    assert controller.created["orders"]["topic_id"] == ORDERS
    assert controller.created["orders"]["leader_epochs"] == [8, 0]
    assert controller.created["orders"]["partitions"] == 2
    assert not controller.created["orders"]["internal"]


def test_epoch_file_can_have_an_epoch_without_records() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0", epochs=(3,))
    files.write_file(
        "/data/orders-0/leader-epoch-checkpoint", encode_epochs([(3, 0), (5, 1)]), sync=True
    )
    (found,) = looked(files).topics
    assert found.leader_epochs == [5]


def test_a_missing_partition_is_named() -> None:
    files = SimulatedFiles()
    for index in (0, 2, 5):
        partition(files, f"orders-{index}")
    partition(files, "payments-1", OTHER)
    sentence = refused(files)
    assert "orders-1, orders-3, orders-4, payments-0." in sentence


def test_partitions_of_two_topics_of_one_name_are_rejected() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0", ORDERS)
    partition(files, "orders-1", OTHER)
    assert "orders in /data belong to 2 topics of that name" in refused(files)


def test_directories_of_a_recreated_topic_are_rejected() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0", ORDERS)
    written(files, "00000000000000000000.log", 0, topic("orders", OTHER))
    assert "was deleted" in refused(files)


def test_old_message_format_is_rejected_before_any_file_changes() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    files.write_file(
        "/data/orders-0/00000000000000000500.log", bytes(16) + b"\x01" + bytes(50), sync=True
    )
    sentence = refused(files)
    assert "00000000000000000500.log has message format 1" in sentence


def test_internal_topics_of_kafka_are_ignored_except_committed_offsets() -> None:
    files = SimulatedFiles()
    for name in ("__transaction_state-0", "__share_group_state-3", "__consumer_offsets-0"):
        partition(files, name)
    written(files, "00000000000000000000.log", 0, topic("__consumer_offsets", ORDERS))
    controller = carried_out(looked(files))
    assert list(controller.created) == ["__consumer_offsets"]
    assert controller.created["__consumer_offsets"]["internal"]


def test_topics_that_the_store_knows_are_not_adopted_again() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    assert looked(files, ("orders",)).topics == []


def test_settings_come_from_kafkas_metadata() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    settings = (config("orders", "retention.ms", "5"), config("other", "retention.ms", "6"))
    written(files, "00000000000000000000.log", 0, topic("orders", ORDERS), *settings)
    (found,) = looked(files).topics
    assert found.configs == {"retention.ms": "5"}


def test_setting_that_headrace_rejects_is_omitted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    settings = (
        config("orders", "remote.storage.enable", "true"),
        config("orders", "retention.ms", "5"),
    )
    written(files, "00000000000000000000.log", 0, topic("orders", ORDERS), *settings)

    def refuse_remote(given: Any) -> None:
        if "remote.storage.enable" in given:
            raise ApiError(ErrorCode.INVALID_CONFIG, "There is no remote storage.")

    logs = LogDirectory("/data", files, ManualClock())
    logs.open()
    adoption = Adoption(logs, ())
    adoption.find_topics(refuse_remote)
    assert adoption.topics[0].configs == {"retention.ms": "5"}
    assert "There is no remote storage." in caplog.text


def test_a_topic_of_unknown_settings_keeps_everything() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0")
    partition(files, "latest-0", OTHER)
    compacted = encode_offsets({TopicPartition("latest", 0): 1})
    files.write_file("/data/cleaner-offset-checkpoint", compacted, sync=True)
    found = {each.name: each.configs for each in looked(files).topics}
    assert found["orders"] == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert found["latest"] == {"cleanup.policy": "compact"}


def test_partitions_without_an_id_get_one_before_the_store_knows_it() -> None:
    files = SimulatedFiles()
    for index in range(2):
        partition(files, f"orders-{index}", None)
    controller = carried_out(looked(files))
    topic_id = controller.created["orders"]["topic_id"]
    for index in range(2):
        data = files.read_file(f"/data/orders-{index}/partition.metadata")
        assert data == encode_partition_metadata(topic_id)
    # Had the store not been written, the next start would find the same.
    (again,) = looked(files.killed()).topics
    assert again.topic_id == topic_id


def test_no_producer_gets_an_id_that_is_in_an_adopted_log() -> None:
    files = SimulatedFiles()
    partition(files, "orders-0", producer_id=4711)
    adoption = looked(files)
    logs = adoption._logs
    logs.load({TopicPartition("orders", 0): (ORDERS, TopicConfig.resolve())})
    controller = NotedController()
    asyncio.run(adoption.reserve_producer_ids(controller))  # type: ignore[arg-type]
    assert controller.first_id_min == 4712
    written(files, "00000000000000000000.log", 0, producer_ids(9000))
    adoption.metadata = Adoption(logs, ()).metadata
    asyncio.run(adoption.reserve_producer_ids(controller))  # type: ignore[arg-type]
    assert controller.first_id_min == 9000
