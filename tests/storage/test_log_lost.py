"""Recovery deletes no record: it sets files aside, or leaves the log offline."""

import errno
import logging
from collections.abc import Callable

import pytest

from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.log.recovery.check import check_partition
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PARTITION,
    PATH,
    TOPIC_ID,
    ManualClock,
    append,
    batch,
    checkpoint,
    offsets,
    open_log,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(segment_bytes=400, index_interval_bytes=100)
COUNT = 30


def log_file(offset: int) -> str:
    return f"{PATH}/{offset:020d}.log"


def filled(files: SimulatedFiles, *, is_synced: bool) -> Log:
    log = open_log(files, CONFIG)
    checkpoint(log)
    for number in range(COUNT):
        append(log, f"{number}", producer=(1, 0, number))
    if is_synced:
        checkpoint(log)
    assert len(log.segments.all) > 4
    return log


def lost(files: SimulatedFiles) -> list[str]:
    return [info.name for info in files.list_directory(PATH) if ".lost-" in info.name]


def content(files: SimulatedFiles) -> dict[str, bytes]:
    names = [info.name for info in files.list_directory(PATH)]
    return {name: files.read_file(f"{PATH}/{name}") for name in names}


# Files that are set aside


def test_segments_behind_a_gap_are_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=False)
    second, third, *rest = log.segments.base_offsets[1:]
    expected = [files.read_file(log_file(base)) for base in (third, *rest)]
    files.remove(log_file(second))
    with caplog.at_level(logging.ERROR):
        found = open_log(files.killed(), CONFIG)
    assert offsets(found) == list(range(second))
    assert lost(files) == [f"{base:020d}.log.lost-{NOW_MS}" for base in (third, *rest)]
    assert [files.read_file(f"{PATH}/{name}") for name in lost(files)] == expected
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == len(expected)
    # They stay, whatever is appended, and whenever the log is opened again.
    while found.log_end_offset < COUNT:
        append(found, f"new {found.log_end_offset}")
        work(found)
    again = open_log(files.killed(), CONFIG)
    assert values(again) == values(found)
    assert [files.read_file(f"{PATH}/{name}") for name in lost(files)] == expected


def test_a_second_file_of_the_same_name_does_not_replace_the_first() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=False)
    second = log.segments.base_offsets[1]
    for number in range(2):
        files.write_file(log_file(100), b"something %d" % number, sync=True)
        open_log(files.killed(), CONFIG)
    assert lost(files) == [f"{100:020d}.log.lost-{NOW_MS + number}" for number in range(2)]
    assert files.read_file(f"{PATH}/{lost(files)[0]}") == b"something 0"
    assert second < 100


def test_an_empty_segment_behind_a_gap_is_removed() -> None:
    files = SimulatedFiles()
    filled(files, is_synced=False)
    files.write_file(log_file(100), b"", sync=True)
    found = open_log(files.killed(), CONFIG)
    assert offsets(found) == list(range(COUNT))
    assert not lost(files)
    assert not files.exists(log_file(100))


def test_valid_batches_behind_a_damaged_one_are_kept() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=False)
    base = log.segments.base_offsets[-1]
    data = files.read_file(log_file(base))
    files.patch(log_file(base), 70, b"\xff")
    found = open_log(files.killed(), CONFIG)
    assert found.log_end_offset == base
    (name,) = lost(files)
    assert name == f"{base:020d}.log.lost-{NOW_MS}"
    assert files.read_file(f"{PATH}/{name}")[71:] == data[71:]


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_torn_batch_is_cut_off_without_a_copy(cut: int) -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=False)
    base = log.segments.base_offsets[-1]
    data = files.read_file(log_file(base))
    files.write_file(log_file(base), data + data[:cut], sync=True)
    found = open_log(files.killed(), CONFIG)
    assert offsets(found) == list(range(COUNT))
    assert not lost(files)
    assert files.read_file(log_file(base)) == data


def test_zeros_that_a_power_loss_has_left_are_cut_off_without_a_copy() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=False)
    base = log.segments.base_offsets[-1]
    data = files.read_file(log_file(base))
    files.write_file(log_file(base), data + bytes(500), sync=True)
    assert offsets(open_log(files.killed(), CONFIG)) == list(range(COUNT))
    assert not lost(files)


def test_without_room_for_the_damaged_end_the_log_stays_offline() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=False)
    files.patch(log_file(log.segments.base_offsets[-1]), 70, b"\xff")
    image = files.killed()
    image.capacity = image.used_bytes()
    before = content(image)
    found = open_log(image, CONFIG)
    assert found.is_offline
    assert "cannot be kept" in found.offline_reason
    after = {name: data for name, data in content(image).items() if ".lost-" not in name}
    assert after == before


# Logs that stay offline


def remove_first(files: SimulatedFiles, log: Log) -> str:
    files.remove(log_file(0))
    return f"first segment begins at offset {log.segments.base_offsets[1]}, after the log start 0"


def remove_middle(files: SimulatedFiles, log: Log) -> str:
    files.remove(log_file(log.segments.base_offsets[2]))
    return f"{log.segments.base_offsets[2]:020d}.log is missing"


def remove_active(files: SimulatedFiles, log: Log) -> str:
    files.remove(log_file(log.segments.base_offsets[-1]))
    return f"{log.segments.base_offsets[-1]:020d}.log is missing"


def remove_all(files: SimulatedFiles, log: Log) -> str:
    for base in log.segments.base_offsets:
        files.remove(log_file(base))
    return f"offsets 0 to {COUNT - 1} have no segment"


def shorten_middle(files: SimulatedFiles, log: Log) -> str:
    path = log_file(log.segments.base_offsets[2])
    data = files.read_file(path)
    files.write_file(path, data[:-1], sync=True)
    name = f"{log.segments.base_offsets[2]:020d}.log"
    return f"{name} has {len(data) - 1} bytes, but {len(data)} were synced"


def shorten_active(files: SimulatedFiles, log: Log) -> str:
    path = log_file(log.segments.base_offsets[-1])
    data = files.read_file(path)
    files.write_file(path, b"", sync=True)
    return f"{log.segments.base_offsets[-1]:020d}.log has 0 bytes, but {len(data)} were synced"


@pytest.mark.parametrize(
    "change",
    [remove_first, remove_middle, remove_active, remove_all, shorten_middle, shorten_active],
)
def test_a_log_that_lost_synced_files_stays_offline_and_unchanged(
    change: Callable[[SimulatedFiles, Log], str],
) -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    reason = change(files, log)
    before = content(files)
    found = open_log(files.killed(), CONFIG)
    assert found.is_offline
    assert reason in found.offline_reason
    # The log does not shrink: its range is that of the checkpoint.
    assert (found.log_start_offset, found.log_end_offset) == (0, COUNT)
    with pytest.raises(ApiError, match=r"is offline: .*headrace log accept-loss") as refused:
        found.stage(batch("x"), 0, NOW_MS)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    for offset in (0, COUNT - 1):
        with pytest.raises(ApiError) as unread:
            found.read(offset, 1000, COUNT, True)
        assert unread.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert found.next_job(NOW_MS) is None
    assert found.apply_retention(NOW_MS + 10**12, COUNT) == 0
    assert not found.close(NOW_MS)
    assert content(files) == before
    # An operator can restore the files, or accept the loss. Even then no record is deleted.
    files.remove(f"{PATH}/headrace-checkpoint")
    accepted = open_log(files.killed(), CONFIG)
    assert not accepted.is_offline
    records = b"".join(data for name, data in before.items() if name.endswith(".log"))
    kept = content(files)
    assert len(b"".join(kept[name] for name in kept if ".log" in name)) >= len(records) - 100


def test_damage_below_the_recovery_point_that_a_scan_meets_leaves_the_log_offline() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    base = log.segments.base_offsets[-1]
    from headrace.log.upkeep.checkpoints import decode_log_checkpoint, encode_log_checkpoint

    path = f"{PATH}/headrace-checkpoint"
    found = decode_log_checkpoint(files.read_file(path))
    assert found is not None
    without = found._replace(segments=found.segments[:-1])
    files.write_file(path, encode_log_checkpoint(without), sync=True)
    files.patch(log_file(base), 70, b"\xff")
    again = open_log(files.killed(), CONFIG)
    assert again.is_offline
    assert f"offset {base} are damaged" in again.offline_reason


def test_restored_files_bring_the_log_back() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    path = log_file(log.segments.base_offsets[2])
    data = files.read_file(path)
    files.remove(path)
    assert open_log(files.killed(), CONFIG).is_offline
    files.write_file(path, data, sync=True)
    assert offsets(open_log(files.killed(), CONFIG)) == list(range(COUNT))


# What an operator sees


def test_a_data_directory_counts_files_set_aside_and_is_not_clean_while_a_log_is_offline() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    files.write_file(log_file(100), b"something", sync=True)
    directory = LogDirectory("/data", files.killed(), ManualClock())
    directory.open()
    directory.load({PARTITION: (TOPIC_ID, CONFIG)})
    assert directory.lost_file_count == 1
    assert directory.close({})
    files.remove(log_file(log.segments.base_offsets[1]))
    directory = LogDirectory("/data", files.killed(), ManualClock())
    directory.open()
    directory.load({PARTITION: (TOPIC_ID, CONFIG)})
    assert not directory.close({})


def test_a_check_lists_files_set_aside_and_the_reason_of_an_offline_log() -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    assert check_partition(files, PATH).problems == []
    files.write_file(log_file(100), b"something", sync=True)
    open_log(files.killed(), CONFIG)
    report = check_partition(files, PATH)
    assert [(each.name, each.size) for each in report.lost_files] == [(lost(files)[0], 9)]
    assert report.problems == []
    files.remove(log_file(log.segments.base_offsets[1]))
    (problem,) = check_partition(files, PATH).problems
    assert problem.file == "headrace-checkpoint"
    assert f"{log.segments.base_offsets[1]:020d}.log is missing" in problem.what


def test_an_io_error_while_files_are_set_aside_is_reported() -> None:
    files = SimulatedFiles()
    filled(files, is_synced=True)
    files.write_file(log_file(100), b"something", sync=True)
    image = files.killed()
    image.fail_at = {1: errno.EIO}
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        open_log(image, CONFIG)
    assert image.read_file(log_file(100)) == b"something"


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_segment_below_the_log_start_that_was_emptied_or_removed_is_not_missed(
    is_removed: bool,
) -> None:
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    log.delete_records(COUNT, COUNT)
    checkpoint(log)
    assert (log.log_start_offset, len(log.segments.all)) == (COUNT, 1)
    path = log_file(log.segments.base_offsets[0])
    assert log.segments.base_offsets[0] < COUNT
    if is_removed:
        files.remove(path)
    else:
        files.write_file(path, b"", sync=True)
    for _ in range(2):
        found = open_log(files.killed(), CONFIG)
        assert (found.is_offline, found.log_start_offset) == (False, COUNT)
        assert found.log_end_offset == COUNT
        checkpoint(found)
    append(found, "next")
    again = open_log(files.killed(), CONFIG)
    assert offsets(again) == [COUNT]


def test_a_check_ignores_an_index_that_recovery_rebuilds() -> None:
    """A truncation leaves the index files of the last segment as they were."""
    files = SimulatedFiles()
    log = filled(files, is_synced=True)
    assert log.close(NOW_MS)
    again = open_log(files.killed(), CONFIG)
    base = again.segments.base_offsets[-1]
    index = files.read_file(f"{PATH}/{base:020d}.index")
    again.truncate_to(base + 1, NOW_MS)
    files.write_file(f"{PATH}/{base:020d}.index", index, sync=True)
    assert check_partition(files, PATH).problems == []
    files.remove(f"{PATH}/headrace-checkpoint")
    (problem,) = check_partition(files, PATH).problems
    assert problem.what.startswith("no batch starts at byte")
