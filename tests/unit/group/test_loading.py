"""Loading a log gives the same groups as applying every record in order."""

import asyncio
import struct
from random import Random

import pytest

from headrace.coordinator import loader
from headrace.group.classic.machine import ClassicGroup
from headrace.group.consumer.group import ConsumerGroup
from headrace.group.messages import ClassicLimits
from headrace.group.records import (
    GroupCodec,
    GroupKey,
    GroupRecord,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    encode_key,
    encode_value,
)
from headrace.group.shard_machine import Shard
from headrace.record.build import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    NewRecord,
    build_batch,
    build_transaction_marker,
)
from tests.unit.group.consumer_faults_scenario import World
from tests.unit.group.memory_log_scenario import MemoryLog, replay

WALL_MS = 1_700_000_000_000


def random_record(random: Random) -> GroupRecord:
    group = f"g{random.randrange(4)}"
    if random.random() < 0.7:
        key = OffsetKey(group, f"t{random.randrange(2)}", random.randrange(3))
        value = OffsetValue(random.randrange(1000), -1, "", WALL_MS)
        return GroupRecord(key, value if random.random() < 0.8 else None)
    member = MemberValue("m", None, "c", "/h", 1, 1, b"", b"")
    members = (member,) if random.random() < 0.7 else ()
    generation = random.randrange(100)
    state = GroupValue("consumer", generation, "range" if members else None, None, WALL_MS, members)
    return GroupRecord(GroupKey(group), state if random.random() < 0.8 else None)


def fill(random: Random, log: MemoryLog, expected: Shard) -> None:
    """Write a history to a log, and apply it record by record."""
    open_transactions: dict[int, None] = {}
    for _ in range(random.randrange(5, 120)):
        producer_id = random.choice((-1, -1, -1, 7, 8))
        if producer_id >= 0 and producer_id in open_transactions and random.random() < 0.4:
            del open_transactions[producer_id]
            is_commit = random.random() < 0.6
            kind = CONTROL_COMMIT if is_commit else CONTROL_ABORT
            log.append(
                build_transaction_marker(
                    kind,
                    producer_id=producer_id,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp=WALL_MS,
                )
            )
            expected.apply_marker(producer_id, is_commit)
            continue
        records = [random_record(random) for _ in range(random.randrange(1, 4))]
        if producer_id >= 0:
            records = [
                record
                for record in records
                if isinstance(record.key, OffsetKey) and record.value is not None
            ]
            if not records:
                continue
            open_transactions[producer_id] = None
        offset = log.append(
            build_batch(
                [NewRecord(encode_key(r.key), encode_value(r.value), WALL_MS) for r in records],
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                transactional=producer_id >= 0,
            )
        )
        for number, record in enumerate(records):
            expected.apply(record, offset + number, producer_id)


def picture(shard: Shard) -> object:
    groups = {
        name: (str(group.state), group.generation, group.protocol, sorted(group.members.by_id))
        for name, group in shard.groups.items()
        if isinstance(group, ClassicGroup)
    }
    pending = {number: values for number, values in shard.offsets.pending.items() if values}
    return groups, shard.offsets.by_group, pending


@pytest.mark.parametrize("keys_max", [3, 50_000])
def test_a_log_is_loaded_as_if_record_by_record(
    keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "KEYS_MAX", keys_max)
    monkeypatch.setattr(loader, "CHUNK_BYTES", 300)
    for seed in range(100):
        random = Random(seed)
        log, expected, found = MemoryLog(), Shard(0, ClassicLimits()), Shard(0, ClassicLimits())
        fill(random, log, expected)
        end = asyncio.run(loader.load(found, GroupCodec(), log))
        assert end == log.log_end_offset
        assert picture(found) == picture(expected), f"seed {seed}"


def test_invalid_records_are_skipped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, shard = MemoryLog(), Shard(0, ClassicLimits())
    good = GroupRecord(OffsetKey("g", "t", 0), OffsetValue(5, -1, "", WALL_MS))
    garbage = [NewRecord(b"\x00\x01\xff", b"x"), NewRecord(encode_key(GroupKey("g")), b"\x00\x63")]
    log.append(build_batch([*garbage, NewRecord(encode_key(good.key), encode_value(good.value))]))
    asyncio.run(loader.load(shard, GroupCodec(), log))
    assert shard.offsets.fetch("g", "t", [0], False)[0].offset == 5
    assert "count=2" in caplog.text


def test_records_of_unknown_types_are_counted_and_ignored() -> None:
    log, shard = MemoryLog(), Shard(0, ClassicLimits())
    newer = struct.pack(">hh", 11, 1) + b"g"
    log.append(build_batch([NewRecord(newer, b"\x00\x00\x00\x00\x00\x01")]))
    asyncio.run(loader.load(shard, GroupCodec(), log))
    assert (shard.groups, shard.unsupported) == ({}, {11: 1})


def consumer_picture(shard: Shard) -> object:
    return {
        name: (
            group.epoch,
            group.metadata_hash,
            group.target_epoch,
            group.members,
            group.current,
            group.targets,
            group.regexes,
            group.owners,
            group.by_instance,
        )
        for name, group in shard.groups.items()
        if isinstance(group, ConsumerGroup)
    }


@pytest.mark.parametrize("keys_max", [3, 50_000])
def test_converted_groups_are_loaded_as_if_record_by_record(
    keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "KEYS_MAX", keys_max)
    monkeypatch.setattr(loader, "CHUNK_BYTES", 500)
    kinds = set()
    for seed in range(12):
        world = World(seed, 0.4)
        world.run(150)
        log, expected, found = MemoryLog(), world.new_shard(), world.new_shard()
        replay(world.log, expected)
        for raw_key, raw_value in world.log:
            log.append(build_batch([NewRecord(raw_key, raw_value, WALL_MS)]))
        asyncio.run(loader.load(found, GroupCodec(), log))
        assert picture(found) == picture(expected)
        assert consumer_picture(found) == consumer_picture(expected)
        kinds |= {type(group) for group in found.groups.values()}
    assert kinds == {ClassicGroup, ConsumerGroup}
