"""Damage on disk is found while the log is in use, logged once, and fetched again (B15, I20)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config.broker import BrokerConfig
from headrace.log.log import Log
from headrace.log.recovery.scrub import SegmentScrub
from headrace.node.scrubber import Scrubber
from headrace.replication.partition import Partition
from headrace.runtime.worker import Worker
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import append, open_log, topic_config, values
from tests.unit.replication.fetcher_scenario import Scene
from tests.unit.replication.replica_scenario import Node, Wire, log_bytes, state

LAG_MS = 10_000


def rot(log: Log, segment: int) -> None:
    """Change one bit of a value in a segment."""
    files = log.files
    assert isinstance(files, SimulatedFiles)
    path = log.segments.all[segment].stem + ".log"
    data = files.read_file(path)
    at = len(data) - 3
    files.patch(path, at, bytes([data[at] ^ 1]))


def filled(files: SimulatedFiles, batches: int = 30) -> Log:
    log = open_log(files, topic_config(segment_bytes=500))
    for at in range(batches):
        append(log, f"value {at}")
    assert len(log.segments.all) > 3
    return log


def scrubbed(log: Log, at: int, step_bytes: int = 1 << 20) -> SegmentScrub:
    scrub = SegmentScrub(log, log.segments.all[at])
    while not scrub.step(step_bytes):
        pass
    return scrub


def test_valid_log_has_no_damage_with_any_step_size() -> None:
    log = filled(SimulatedFiles())
    for at in range(len(log.segments.all)):
        assert scrubbed(log, at).problem == ""
        assert scrubbed(log, at, 1).problem == ""


def test_a_flipped_bit_is_found_where_it_is() -> None:
    log = filled(SimulatedFiles())
    rot(log, 1)
    assert scrubbed(log, 0).problem == ""
    scrub = scrubbed(log, 1)
    assert "checksum" in scrub.problem
    assert 0 < scrub.position < log.segments.all[1].size
    assert scrub.is_current()


def test_log_truncated_during_the_read_is_not_reported_as_damaged() -> None:
    log = filled(SimulatedFiles())
    last = log.segments.all[-1]
    scrub = SegmentScrub(log, last)
    log.truncate_to(int(last.base_offset) + 1, 0)
    scrub.step(1 << 20)
    assert not scrub.is_current()


class World:
    """A scrubber over the partitions of one broker, with a real thread."""

    def __init__(self, *logs: Log) -> None:
        self.partitions = [
            Partition("events", index, log.topic_id, log, 1, 0, 1 << 20)
            for index, log in enumerate(logs)
        ]
        self.worker = Worker("scrub", asyncio.get_running_loop())
        self.told: list[Partition] = []
        config = BrokerConfig.load(
            {"headrace.scrub.interval.ms": "1", "headrace.scrub.bytes.per.second": "1000000000"}
        )
        self.scrubber = Scrubber(config, self.partitions, self.worker, self.told.append)
        self.scrubber.start()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def stop(self) -> None:
        self.scrubber.stop()
        self.worker.stop()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 50))


def test_damage_is_logged_once_with_its_segment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        sound, damaged = filled(SimulatedFiles()), filled(SimulatedFiles())
        rot(damaged, 2)
        world = World(sound, damaged)
        await world.until(lambda: bool(world.told))
        assert world.told == [world.partitions[1]]
        assert world.partitions[1].damaged_from == damaged.segments.base_offsets[2]
        rot(sound, 0)
        await world.until(lambda: len(world.told) > 1)
        assert world.told == [world.partitions[1], world.partitions[0]]
        world.stop()

    run(scenario())
    assert caplog.text.count("log damaged: ") == 2


# What becomes of it.


def damage(node: Node, segment: int) -> None:
    partition = node.partition()
    rot(partition.log, segment)
    partition.damaged_from = partition.log.segments.base_offsets[segment]


def caught_up(isr: tuple[int, ...]) -> Scene:
    scene = Scene(isr=isr, segment_bytes=500)
    for at in range(30):
        scene.leader.append(f"value {at}")
    scene.wire.catch_up()
    scene.wire.catch_up()
    return scene


def test_a_member_of_the_isr_leaves_it_before_it_drops_what_is_damaged() -> None:
    scene = caught_up(isr=(1, 2))
    leader, follower = scene.leader.partition(), scene.follower.partition()
    assert leader.high_watermark == 30
    damage(scene.follower, 1)
    scene.wire.machine.repair(follower)
    scene.wire.run()
    assert scene.log.log_end_offset == 30
    assert leader in scene.leader.considered
    assert leader.wanted_isr(0, LAG_MS, lambda *_: True) == ((1, 101),)
    for node in (leader, follower):
        node.apply_state(state(1, 1, (1,), 2), 0)
    scene.pass_ms(1000)
    scene.wire.run()
    assert log_bytes(scene.log) == log_bytes(leader.log)
    assert follower.damaged_from == -1
    assert leader.wanted_isr(0, LAG_MS, lambda *_: True) == ((1, 101), (2, 102))


def test_replica_outside_the_isr_is_repaired_immediately() -> None:
    scene = caught_up(isr=(1, 3))
    damage(scene.follower, 0)
    scene.wire.machine.repair(scene.follower.partition())
    scene.wire.run()
    assert log_bytes(scene.log) == log_bytes(scene.leader.partition().log)
    assert scene.follower.partition().damaged_from == -1


def test_former_leader_is_repaired_from_its_successor() -> None:
    scene = caught_up(isr=(1, 2))
    damage(scene.leader, 2)
    scene.follower.partition().become_leader(state(2, 2, (2,)), 102, 0)
    scene.leader.partition().follow(state(2, 2, (2,)))
    scene.follower.append("more")
    back = Wire(scene.leader, scene.follower)
    back.machine.follow(scene.leader.partition())
    back.run()
    assert log_bytes(scene.leader.partition().log) == log_bytes(scene.log)
    assert values(scene.leader.partition().log)[-1] == "more"
