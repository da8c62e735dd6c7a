"""A data directory notices partitions whose files were removed while no broker used it."""

import contextlib
from collections.abc import Callable
from uuid import UUID

import pytest

from headrace.env.files import Files
from headrace.log.directory import recorded_partitions
from headrace.log.directory.acceptance import accept_loss
from headrace.log.directory.log_directory import LogDirectory
from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import ManualClock, append, topic_config, values

A = TopicPartition("a", 0)
B = TopicPartition("b", 0)
ID = UUID(int=1)
OTHER_ID = UUID(int=2)
CONFIG = topic_config()
WANTED = {A: (ID, CONFIG), B: (OTHER_ID, CONFIG)}


def opened(files: SimulatedFiles) -> LogDirectory:
    directory = LogDirectory("/data", files, ManualClock())
    directory.open()
    return directory


def served(files: SimulatedFiles, broker_epoch: int = 5) -> LogDirectory:
    """A directory while a broker serves two new partitions."""
    directory = opened(files)
    directory.registered(broker_epoch)
    directory.load({})
    for partition, (topic_id, config) in WANTED.items():
        append(directory.create(partition, topic_id, config), f"of {partition}")
    return directory


def remove_directory(files: Files, path: str = "/data/a-0") -> None:
    for info in files.list_directory(path):
        files.remove(f"{path}/{info.name}")
    files.remove_directory(path)
    files.sync_directory("/data")


def remove_segments(files: Files, path: str = "/data/a-0") -> None:
    for info in files.list_directory(path):
        if info.name.endswith(".log"):
            files.remove(f"{path}/{info.name}")
    files.sync_directory(path)


Remove = Callable[[Files], None]
removals = pytest.mark.parametrize("remove", [remove_directory, remove_segments])


@removals
def test_a_removed_partition_withdraws_the_proof_before_any_checkpoint(remove: Remove) -> None:
    files = SimulatedFiles()
    served(files)
    disk = files.killed()
    assert opened(disk).kept_epoch == 5
    disk = files.killed()
    remove(disk)
    assert (opened(disk).kept_epoch, opened(disk.killed()).last_epoch) == (-1, 5)


@removals
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_removed_only_copy_stays_offline_at_every_start(remove: Remove, is_clean: bool) -> None:
    files = SimulatedFiles()
    directory = served(files)
    if is_clean:
        assert directory.close({A: 1, B: 1}, 5)
    disk = files.killed()
    remove(disk)
    for epoch in (6, 7):
        again = opened(disk)
        again.registered(epoch)
        again.load(WANTED, only_copies=WANTED)
        log = again.create(A, ID, CONFIG, is_only_copy=True)
        assert log.is_offline
        with pytest.raises(ApiError, match="a-0 is offline: its segments were removed"):
            append(log, "lost")
        assert not again.create(B, OTHER_ID, CONFIG, is_only_copy=True).is_offline
        disk = disk.power_lost(epoch) if epoch == 6 else disk.killed()
    if is_clean and remove is remove_segments:
        return  # Its checkpoint contradicts the files: only an operator brings it back.
    # Another broker has all records in the meantime: the replica can be copied again.
    last = opened(disk)
    last.registered(8)
    last.load(WANTED)
    assert values(last.create(A, ID, CONFIG)) == []


@removals
def test_a_removed_replica_of_several_starts_empty_and_without_proof(remove: Remove) -> None:
    files = SimulatedFiles()
    served(files)
    disk = files.killed()
    remove(disk)
    again = opened(disk)
    assert again.kept_epoch == -1
    again.registered(6)
    again.load(WANTED)
    log = again.create(A, ID, CONFIG)
    assert (log.is_offline, values(log)) == (False, [])
    append(log, "copied")
    # Epoch 6 covers the records written after that registration.
    last = opened(disk.killed())
    assert last.kept_epoch == 6
    last.load(WANTED, only_copies=WANTED)
    assert values(last.create(A, ID, CONFIG, is_only_copy=True)) == ["copied"]


def test_a_power_loss_takes_new_partitions_without_taking_them_offline() -> None:
    for seed in range(30):
        files = SimulatedFiles(seed)
        served(files)
        again = opened(files.power_lost(seed))
        again.registered(6)
        again.load(WANTED, only_copies=WANTED)
        for partition, (topic_id, config) in WANTED.items():
            log = again.create(partition, topic_id, config, is_only_copy=True)
            assert not log.is_offline


def test_a_directory_that_is_missing_after_a_power_loss_was_durable_if_a_checkpoint_names_it() -> (
    None
):
    files = SimulatedFiles()
    served(files).checkpoint_job({A: 1, B: 1}).run()
    for seed in range(10):
        disk = files.power_lost(seed)
        remove_directory(disk)
        again = opened(disk)
        again.load(WANTED, only_copies=WANTED)
        assert again.create(A, ID, CONFIG, is_only_copy=True).is_offline


def test_deleted_and_recreated_partitions_are_not_lost() -> None:
    files = SimulatedFiles()
    directory = served(files)
    directory.checkpoint_job({A: 1, B: 1}).run()
    directory.delete(A)
    directory.delete(B)
    while directory.put_aside():
        pass
    append(directory.create(B, UUID(int=3), CONFIG), "of another topic")
    for disk in (files.killed(), files.power_lost(1)):
        again = opened(disk)
        assert again.kept_epoch in (5, -1)
        again.load({B: (UUID(int=3), CONFIG)}, only_copies={A, B})
        assert not again.create(A, ID, CONFIG, is_only_copy=True).is_offline
        assert not again.create(B, UUID(int=3), CONFIG, is_only_copy=True).is_offline


def test_a_kill_at_any_operation_of_a_deletion_or_creation_leaves_no_partition_lost() -> None:
    def live(files: SimulatedFiles) -> None:
        directory = served(files)
        directory.checkpoint_job({A: 1, B: 1}).run()
        directory.delete(A)
        directory.put_aside()
        append(directory.create(A, UUID(int=3), CONFIG), "of another topic")
        directory.checkpoint_job({A: 0, B: 1}).run()
        directory.checkpoint_job({A: 1, B: 1}).run()

    counted = SimulatedFiles()
    live(counted)
    for at in range(1, counted.operations + 1):
        files = SimulatedFiles()
        files.crash_at = at
        with contextlib.suppress(SimulatedCrash):
            live(files)
        again = LogDirectory("/data", files.killed(), ManualClock())
        again.open()
        assert again.recorded.lost == {}


def test_rows_are_removed_once_a_checkpoint_has_them() -> None:
    files = SimulatedFiles()
    directory = served(files)
    rows = files.read_file(f"/data/{recorded_partitions.CREATED}").decode().split("\n")
    assert rows == ["", f"+a-0 {ID}", f"+b-0 {OTHER_ID}"]
    directory.checkpoint_job({}).run()
    directory.checkpoint_job({})
    assert files.read_file(f"/data/{recorded_partitions.CREATED}") == b""
    assert recorded_partitions.read_ids(files, f"/data/{recorded_partitions.TOPIC_IDS}") == {
        "a-0": ID,
        "b-0": OTHER_ID,
    }
    assert directory.close({}, 5)
    assert not files.exists(f"/data/{recorded_partitions.CREATED}")


def test_a_partition_is_not_served_if_it_cannot_be_recorded() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    directory.create(A, ID, CONFIG)
    before = files.operations
    directory.create(B, OTHER_ID, CONFIG)
    last = files.operations
    directory.delete(B)
    directory.put_aside()
    files.fail_at[files.operations + last - before] = 28
    with pytest.raises(ApiError, match="b-0 cannot be written"):
        directory.create(B, OTHER_ID, CONFIG)
    assert directory.get(B) is None
    assert not directory.create(B, OTHER_ID, CONFIG).is_offline


def test_a_removed_directory_of_an_unknown_topic_withdraws_the_proof_once() -> None:
    files = SimulatedFiles()
    served(files)
    disk = files.killed()
    remove_directory(disk)
    again = opened(disk)
    assert again.kept_epoch == -1
    again.registered(6)
    again.load({B: WANTED[B]})
    again.checkpoint_job({B: 1}).run()
    assert opened(disk.killed()).kept_epoch == 6


def test_an_offline_log_is_reported_once_and_with_the_next_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = SimulatedFiles()
    assert served(files).close({A: 1, B: 1}, 5)
    files.write_file("/data/a-0/00000000000000000000.log", b"", sync=True)
    again = opened(files)
    again.load(WANTED)
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert line.startswith("log is offline, its files cannot be used: partition=a-0 reason=0000")
    assert "next_step=Stop the broker; restore the files, or accept the loss with" in line


@removals
def test_an_accepted_loss_brings_an_only_copy_back(remove: Remove) -> None:
    files = SimulatedFiles()
    assert served(files).close({A: 1, B: 1}, 5)
    remove(files)
    accept_loss(files, "/data", A)
    again = opened(files)
    again.registered(6)
    again.load(WANTED, only_copies=WANTED)
    log = again.create(A, ID, CONFIG, is_only_copy=True)
    again.go_offline_if_incomplete(log)
    assert (log.is_offline, values(log)) == (False, [])
    other = again.get(B)
    assert other is not None
    assert values(other) == ["of b-0"]
    assert again.high_watermarks == {B: 1}
