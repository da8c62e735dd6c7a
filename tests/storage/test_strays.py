"""Replicas of topics that were deleted while a broker was down."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import pytest

from headrace.log.directory.directory_jobs import RemoveDirectories
from headrace.log.directory.log_directory import LogDirectory
from headrace.model.topics import TopicPartition
from headrace.node.strays import FILE, StoreRecord, Strays, decide, decode, encode
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import ManualClock, append, topic_config, work

A = TopicPartition("a", 0)
ID = UUID(int=1)
OTHER_ID = UUID(int=2)
CONFIG = topic_config()
DELAY_S = 60.0
BEFORE = StoreRecord("store", 5)

Job = Callable[[], object]
Done = Callable[[object, BaseException | None], None]
T = TypeVar("T")


def made(*, has_records: bool = True, is_checkpointed: bool = True) -> SimulatedFiles:
    """A data directory with one partition, left by kill -9, usually after its first checkpoint."""
    files = SimulatedFiles()
    directory = opened(files, {})
    directory.registered(5)
    log = directory.create(A, ID, CONFIG)
    if has_records:
        append(log, "x")
        if is_checkpointed:
            work(log)
    return files.killed()


def opened(
    files: SimulatedFiles, wanted: dict[TopicPartition, UUID], record: StoreRecord | None = BEFORE
) -> LogDirectory:
    if record is not None:
        if not files.exists("/data"):
            files.make_directory("/data")
        files.write_file(f"/data/{FILE}", encode(record), sync=True)
    directory = LogDirectory("/data", files, ManualClock())
    directory.open()
    directory.load({partition: (topic_id, CONFIG) for partition, topic_id in wanted.items()})
    return directory


class Shell:
    """The worker of a broker, and the directories that are to be removed."""

    def __init__(
        self,
        directory: LogDirectory,
        topics: dict[UUID, str],
        now: StoreRecord,
        delay_s: float = DELAY_S,
    ) -> None:
        self.jobs: deque[tuple[Job, Done]] = deque()
        self.paths: list[str] = []
        self.strays = Strays(directory, topics, now, delay_s, self._submit, self._remove)

    def _submit(self, job: Job, done: Done) -> None:
        self.jobs.append((job, done))

    def _remove(self, removal: RemoveDirectories) -> None:
        self.paths += removal.paths
        removal.run()

    def work(self) -> None:
        while self.jobs:
            job, done = self.jobs.popleft()
            done(job(), None)


def removed(
    directory: LogDirectory, topics: dict[UUID, str] | None = None, now: StoreRecord | None = None
) -> list[str]:
    """The directories that disappear when the time has come."""
    before = names(directory)
    shell = Shell(directory, topics or {}, now or StoreRecord("store", 6))
    shell.strays.start(100.0)
    shell.work()
    shell.strays.tick(100.0 + DELAY_S - 1, is_connected=True)
    shell.strays.tick(100.0 + DELAY_S, is_connected=False)
    assert not shell.jobs
    assert names(directory) == before
    shell.strays.tick(100.0 + DELAY_S, is_connected=True)
    shell.work()
    after = names(directory)
    assert not [name for name in after if name.endswith("-delete")]
    return [name for name in before if name not in after]


def names(directory: LogDirectory) -> list[str]:
    return [info.name for info in directory.files.list_directory("/data") if info.is_directory]


@pytest.mark.parametrize("has_records", [True, False])
def test_replica_of_a_deleted_topic_is_removed_after_the_delay(has_records: bool) -> None:
    assert removed(opened(made(has_records=has_records), {})) == ["a-0"]


@pytest.mark.parametrize("wanted", [{}, {A: OTHER_ID}])
def test_replica_that_was_killed_before_its_first_checkpoint_is_removed(
    wanted: dict[TopicPartition, UUID],
) -> None:
    directory = opened(made(is_checkpointed=False), wanted)
    (stray,) = [*map(str, directory.unopened), *directory.strays]
    assert removed(directory, dict.fromkeys(wanted.values(), "a")) == [stray]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_replica_of_a_recreated_topic_is_moved_aside_then_removed(is_restarted: bool) -> None:
    files = made()
    directory = opened(files, {A: OTHER_ID})
    append(directory.create(A, OTHER_ID, CONFIG), "new")
    if is_restarted:
        directory = opened(files.killed(), {A: OTHER_ID})
    (stray,) = directory.strays
    assert removed(directory, {OTHER_ID: "a"}) == [stray]
    assert directory.get(A) is not None


@pytest.mark.parametrize("is_checkpointed", [True, False])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_replica_is_removed_if_its_topic_is_created_again_after_the_start(
    is_restarted: bool, is_checkpointed: bool
) -> None:
    files = made(is_checkpointed=is_checkpointed)
    directory = opened(files, {})
    shell = Shell(directory, {OTHER_ID: "a"}, StoreRecord("store", 6), 5.0)
    shell.strays.start(1.0)
    shell.work()
    directory.create(A, OTHER_ID, CONFIG)
    (stray,) = directory.strays
    if is_restarted:
        directory = opened(files.killed(), {A: OTHER_ID}, None)
        shell = Shell(directory, {OTHER_ID: "a"}, StoreRecord("store", 7), 5.0)
        shell.strays.start(10.0)
        shell.work()
    for _ in range(2):
        shell.strays.tick(20.0, is_connected=True)
        shell.work()
    assert stray not in names(directory)
    assert directory.get(A) is not None


def test_replica_stays_if_its_topic_is_in_the_image() -> None:
    assert removed(opened(made(), {}), {ID: "a"}) == []


def test_replica_that_was_opened_in_the_meantime_stays() -> None:
    directory = opened(made(), {})
    shell = Shell(directory, {}, StoreRecord("store", 6), 0.0)
    shell.strays.start(1.0)
    shell.work()
    shell.strays.tick(1.0, is_connected=True)
    directory.create(A, ID, CONFIG)
    shell.work()
    assert names(directory) == ["a-0"]


def test_no_stray_is_removed_before_the_record_was_read() -> None:
    directory = opened(made(), {}, StoreRecord())
    shell = Shell(directory, {}, StoreRecord("store", 6), 0.0)
    shell.strays.start(1.0)
    shell.strays.tick(2.0, is_connected=True)
    shell.work()
    shell.strays.tick(2.0, is_connected=True)
    shell.work()
    assert names(directory) == ["a-0"]


def test_files_are_read_by_the_worker_only(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(made(), {})
    shell = Shell(directory, {}, StoreRecord("store", 6), 0.0)
    is_on_worker = False

    def checked(act: Callable[[str], T]) -> Callable[[str], T]:
        def read(path: str) -> T:
            assert is_on_worker, path
            return act(path)

        return read

    files = directory.files
    monkeypatch.setattr(files, "read_file", checked(files.read_file))
    monkeypatch.setattr(files, "list_directory", checked(files.list_directory))
    monkeypatch.setattr(shell.strays, "_remove", lambda removal: shell.paths.extend(removal.paths))
    shell.strays.start(1.0)
    for _ in range(2):
        job, done = shell.jobs.popleft()
        is_on_worker = True
        result = job()
        is_on_worker = False
        done(result, None)
        shell.strays.tick(1.0, is_connected=True)
    assert shell.paths


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("headrace-checkpoint", b"garbled"),
        ("00000000000000000000.log.lost-1", b"x"),
    ],
)
def test_damaged_replica_stays(name: str, content: bytes) -> None:
    files = made()
    files.write_file(f"/data/a-0/{name}", content, sync=True)
    assert removed(opened(files, {})) == []


def test_replica_that_kafka_left_stays() -> None:
    files = made()
    files.remove("/data/a-0/headrace-checkpoint")
    files.remove("/data/headrace-created")
    assert removed(opened(files, {})) == []


def test_directory_without_a_topic_id_stays() -> None:
    files = made()
    files.make_directory("/data/backup-1")
    assert removed(opened(files, {}), {ID: "a"}) == []


@pytest.mark.parametrize(
    "now", [StoreRecord("another", 6), StoreRecord("store", 5), StoreRecord("store", 4)], ids=str
)
def test_strays_stay_for_good_once_the_store_was_replaced(now: StoreRecord) -> None:
    files = made()
    assert removed(opened(files, {}), now=now) == []
    # The next start finds the same store, but it is still the one without the topics.
    later = now._replace(epoch=now.epoch + 10)
    assert removed(opened(files.killed(), {}, None), now=later) == []


def test_strays_stay_if_the_store_of_the_last_start_is_unknown() -> None:
    assert removed(opened(made(), {}, StoreRecord())) == []


def test_removal_is_possible_again_once_no_stray_was_left() -> None:
    kept = StoreRecord("store", 5, keeps=True)
    assert decide(kept, StoreRecord("store", 6), has_strays=True).keeps
    cleared = decide(kept, StoreRecord("store", 6), has_strays=False)
    assert not cleared.keeps
    assert not decide(cleared, StoreRecord("store", 7), has_strays=True).keeps


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"store": "x"}'])
def test_damaged_record_is_an_empty_one(data: bytes) -> None:
    assert decode(data) == StoreRecord()
    assert decode(encode(BEFORE)) == BEFORE


def test_many_strays_are_removed_without_a_pass_over_all_of_them_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimulatedFiles()
    directory = opened(files, {})
    for index in range(200):
        directory.create(TopicPartition("a", index), ID, CONFIG)
    directory = opened(files.killed(), {})
    shell = Shell(directory, {}, StoreRecord("store", 6))
    shell.strays.start(100.0)
    shell.work()
    count = 0
    text = TopicPartition.__str__

    def counted(partition: TopicPartition) -> str:
        nonlocal count
        count += 1
        return text(partition)

    monkeypatch.setattr(TopicPartition, "__str__", counted)
    shell.strays.tick(100.0 + DELAY_S, is_connected=True)
    shell.work()
    assert len(shell.paths) == len(directory.unopened) == 100
    assert count <= 400


def test_name_of_a_topic_is_not_the_id_of_a_renamed_directory() -> None:
    directory = opened(SimulatedFiles(), {})
    partition = TopicPartition(f"a.{OTHER_ID.hex[:-1]}", 0)
    directory.create(partition, ID, CONFIG)
    assert directory.recorded_id(str(partition)) == ID
