"""What a log is after a restart: torn tails, lost and garbled derived files, clean restarts."""

import logging

import pytest

from headrace.log.directory.offset_files import KafkaOffsets
from headrace.log.log import Log
from headrace.log.state import LogSettings
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    answers,
    append,
    batch,
    checkpoint,
    marker,
    offsets,
    open_log,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(segment_bytes=700, index_interval_bytes=150)
DERIVED = (
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "headrace-checkpoint",
)


def busy_log(files: SimulatedFiles) -> Log:
    """Several segments, epochs, idempotent producers, transactions ended both ways, one open."""
    log = open_log(files, CONFIG)
    for number in range(12):
        now_ms = NOW_MS + number * 1000
        append(log, f"plain {number}", epoch=number // 4, now_ms=now_ms, timestamp=now_ms)
        identity = (1, 0, number * 2)
        append(log, "a", "b", epoch=number // 4, producer=identity, timestamp=now_ms - 500)
        transaction = (2, 0, number)
        append(log, "t", epoch=number // 4, producer=transaction, transactional=True)
        if number % 2:
            log.stage(marker(number // 2 % 2, 2, 0), number // 4, now_ms)
            log.write(now_ms)
        if number == 5:
            work(log)
    append(log, "open", epoch=3, producer=(3, 0, 0), transactional=True)
    log.delete_records(2, log.log_end_offset)
    work(log)
    append(log, "last", epoch=3, producer=(1, 0, 24))
    return log


def derived_files(files: SimulatedFiles) -> list[str]:
    names = [info.name for info in files.list_directory(PATH)]
    return [name for name in names if name.endswith(DERIVED)]


def damages(data: bytes) -> list[bytes | None]:
    """Yield a missing, empty, shorter, longer and damaged version of a file."""
    found: list[bytes | None] = [None, b"", data[:-1], data[: len(data) // 2], data + b"\0" * 24]
    places = sorted({0, len(data) // 3, len(data) // 2, max(len(data) - 1, 0)})
    found += [data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :] for at in places if data]
    return found


@pytest.mark.parametrize("is_clean", [False, True])
def test_lost_or_damaged_derived_file_changes_no_result(is_clean: bool) -> None:
    files = SimulatedFiles()
    log = busy_log(files)
    expected = answers(log)
    if is_clean:
        log.close(NOW_MS)
    else:
        checkpoint(log)
    names = derived_files(files)
    assert {name.rpartition(".")[2] for name in names} >= {"index", "timeindex", "txnindex"}
    for name in names:
        path = f"{PATH}/{name}"
        original = files.read_file(path)
        for damaged in damages(original):
            image = files.power_lost()
            if damaged is None:
                image.remove(path)
            else:
                image.write_file(path, damaged, sync=False)
            found = open_log(image, CONFIG, kafka_offsets=KafkaOffsets(2, 0))
            assert answers(found) == expected, (name, damaged)
            work(found)
            assert append(found, "more", epoch=4) == expected["range"][1]
            again = open_log(image.killed(), CONFIG, kafka_offsets=KafkaOffsets(2, 0))
            assert answers(again) == answers(found), (name, damaged)


def test_loss_of_all_derived_files_changes_no_result() -> None:
    files = SimulatedFiles()
    log = busy_log(files)
    expected = answers(log)
    log.close(NOW_MS)
    for name in derived_files(files):
        files.remove(f"{PATH}/{name}")
    assert answers(open_log(files, CONFIG, kafka_offsets=KafkaOffsets(2, 0))) == expected


def tail_of(log: Log, count: int) -> tuple[int, int]:
    """Where the last batches begin in the active file, and where the file ends."""
    first = log.read(log.log_end_offset - count, 1, log.log_end_offset, True)
    assert first is not None
    return int(first.position), int(log.written_size)


def test_log_cut_at_any_byte_keeps_the_complete_batches() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(4):
        append(log, f"value {number}", producer=(1, 0, number))
    start, end = tail_of(log, 2)
    middle, _ = tail_of(log, 1)
    path = f"{PATH}/{0:020d}.log"
    data = files.read_file(path)
    for cut in range(start, end):
        image = files.power_lost()
        image.write_file(path, data[:cut], sync=False)
        found = open_log(image, CONFIG)
        whole = 2 if cut < middle else 3
        assert offsets(found) == list(range(whole))
        assert len(image.read_file(path)) == (start if cut < middle else middle)
        assert append(found, "again", producer=(1, 0, whole)) == whole


def test_damaged_bytes_at_the_end_are_not_read_as_records() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(4):
        append(log, f"value {number}")
    start, end = tail_of(log, 2)
    middle, _ = tail_of(log, 1)
    path = f"{PATH}/{0:020d}.log"
    for at in range(start, end):
        image = files.power_lost()
        data = bytearray(files.read_file(path))
        data[at] ^= 0xFF
        image.write_file(path, data, sync=False)
        in_batch = at - (start if at < middle else middle)
        found = open_log(image, CONFIG)
        if in_batch < 8 or 12 <= in_batch < 16:
            # Base offset and leader epoch are outside of the checksum, as the format has it.
            assert offsets(found) == sorted(set(offsets(found)))
        else:
            assert values(found) == [f"value {n}" for n in range(2 if at < middle else 3)]


def test_log_ends_at_a_damaged_segment() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(30):
        append(log, f"value {number}")
    assert len(log.segments.all) > 3
    second = log.segments.base_offsets[1]
    files.patch(f"{PATH}/{second:020d}.log", 61 + 90, b"\xff")
    found = open_log(files.killed(), CONFIG)
    assert offsets(found) == list(range(second + 1))
    assert found.segments.base_offsets == [0, second]


def test_damage_below_the_recovery_point_loses_only_the_damaged_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(30):
        append(log, f"value {number}")
    log.close(NOW_MS)
    second, third = log.segments.base_offsets[1:3]
    path = f"{PATH}/{second:020d}.log"
    files.patch(path, 8, b"\x7f\xff\xff\xff")
    files.remove(f"{PATH}/{second:020d}.index")
    with caplog.at_level(logging.WARNING):
        found = open_log(files, CONFIG)
        assert found.log_end_offset == 30
        assert values(found, 0, second) == [f"value {n}" for n in range(second)]
        with pytest.raises(ApiError) as refused:
            found.read(second + 1, 1000, 30, True)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert values(found, third) == [f"value {n}" for n in range(third, 30)]


def test_nothing_below_the_recovery_point_is_read_again() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(30):
        append(log, f"value {number}", producer=(1, 0, number))
    checkpoint(log)
    append(log, "after the checkpoint", producer=(1, 0, 30))
    image = files.killed()
    read: list[tuple[str, int]] = []
    pread = image.pread

    def watched(fd: int, size: int, position: int) -> bytes:
        read.append((image._open[fd][1], position))
        return pread(fd, size, position)

    image.pread = watched  # type: ignore[method-assign]
    found = open_log(image, CONFIG)
    active = found.active()
    assert read
    assert all(path == f"{active.stem}.log" for path, _ in read)
    assert (
        min(position for _, position in read) == log.durable.active_facts.size
        if log.durable.active_facts
        else 0
    )
    assert found.producers.entries[1].last_sequence() == 30


def test_a_clean_restart_reads_no_batch_and_has_nothing_to_do() -> None:
    files = SimulatedFiles()
    log = busy_log(files)
    expected = answers(log)
    log.close(NOW_MS)
    image = files.power_lost()
    found = open_log(image, CONFIG)
    assert not found.durable.is_job_requested
    assert found.durable.recovery_point == found.log_end_offset
    assert answers(found) == expected


def test_five_batches_are_remembered_across_a_clean_restart() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(8):
        append(log, "x", "y", producer=(9, 1, number * 2))
    log.close(NOW_MS)
    found = open_log(files.power_lost(), CONFIG)
    for number in range(3, 8):
        assert found.stage(batch("x", "y", producer=(9, 1, number * 2)), 0, 0) == number * 2
    assert not found.has_staged


def test_a_tear_in_a_sealed_segment_that_was_not_synced_hides_no_later_segment() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(12):
        append(log, f"value {number}")
    assert len(log.segments.all) == 2
    first = files.read_file(f"{PATH}/{0:020d}.log")
    # A power loss: the first file lost complete batches at its end, the second is complete.
    whole = log.read(5, 1, 12, True)
    assert whole is not None
    files.write_file(f"{PATH}/{0:020d}.log", first[: whole.position], sync=True)
    found = open_log(files.killed(), CONFIG)
    assert offsets(found) == list(range(5))
    assert append(found, "next") == 5


def test_an_abandoned_file_in_the_way_of_a_new_segment_is_emptied() -> None:
    files = SimulatedFiles()
    log = open_log(files, topic_config(segment_bytes=200))
    append(log, "first")
    append(log, "second")
    files.write_file(f"{PATH}/{2:020d}.log", b"rubbish", sync=True)
    append(log, "third")
    assert values(log) == ["first", "second", "third"]


def test_a_file_named_beyond_all_offsets_is_no_segment() -> None:
    files = SimulatedFiles()
    append(open_log(files), "kept")
    alien = f"{PATH}/{'9' * 20}.log"
    files.write_file(alien, b"not ours", sync=True)
    found = open_log(files.killed())
    assert values(found) == ["kept"]
    assert found.files.read_file(alien) == b"not ours"


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".tmp"])
def test_leftovers_of_interrupted_work_are_removed(suffix: str) -> None:
    files = SimulatedFiles()
    log = open_log(files)
    append(log, "kept")
    files.write_file(f"{PATH}/{0:020d}.log{suffix}", b"rubbish", sync=True)
    found = open_log(files.killed())
    assert values(found) == ["kept"]
    assert not [info for info in found.files.list_directory(PATH) if info.name.endswith(suffix)]


def test_an_interrupted_replacement_of_segments_is_finished() -> None:
    files = SimulatedFiles()
    config = topic_config(segment_bytes=200)
    log = open_log(files, config)
    for number in range(6):
        append(log, f"value {number}")
    log.close(NOW_MS)
    first, second = log.segments.base_offsets[:2]
    merged = files.read_file(f"{PATH}/{second:020d}.log")
    files.write_file(f"{PATH}/{first:020d}.log.swap", merged, sync=True)
    found = open_log(files.power_lost(), config)
    third = log.segments.base_offsets[2]
    assert found.segments.base_offsets[:2] == [first, third]
    assert offsets(found) == list(range(second, 6))
    assert found.log_end_offset == 6
    work(found)
    assert answers(open_log(found.files, config)) == answers(found)


def test_a_replacement_that_had_not_begun_is_undone() -> None:
    files = SimulatedFiles()
    config = topic_config(segment_bytes=200)
    log = open_log(files, config)
    for number in range(6):
        append(log, f"value {number}")
    log.close(NOW_MS)
    data = files.read_file(f"{PATH}/{0:020d}.log")
    files.write_file(f"{PATH}/{0:020d}.log.cleaned", data[:72], sync=True)
    files.write_file(f"{PATH}/{0:020d}.log.swap", data[:72], sync=True)
    found = open_log(files.power_lost(), config)
    assert offsets(found) == list(range(6))
    assert not [i.name for i in found.files.list_directory(PATH) if i.name.endswith("swap")]


def test_producers_beyond_the_limit_are_dropped_and_the_most_recent_stay() -> None:
    files = SimulatedFiles()
    log = open_log(files, settings=LogSettings(producers_max=50))
    for number in range(200):
        append(log, "x", producer=(number, 0, 0))
    assert len(log.producers.entries) <= 50
    assert 199 in log.producers.entries
    assert 0 not in log.producers.entries


def test_a_power_cut_after_a_kill_takes_no_segment_that_a_lost_checkpoint_let_go() -> None:
    def run(files: SimulatedFiles) -> None:
        log = open_log(files, topic_config(segment_bytes=300))
        for number in range(12):
            append(log, f"value {number}")
        work(log)
        log.delete_records(8, 12)
        work(log)

    plain = SimulatedFiles()
    run(plain)
    renames = [at for at, kind in enumerate(plain.trace) if kind.startswith("rename")]
    # The checkpoint with the new start has its name, and the name is not synced.
    checkpoint_rename = [at for at in renames if "headrace-checkpoint" in plain.trace[at]][-2]
    config = topic_config(segment_bytes=300)
    for seed in range(8):
        files = SimulatedFiles(seed)
        files.crash_at = checkpoint_rename + 2
        with pytest.raises(SimulatedCrash):
            run(files)
        image = files.killed()
        assert open_log(image, config).log_start_offset == 8
        for again in range(8):
            found = open_log(image.power_lost(again), config)
            assert offsets(found) == list(range(found.log_start_offset, found.log_end_offset))
            assert found.log_end_offset >= 8


def test_a_second_segment_does_not_survive_a_power_cut_without_the_first() -> None:
    files = SimulatedFiles()
    config = topic_config(segment_bytes=200)
    log = open_log(files, config)
    for number in range(8):
        append(log, f"value {number}")
    assert len(log.segments.all) > 3
    for seed in range(60):
        found = open_log(files.power_lost(seed), config)
        assert found.log_start_offset == 0
        assert offsets(found) == list(range(found.log_end_offset))
