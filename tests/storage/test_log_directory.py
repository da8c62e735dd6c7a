"""The data directory: its lock, its identity, its partitions, and how it is left."""

import errno
import logging
from pathlib import Path
from uuid import UUID

import pytest

from headrace.env.clock import SystemClock
from headrace.env.files import Bytes, SystemFiles
from headrace.log.directory.directory_lock import DirectoryError
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.directory.partition_directories import parse_partition
from headrace.log.directory.recorded_partitions import TOPIC_IDS
from headrace.log.state import LogSettings
from headrace.model.topics import TopicPartition
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    ManualClock,
    append,
    topic_config,
    values,
    work,
)

A = TopicPartition("a", 0)
B = TopicPartition("b-with-dashes", 12)
ID = UUID(int=1)
OTHER_ID = UUID(int=2)
CONFIG = topic_config()
WANTED = {A: (ID, CONFIG), B: (OTHER_ID, CONFIG)}


def opened(files: SimulatedFiles, clock: ManualClock | None = None) -> LogDirectory:
    directory = LogDirectory("/data", files, clock or ManualClock())
    directory.open()
    return directory


def test_partitions_are_opened_after_a_restart() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    for partition, (topic_id, config) in WANTED.items():
        append(directory.create(partition, topic_id, config), f"of {partition}")
    assert directory.close({A: 1, B: 1}, broker_epoch=5)
    directory = opened(files.power_lost())
    assert directory.unopened == [A, B]
    assert directory.proof.was_clean
    assert directory.proof.clean_epoch == 5
    assert directory.high_watermarks == {A: 1, B: 1}
    directory.load(WANTED)
    assert [values(log) for log in directory.logs()] == [["of a-0"], ["of b-with-dashes-12"]]
    assert directory.unopened == []
    assert directory.get(A) is directory.create(A, ID, CONFIG)


def test_only_partitions_that_were_reassigned_to_other_brokers_are_removed() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    for partition, (topic_id, config) in WANTED.items():
        append(directory.create(partition, topic_id, config), f"of {partition}")
    directory.close({})
    directory = opened(files.killed())
    directory.load({}, {A: ID, B: ID, TopicPartition("never-here", 0): ID})
    removal = directory.removal_job()
    assert removal is not None
    removal.run()
    assert directory.unopened == [
        B
    ]  # Of another topic of that name: it is not known to be elsewhere.
    names = [info.name for info in directory.files.list_directory("/data") if info.is_directory]
    assert names == [str(B)]


def test_a_marker_of_another_broker_epoch_does_not_count() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    directory.close({}, broker_epoch=5)
    for expected, is_clean in ((None, True), (5, True), (6, False)):
        directory = LogDirectory("/data", files.killed(), ManualClock())
        directory.open(expected)
        assert directory.proof.was_clean is is_clean


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 0}', b'{"brokerEpoch": "x"}'])
def test_a_garbled_marker_is_none(content: bytes) -> None:
    files = SimulatedFiles()
    opened(files).close({})
    files.write_file("/data/.kafka_cleanshutdown", content, sync=True)
    assert not opened(files.killed()).proof.was_clean


def test_marker_is_deleted_durably_before_the_first_append() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    directory.close({})
    directory = opened(files)
    directory.load({})
    for seed in range(5):
        assert not files.power_lost(seed).exists("/data/.kafka_cleanshutdown")


def test_a_log_that_failed_leaves_no_marker() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    log = directory.create(A, ID, CONFIG)
    append(log, "x")
    log.go_offline(OSError(5, "x"))
    assert not directory.close({})
    assert not files.exists("/data/.kafka_cleanshutdown")


def test_unknown_partition_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    append(directory.create(A, ID, CONFIG), "mine")
    append(directory.create(B, OTHER_ID, CONFIG), "whose?")
    directory.close({})
    files.make_directory("/data/lost+found")
    before = files.list_directory("/data/b-with-dashes-12")
    with caplog.at_level(logging.WARNING):
        directory = opened(files)
        directory.load({A: (ID, CONFIG)})
    assert [r.getMessage() for r in caplog.records] == [
        "partitions of unknown topics: directory=/data partitions=b-with-dashes-12"
    ]
    assert files.list_directory("/data/b-with-dashes-12") == before
    assert directory.get(B) is None
    # It is taken up once the topic is known after all.
    assert values(directory.create(B, OTHER_ID, CONFIG)) == ["whose?"]


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("topic", ["a", "a" * 249])
def test_directory_of_a_former_topic_is_renamed(is_loaded: bool, topic: str) -> None:
    files = SimulatedFiles()
    partition = TopicPartition(topic, 0)
    directory = opened(files)
    directory.load({})
    append(directory.create(partition, OTHER_ID, CONFIG), "of the former topic")
    directory.close({})
    directory = opened(files)
    directory.load({partition: (ID, CONFIG)} if is_loaded else {})
    log = directory.create(partition, ID, CONFIG)
    assert values(log) == []
    append(log, "of the new one")
    aside = [i.name for i in files.list_directory("/data") if i.name.endswith("-stray")]
    assert len(aside) == 1
    assert len(aside[0]) <= 255
    assert files.exists(f"/data/{aside[0]}/{0:020d}.log")
    assert parse_partition(aside[0]) is None


def test_deleted_partition_is_renamed_immediately_and_removed_by_a_job() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    log = directory.create(A, ID, CONFIG)
    append(log, "x")
    found = log.read(0, 1000, 1, True)
    assert found is not None
    directory.delete(A)
    assert directory.get(A) is None
    assert log.next_job(NOW_MS) is None
    assert directory.put_aside()
    assert not directory.put_aside()
    assert not files.exists("/data/a-0")
    assert len(found.read()) > 61
    assert values(directory.create(A, OTHER_ID, CONFIG)) == []
    job = directory.removal_job()
    assert directory.removal_job() is None
    # A crash before the job: the next start has it to do.
    removal = opened(files.killed()).removal_job()
    assert job is not None
    assert removal is not None
    assert removal.paths == job.paths
    job.run()
    assert not [i for i in files.list_directory("/data") if i.name.endswith("-delete")]


@pytest.mark.parametrize("is_closed", [False, True])
def test_deleted_partition_blocks_neither_a_recreated_one_nor_the_stop(is_closed: bool) -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    append(directory.create(A, ID, CONFIG), "old")
    directory.delete(A)
    if is_closed:
        directory.close({})
    else:
        append(directory.create(A, OTHER_ID, CONFIG), "new")
    names = [info.name for info in files.list_directory("/data")]
    assert not [name for name in names if name.endswith("-stray")]
    assert len([name for name in names if name.endswith("-delete")]) == 1
    assert files.exists("/data/a-0") == (not is_closed)


def test_a_job_of_a_deleted_partition_leaves_no_trace_in_a_new_one_of_that_name() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    log = directory.create(A, ID, CONFIG)
    append(log, "old")
    job = log.next_job(NOW_MS)
    assert job is not None
    directory.delete(A)
    append(directory.create(A, OTHER_ID, CONFIG), "new")
    job.run()
    log.finish_job(job)
    again = opened(files.killed())
    again.load({A: (OTHER_ID, CONFIG)})
    assert values(again.create(A, OTHER_ID, CONFIG)) == ["new"]


def test_a_long_topic_name_can_be_deleted(tmp_path: Path) -> None:
    directory = LogDirectory(str(tmp_path), SystemFiles(), SystemClock())
    directory.open()
    directory.load({})
    partition = TopicPartition("x" * 249, 7)
    append(directory.create(partition, ID, CONFIG), "x")
    directory.delete(partition)
    directory.put_aside()
    removal = directory.removal_job()
    assert removal is not None
    removal.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "headrace-created"]
    directory.close({})


def test_the_directory_belongs_to_one_node_of_one_cluster() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.claim("cluster-1", 4)
    directory.close({})
    directory = opened(files)
    assert directory.identity["cluster.id"] == "cluster-1"
    assert directory.identity["node.id"] == "4"
    assert directory.identity["version"] == "1"
    first = directory.identity["directory.id"]
    directory.claim("cluster-1", 4)
    assert directory.identity["directory.id"] == first
    with pytest.raises(DirectoryError, match=r"node.id 4, but this broker has node.id 5"):
        directory.claim("cluster-1", 5)
    with pytest.raises(DirectoryError, match=r"cluster.id cluster-1"):
        directory.claim("cluster-2", 4)


def test_meta_properties_of_kafka_are_read() -> None:
    files = SimulatedFiles()
    files.make_directory("/data")
    text = b"#\n#Mon Jan 01 00:00:00 UTC 2024\ncluster.id=abc\nversion=0\nbroker.id=3\n"
    files.write_file("/data/meta.properties", text, sync=True)
    directory = opened(files)
    directory.claim("abc", 3)
    assert directory.identity["node.id"] == "3"
    with pytest.raises(DirectoryError):
        opened(files.killed()).claim("abc", 2)


def test_second_broker_gets_an_error_with_the_holder_of_the_directory(tmp_path: Path) -> None:
    first = LogDirectory(str(tmp_path), SystemFiles(), SystemClock())
    first.open()
    second = LogDirectory(str(tmp_path), SystemFiles(), SystemClock())
    with pytest.raises(DirectoryError, match=r"in use by process \d+\. Stop it"):
        second.open()
    first.close({})
    second.open()
    second.close({})


def test_directory_that_cannot_be_created_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directory = LogDirectory(str(tmp_path / "file" / "data"), SystemFiles(), SystemClock())
    with pytest.raises(
        DirectoryError, match=r"Cannot use data directory .*: Not a directory\. Fix that, or choose"
    ):
        directory.open()


def test_checkpoints_are_written_as_kafka_reads_them() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    log = directory.create(B, ID, topic_config(segment_bytes=300))
    for _ in range(10):
        append(log, "x" * 20)
    log.delete_records(4, 10)
    work(log)
    directory.checkpoint_job({B: 9}).run()
    point = log.durable.recovery_point
    assert files.read_file("/data/replication-offset-checkpoint") == b"0\n1\nb-with-dashes 12 9\n"
    assert files.read_file("/data/log-start-offset-checkpoint") == b"0\n1\nb-with-dashes 12 4\n"
    assert (
        files.read_file("/data/recovery-point-offset-checkpoint")
        == f"0\n1\nb-with-dashes 12 {point}\n".encode()
    )
    assert point == log.segments.base_offsets[-1]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"0\n5\na 0 1\n", b"1\n0\n", b"0\n1\na x 1\n"]
)
def test_garbled_checkpoints_change_nothing(content: bytes) -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    log = directory.create(A, ID, CONFIG)
    for _ in range(5):
        append(log, "x")
    log.delete_records(2, 5)
    work(log)
    directory.close({A: 5})
    for name in ("replication", "log-start", "recovery-point"):
        files.write_file(f"/data/{name}-offset-checkpoint", content, sync=True)
    directory = opened(files)
    directory.load({A: (ID, CONFIG)})
    log = directory.create(A, ID, CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (2, 5)


def test_tick_returns_the_logs_with_due_jobs() -> None:
    clock = ManualClock()
    files = SimulatedFiles()
    directory = LogDirectory("/data", files, clock, LogSettings(checkpoint_bytes=100))
    directory.open()
    directory.load({})
    log = directory.create(A, ID, topic_config(flush_ms=500))
    directory.create(B, OTHER_ID, CONFIG)
    # An empty directory may be lost, and is created again.
    assert directory.logs_with_due_jobs(clock.now_ms) == []
    append(log, "x" * 100)
    # The first record is there: its directory must last.
    assert directory.logs_with_due_jobs(clock.now_ms) == [log]
    work(log, clock.now_ms)
    assert log.durable.is_directory_durable
    assert directory.logs_with_due_jobs(clock.now_ms) == []
    append(log, "x" * 100)
    assert directory.logs_with_due_jobs(clock.now_ms) == []
    clock.advance(500)
    assert directory.logs_with_due_jobs(clock.now_ms) == [log]
    work(log, clock.now_ms)
    # It is synced now, and a checkpoint would spare the scan of it.
    assert directory.logs_with_due_jobs(clock.now_ms) == [log]
    work(log, clock.now_ms)
    assert log.durable.recovery_point == log.log_end_offset
    assert directory.logs_with_due_jobs(clock.now_ms) == []


def test_deletion_by_age_pauses_while_the_wall_clock_is_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    directory = opened(SimulatedFiles(), clock)
    directory.load({})
    log = directory.create(A, ID, topic_config(retention_ms=3_600_000))
    append(log, "x", timestamp=clock.now_ms, now_ms=clock.now_ms)
    clock.now_ms += 365 * 86_400_000
    with caplog.at_level(logging.WARNING):
        directory.apply_retention({A: 1})
        directory.apply_retention({A: 1})
    assert log.durable.target_start_offset == 0
    assert len(caplog.records) == 1
    clock.now_ms -= 365 * 86_400_000
    clock.advance(3_600_001)
    directory.apply_retention({A: 1})
    assert log.durable.target_start_offset == 1


def test_nothing_is_deleted_by_age_by_a_broker_that_started_with_a_wrong_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    written_ms = clock.now_ms
    clock.now_ms += 365 * 86_400_000
    directory = opened(SimulatedFiles(), clock)
    directory.load({})
    log = directory.create(A, ID, topic_config(retention_ms=3_600_000))
    append(log, "x", timestamp=written_ms, now_ms=written_ms)
    with caplog.at_level(logging.WARNING):
        directory.wall_clock_check.set_reference(written_ms)
    assert f"skew_s={365 * 86_400}" in caplog.text
    directory.apply_retention({A: 1})
    assert log.durable.target_start_offset == 0
    clock.now_ms = written_ms
    clock.advance(3_600_001)
    directory.apply_retention({A: 1})
    assert log.durable.target_start_offset == 1


def test_silent_producers_are_forgotten_whatever_the_clocks_of_others_say() -> None:
    clock = ManualClock()
    directory = opened(SimulatedFiles(), clock)
    directory.load({})
    log = directory.create(A, ID, CONFIG)
    append(log, "x", producer=(1, 0, 0), timestamp=0)
    append(log, "x", producer=(2, 0, 0), transactional=True, timestamp=0)
    assert directory.expire_producers(60_000) == 0
    clock.now_ms += 10**12
    append(log, "x", producer=(3, 0, 0))
    assert directory.expire_producers(60_000) == 0
    clock.seconds += 60
    # The second has a transaction open; the third was heard since the mark.
    assert directory.expire_producers(60_000) == 1
    assert sorted(log.producers.entries) == [2, 3]
    clock.seconds += 60
    assert directory.expire_producers(60_000) == 1
    assert sorted(log.producers.entries) == [2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", A),
        ("b-with-dashes-12", B),
        ("a", None),
        ("a-", None),
        ("-0", None),
        ("a-x", None),
        ("a-0.abc-delete", None),
        ("..-1", None),
        ("lost+found", None),
        ("a-²", None),
    ],
)
def test_directories_with_other_names_are_not_partitions(
    name: str, expected: TopicPartition | None
) -> None:
    assert parse_partition(name) == expected


def test_high_watermark_of_a_former_topic_does_not_apply_to_a_recreated_one() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    append(directory.create(A, ID, CONFIG), "former")
    directory.checkpoint_job({A: 1}).run()
    # The topic is deleted and created again; the kill comes before the next checkpoint.
    directory.delete(A)
    directory.create(A, OTHER_ID, CONFIG)
    directory = opened(files.killed())
    assert directory.high_watermarks == {A: 1}
    directory.load({A: (OTHER_ID, CONFIG)})
    assert directory.high_watermarks == {}


def test_high_watermark_applies_to_the_same_topic_after_a_kill() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    append(directory.create(A, ID, CONFIG), "kept")
    directory.checkpoint_job({A: 1}).run()
    directory = opened(files.killed())
    directory.load({A: (ID, CONFIG)})
    assert directory.high_watermarks == {A: 1}


@pytest.mark.parametrize("existed", [False, True])
def test_abandoned_new_directory_is_as_before(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "data"
    if existed:
        path.mkdir()
        (path / "note").touch()
    directory = LogDirectory(str(path), SystemFiles(), SystemClock())
    directory.open()
    (path / "store").write_bytes(b"new")
    directory.claim("cluster-1", 1)
    directory.abandon()
    assert path.exists() == existed
    if existed:
        assert [each.name for each in path.iterdir()] == ["note"]
    directory.open()
    directory.abandon()


def test_abandoned_directory_of_an_earlier_broker_keeps_its_files() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.claim("cluster-1", 1)
    directory.load({})
    append(directory.create(A, ID, CONFIG), "kept")
    directory.close({A: 1})
    before = [each.name for each in files.list_directory("/data")]
    opened(files).abandon()
    assert [each.name for each in files.list_directory("/data")] == before
    directory = opened(files)
    directory.load(WANTED)
    assert values(directory.logs()[0]) == ["kept"]


@pytest.mark.parametrize("name", ["headrace-checkpoint", "partition.metadata", f"{0:020d}.log"])
def test_a_directory_in_place_of_a_file_takes_only_its_log_offline(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = str(tmp_path)
    directory = LogDirectory(data, SystemFiles(), ManualClock())
    directory.open()
    directory.load({})
    for partition, (topic_id, config) in WANTED.items():
        append(directory.create(partition, topic_id, config), f"of {partition}")
    directory.close({A: 1, B: 1})
    path = tmp_path / str(A) / name
    path.unlink(missing_ok=True)
    path.mkdir()
    again = LogDirectory(data, SystemFiles(), ManualClock())
    again.open()
    again.load(WANTED)
    damaged, intact = again.logs()
    assert (damaged.is_offline, intact.is_offline) == (True, False)
    assert values(intact) == ["of b-with-dashes-12"]
    assert damaged.log_end_offset == 1
    assert f"{path}: Is a directory" in damaged.offline_reason
    assert damaged.offline_reason in caplog.text
    assert not again.close({A: 1, B: 1})


def test_a_start_without_free_descriptors_fails() -> None:
    files = SimulatedFiles()
    directory = opened(files)
    directory.load({})
    append(directory.create(A, ID, CONFIG), "x")
    image = files.killed()
    directory = opened(image)
    image.fail_at = {image.operations + 1: errno.EMFILE}
    with pytest.raises(OSError, match=r"\[Errno 24\]"):
        directory.load(WANTED)


THREAD = "7f35b5e496c0"


def test_start_removes_only_temporary_files_of_headrace() -> None:
    names = ["headrace-topic-ids", "cleaner-offset-checkpoint", "meta.properties"]
    removed = [f"{name}.{THREAD}.tmp" for name in names]
    kept = [
        "cleaner-offset-checkpoint",
        "cleaner-offset-checkpoint.tmp",
        "cleaner-offset-checkpoint.bad.tmp",
        "cleaner-offset-checkpoint.202611191200.tmp",
        f"notes.{THREAD}.tmp",
        f"cleaner-offset-checkpoint.{THREAD}.tmp.old",
    ]
    files = SimulatedFiles()
    opened(files).close({})
    for name in (*removed, *kept):
        files.write_file(f"/data/{name}", b"x", sync=True)
    opened(files)
    present = {info.name for info in files.list_directory("/data")}
    assert present.isdisjoint(removed)
    assert present.issuperset(kept)


def test_start_removes_the_file_of_an_interrupted_replacement(tmp_path: Path) -> None:
    class FullDisk(SystemFiles):
        def write_file(self, path: str, data: Bytes, *, sync: bool) -> None:
            super().write_file(path, data[:1], sync=sync)
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        FullDisk().replace_file(str(tmp_path / TOPIC_IDS), b"content")
    assert len(list(tmp_path.glob("*.tmp"))) == 1
    directory = LogDirectory(str(tmp_path), SystemFiles(), ManualClock())
    directory.open()
    assert not list(tmp_path.glob("*.tmp"))


def test_temporary_file_that_cannot_be_removed_does_not_prevent_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Undeletable(SimulatedFiles):
        def remove(self, path: str) -> None:
            if path.endswith(".tmp"):
                raise OSError(errno.EACCES, "Permission denied")
            super().remove(path)

    files = Undeletable()
    files.make_directory("/data")
    files.write_file(f"/data/{TOPIC_IDS}.{THREAD}.tmp", b"x", sync=True)
    opened(files)
    assert "temporary file not removed" in caplog.text
