"""A follower whose log must start at an offset inside one of the leader's batches."""

import errno

import pytest

from headrace.log.log import Log
from tests.storage.log_scenario import offsets, values
from tests.unit.replication.fetcher_scenario import Scene
from tests.unit.replication.replica_scenario import log_bytes, open_partition

START = 4


def scene_with_start_in_batch() -> Scene:
    """The leader has batches 0-2, 3-5 and 6-8 and starts at offset 4; its follower is empty."""
    scene = Scene(isr=(1, 3), segment_bytes=130)
    for text in ("abc", "def", "ghi"):
        scene.leader.append(*text)
    leader = scene.leader.partition()
    leader.high_watermark = 9
    delete_records(scene, START)
    assert leader.log.segments.base_offsets == [3, 6]
    return scene


def delete_records(scene: Scene, offset: int) -> None:
    leader = scene.leader.partition()
    leader.log.delete_records(offset, leader.high_watermark)
    scene.leader.appends.start_job(leader)
    scene.leader.worker.work()


def check(scene: Scene, log: Log) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (START, 9)
    assert offsets(log) == [4, 5, 6, 7, 8]
    assert values(log) == list("efghi")
    assert log_bytes(log) == log_bytes(scene.leader.partition().log)
    assert log.epochs.entries() == scene.leader.partition().log.epochs.entries()


def test_a_follower_copies_a_log_that_starts_inside_a_batch() -> None:
    scene = scene_with_start_in_batch()
    scene.wire.catch_up()
    scene.wire.catch_up()
    check(scene, scene.log)
    assert scene.follower.partition().high_watermark == 9
    check(scene, open_partition(scene.follower.files.killed(), 0, scene.log.config))


def test_delete_records_still_moves_the_start_of_such_a_log() -> None:
    scene = scene_with_start_in_batch()
    scene.wire.catch_up()
    for offset in (5, 7):
        delete_records(scene, offset)
        scene.leader.append("next")
        scene.wire.catch_up()
        scene.wire.catch_up()
        assert scene.log.log_start_offset == offset
    assert scene.log.segments.base_offsets == scene.leader.partition().log.segments.base_offsets


def test_the_follower_waits_for_a_job_before_its_log_begins_with_an_earlier_batch() -> None:
    scene = scene_with_start_in_batch()
    while scene.log.log_start_offset < START:
        assert scene.wire.ask() | scene.wire.receive()
    scene.follower.is_busy = True
    scene.log.durable.request_checkpoint()
    scene.follower.appends.start_job(scene.follower.partition())
    assert scene.log.durable.job is not None
    scene.wire.run()
    assert scene.log.log_end_offset == START
    scene.follower.is_busy = False
    scene.wire.run()
    check(scene, scene.log)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_failure_at_any_operation_is_retried_or_takes_the_log_offline(code: int) -> None:
    outcomes = set()
    for operation in range(1, 60):
        scene = scene_with_start_in_batch()
        files = scene.follower.files
        files.fail_at = {files.operations + operation: code}
        for _ in range(3):
            scene.wire.run()
            assert scene.log.log_start_offset <= scene.log.log_end_offset
            scene.pass_ms(1000)
        outcomes.add(scene.log.is_offline)
        if not scene.log.is_offline:
            check(scene, scene.log)
        found = open_partition(files.killed(), 0, scene.log.config)
        assert found.log_end_offset in (0, START, 6, 9)
        assert found.log_start_offset in (0, START)
    assert outcomes == {True, False}
