"""What a broker does with the states that the image brings."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.cluster.changes import ImageChange
from headrace.log.directory.directory_jobs import RemoveDirectories
from headrace.log.directory.log_directory import LogDirectory
from headrace.model.topics import NO_LEADER, PartitionState, TopicPartition, TopicState
from headrace.node.replicas import Replicas
from headrace.replication.partition import Partition
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import ManualClock, topic_config
from tests.unit.replication.replica_scenario import Node

HERE, THERE = 1, 2
EPOCH = 101
LED = PartitionState(HERE, 5, (HERE, THERE), (HERE, THERE), 7, (EPOCH, 102))


class RecordingFetchers:
    def __init__(self) -> None:
        self.followed: dict[Partition, None] = {}

    def follow(self, partition: Partition) -> None:
        self.followed[partition] = None

    def unfollow(self, partition: Partition) -> None:
        self.followed.pop(partition, None)


class Logs:
    def __init__(self) -> None:
        self.deleted: list[TopicPartition] = []

        self.checked: list[TopicPartition] = []
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.log: Any = None

    def delete(self, partition: TopicPartition) -> None:
        self.deleted.append(partition)

    def create(self, *_: object, is_only_copy: bool = False) -> Any:
        return self.log

    def go_offline_if_incomplete(self, log: Any) -> None:
        self.checked.append(log.partition)

    def discard(self, partition: TopicPartition) -> None:
        pass

    def put_aside(self) -> bool:
        return False

    def removal_job(self) -> None:
        pass


class Scene:
    def __init__(self) -> None:
        self.node = Node(HERE, ManualClock())
        self.partition = self.node.add()
        self.fetchers = RecordingFetchers()
        self.logs = Logs()
        nothing = cast("Any", None)
        self.replicas = Replicas(
            node_id=HERE,
            config=cast("Any", SimpleNamespace(topic_config=lambda _: self.partition.log.config)),
            image=nothing,
            logs=cast("Any", self.logs),
            table=self.node.table,
            clock=self.node.clock,
            appends=self.node.appends,
            remove=nothing,
            broker_epoch=lambda: EPOCH,
            fetchers=self.fetchers,
        )

    def told(self, state: PartitionState) -> tuple[bool, bool]:
        """Whether the partition is led here afterwards, and whether it is followed."""
        self.replicas._apply_state(self.partition, state)
        return self.partition.is_leader, self.partition in self.fetchers.followed


def test_broker_becomes_leader_and_resigns() -> None:
    scene = Scene()
    assert scene.told(LED) == (True, False)
    assert scene.told(replace(LED, leader=THERE, leader_epoch=6)) == (False, True)
    assert scene.told(replace(LED, leader=NO_LEADER, leader_epoch=7)) == (False, False)


def test_leadership_of_a_former_incarnation_is_ignored() -> None:
    scene = Scene()
    assert scene.told(replace(LED, isr_epochs=(EPOCH - 1, 102))) == (False, False)
    assert scene.told(replace(LED, leader_epoch=6)) == (True, False)


def test_a_broker_does_not_lead_with_an_offline_log() -> None:
    scene = Scene()
    scene.partition.log.go_offline(OSError(5, "failed"))
    assert scene.told(LED) == (False, False)


def test_lower_leader_epoch_is_ignored() -> None:
    scene = Scene()
    scene.told(LED)
    assert scene.told(replace(LED, leader=THERE, leader_epoch=4, partition_epoch=99)) == (
        True,
        False,
    )
    assert scene.partition.leader_epoch == 5


def test_a_partition_that_moves_away_is_dropped_also_if_settings_change_in_the_same_breath() -> (
    None
):
    scene = Scene()
    scene.told(LED)
    name, index = scene.partition.topic, int(scene.partition.index)
    states = (LED,) * (index + 1)
    before = TopicState(name, UUID(int=1), states, {"leader.replication.throttled.replicas": "*"})
    gone = replace(LED, leader=THERE, leader_epoch=6, replicas=(THERE,), isr=(THERE,))
    after = TopicState(name, UUID(int=1), (*states[:index], gone))
    scene.replicas.changed(ImageChange(changed=((before, after),)))
    assert scene.logs.deleted == [TopicPartition(name, index)]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_directory_of_a_log_that_could_not_be_opened_is_removed_with_its_partition(
    is_deleted: bool,
) -> None:
    asyncio.run(_fail_to_open_and_remove(is_deleted))


async def _fail_to_open_and_remove(is_deleted: bool) -> None:
    files, scene = SimulatedFiles(), Scene()
    logs = LogDirectory("/data", files, scene.node.clock)
    logs.open()
    logs.load({})
    topic = TopicState("new", UUID(int=1), (LED,))
    replicas = scene.replicas
    replicas._logs = logs
    replicas._image = cast("Any", SimpleNamespace(topics={topic.name: topic}))
    replicas._remove = RemoveDirectories.run
    files.open_max = len(files.open_descriptors())
    replicas.changed(ImageChange(created=(topic,)))
    assert scene.node.table.get(topic.name, 0) is None
    assert files.exists("/data/new-0")
    gone = replace(LED, leader=THERE, leader_epoch=6, replicas=(THERE,), isr=(THERE,))
    moved = topic, replace(topic, partitions=(gone,))
    change = ImageChange(deleted=(topic,)) if is_deleted else ImageChange(changed=(moved,))
    files.open_max = None
    replicas.changed(change)
    replicas.stop()
    assert not any(info.name.startswith("new-0") for info in files.list_directory("/data"))


def test_partition_that_cannot_be_opened_has_a_reason_until_a_retry_succeeds() -> None:
    asyncio.run(_fail_to_open_and_retry())


async def _fail_to_open_and_retry() -> None:
    files, scene = SimulatedFiles(), Scene()
    logs = LogDirectory("/data", files, scene.node.clock)
    logs.open()
    logs.load({})
    topic = TopicState("new", UUID(int=1), (LED,))
    replicas, table = scene.replicas, scene.node.table
    replicas._logs = logs
    replicas._image = cast("Any", SimpleNamespace(topics={topic.name: topic}))
    config = scene.partition.log.config
    replicas._config = cast(
        "Any", SimpleNamespace(topic_config=lambda _: config, get_int=lambda _: 1 << 20)
    )
    files.open_max = len(files.open_descriptors())
    replicas.changed(ImageChange(created=(topic,)))
    for key in (b"new", topic.topic_id.bytes):
        assert table.why_unopened(key, 0).startswith("new-0 cannot be written: ")
        assert table.why_unopened(key, 1) == ""
    files.open_max = None
    replicas._open_again(topic.name)
    replicas.stop()
    assert table.get(topic.name, 0) is not None
    assert table.why_unopened(b"new", 0) == ""


def test_only_members_of_isr_and_elr_must_have_their_committed_records() -> None:
    """The checkpoint of a replica that moved away and back can be of its former log."""
    for state, is_member in (
        (LED, True),
        (replace(LED, leader=THERE, isr=(THERE,), isr_epochs=(102,)), False),
        (replace(LED, leader=THERE, isr=(THERE,), isr_epochs=(102,), elr=((HERE, 1),)), True),
    ):
        scene = Scene()
        name, index = scene.partition.topic, int(scene.partition.index)
        scene.logs.log = scene.partition.log
        scene.node.table.drop(name, index)
        topic = TopicState(name, UUID(int=1), (state,) * (index + 1))
        scene.replicas._config = cast(
            "Any",
            SimpleNamespace(
                topic_config=lambda _, config=scene.partition.log.config: config,
                get_int=lambda _: 1 << 20,
            ),
        )
        scene.replicas._open(topic, index)
        assert bool(scene.logs.checked) is is_member


def test_lowering_min_insync_replicas_commits_records() -> None:
    scene = Scene()
    strict = topic_config(min_insync_replicas=2)
    scene.partition.configure(strict)
    scene.told(replace(LED, isr=(HERE,), isr_epochs=(EPOCH,)))
    scene.node.append("a")
    assert scene.partition.high_watermark == 0
    name, index = scene.partition.topic, int(scene.partition.index)
    state = replace(LED, isr=(HERE,), isr_epochs=(EPOCH,))
    topic = TopicState(name, UUID(int=1), (state,) * (index + 1))
    scene.replicas._config = cast("Any", SimpleNamespace(topic_config=lambda _: topic_config()))
    scene.replicas._update(topic)
    assert scene.partition.high_watermark == 1
