"""The consumer's machine against scripted brokers: positions, order, resets, transactions."""

from typing import Any

import pytest

from headrace.client.core import arguments, lookups
from headrace.client.core.errors import OffsetOutOfRange, RequestFailed, UnknownTopic
from headrace.client.core.options import ConsumerOptions
from headrace.client.core.values import AtTime, Record
from headrace.client.fetch.fetch_machine import FetchMachine
from headrace.model.topics import TopicPartition
from headrace.record.build import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    NewRecord,
    build_batch,
    build_transaction_marker,
)
from headrace.wire.apis import FETCH, LIST_OFFSETS
from tests.unit.client.engine_scenario import Drop, World

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class Store:
    """A broker's partitions as batches by base offset."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: dict[int, list[tuple[int, int, bytes]]] = {0: [], 1: []}
        self.starts = {0: 0, 1: 0}
        self.aborted: list[dict[str, int]] = []
        self.faults: list[int] = []
        self.drops = 0
        world.answers[FETCH] = self.fetch
        world.answers[LIST_OFFSETS] = self.list_offsets

    def end(self, index: int) -> int:
        return self.batches[index][-1][1] if self.batches[index] else 0

    def add(self, index: int, *values: bytes, base: int | None = None, **settings: Any) -> None:
        first = self.end(index) if base is None else base
        records = [NewRecord(b"k", value, 1_000 + first + n) for n, value in enumerate(values)]
        data = build_batch(records, base_offset=first, **settings)
        self.batches[index].append((first, first + len(values), data))

    def add_marker(self, index: int, kind: int, producer_id: int) -> None:
        first = self.end(index)
        data = build_transaction_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=first,
        )
        self.batches[index].append((first, first + 1, data))

    def list_offsets(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in request["topics"]:
            parts = []
            for part in topic["partitions"]:
                index = part["partition_index"]
                offset = self.starts[index] if part["timestamp"] == -2 else self.end(index)
                parts.append({"partition_index": index, "error_code": 0, "offset": offset})
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics}

    def fetch(self, node: int, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.drops:
            self.drops -= 1
            raise Drop
        results = [
            {
                "topic": topic.get("topic"),
                "topic_id": topic.get("topic_id"),
                "partitions": [self._read(part) for part in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
        if not any(part["records"] or part["error_code"] for part in results[0]["partitions"]):
            return None
        return {"responses": results}

    def _read(self, part: dict[str, Any]) -> dict[str, Any]:
        index, offset = part["partition"], part["fetch_offset"]
        code, records = self.faults.pop(0) if self.faults else 0, b""
        if not code and not self.starts[index] <= offset <= self.end(index):
            code = 1
        if not code:
            for _, end, data in self.batches[index]:
                if end > offset:
                    records += data
            limit = max(part["partition_max_bytes"], self._first(index, offset))
            records = records[:limit]
        return {
            "partition_index": index,
            "error_code": code,
            "high_watermark": self.end(index),
            "last_stable_offset": self.end(index),
            "log_start_offset": self.starts[index],
            "aborted_transactions": self.aborted,
            "records": records,
        }

    def _first(self, index: int, offset: int) -> int:
        sizes = [len(data) for _, end, data in self.batches[index] if end > offset]
        return sizes[0] if sizes else 0


class Scene:
    def __init__(self, world: World | None = None, **settings: Any) -> None:
        self.world = world or World()
        self.store = Store(self.world)
        self.machine = FetchMachine(self.world.engine, ConsumerOptions(**settings))
        self.world.engine.attach(self.machine)
        engine = self.world.engine
        self.world.run(engine.start(lookups.ensure_topics(engine, ["t"], create=False)))

    def take(self, count_max: int = 1_000) -> list[Record]:
        """Records, however long they take to come."""
        while True:
            records = self.machine.take_records(count_max)
            if records:
                return records
            self.world.run(self.machine.ready())

    def take_all(self, *ends: tuple[TopicPartition, int], count_max: int = 1_000) -> list[Record]:
        taken: list[Record] = []
        while any(self.machine.position(partition) < end for partition, end in ends):
            taken += self.machine.take_records(count_max)
            if all(self.machine.position(partition) >= end for partition, end in ends):
                break
            self.world.run(self.machine.ready())
        return taken


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_records_are_returned_in_order_from_the_position() -> None:
    scene = Scene()
    scene.store.add(0, b"0", b"1", b"2")
    scene.store.add(0, b"3", b"4")
    scene.machine.assign({T0: 1})
    assert values(scene.take()) == [b"1", b"2", b"3", b"4"]
    assert scene.machine.position(T0) == 5
    assert scene.machine.high_watermark(T0) == 5


def test_record_has_all_stored_fields() -> None:
    scene = Scene()
    scene.store.add(0, b"v")
    scene.machine.assign({T0: 0})
    assert scene.take() == [Record("t", 0, 0, 1_000, b"k", b"v", (), False)]


def test_records_are_returned_up_to_the_maximum_count() -> None:
    scene = Scene()
    scene.store.add(0, *[b"%d" % number for number in range(10)])
    scene.machine.assign({T0: 0})
    portions = [values(scene.take(count_max=4)) for _ in range(3)]
    assert portions == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8", b"9"]]
    assert scene.machine.position(T0) == 10


def test_incomplete_batch_is_fetched_again() -> None:
    scene = Scene(partition_bytes_max=700)
    for number in range(20):
        scene.store.add(0, b"%d" % number + b"x" * 200)
    scene.machine.assign({T0: 0})
    assert len(scene.take_all((T0, 20))) == 20
    assert len(scene.world.requests(FETCH)) > 5


def test_batch_larger_than_the_limit_is_fetched() -> None:
    scene = Scene(partition_bytes_max=100)
    scene.store.add(0, b"x" * 5_000)
    scene.machine.assign({T0: 0})
    assert len(scene.take()) == 1


def test_gaps_in_the_offsets_do_not_stop_a_consumer() -> None:
    scene = Scene()
    scene.store.add(0, b"0", base=0)
    scene.store.add(0, b"7", base=7)
    scene.store.add(0, b"90", base=90)
    scene.machine.assign({T0: 0})
    assert [record.offset for record in scene.take_all((T0, 91))] == [0, 7, 90]


def test_no_partition_starves_another() -> None:
    scene = Scene()
    for index in (0, 1):
        for number in range(50):
            scene.store.add(index, b"%d" % number)
    scene.machine.assign({T0: 0, T1: 0})
    scene.world.run(scene.machine.ready())
    first, second = scene.machine.take_records(50), scene.machine.take_records(50)
    assert {record.partition for record in first + second} == {0, 1}


def test_long_poll_of_an_idle_partition_does_not_delay_a_busy_one() -> None:
    scene = Scene(partition_bytes_max=500)
    for number in range(30):
        scene.store.add(0, b"%d" % number + b"x" * 100)
    scene.machine.assign({T0: 0, T1: 0})
    before_ms = scene.world.now_ms
    assert len(scene.take_all((T0, 30))) == 30
    assert scene.world.now_ms == before_ms


def test_buffer_is_limited() -> None:
    scene = Scene(buffer_bytes_max=1_000, partition_bytes_max=10_000)
    for number in range(100):
        scene.store.add(0, b"%d" % number + b"x" * 100)
    scene.machine.assign({T0: 0})
    scene.world.settle()
    assert len(scene.world.requests(FETCH)) == 1
    assert len(scene.take_all((T0, 100))) == 100


def test_seek_discards_buffered_records_and_responses_in_flight() -> None:
    scene = Scene()
    scene.store.add(0, *[b"%d" % number for number in range(10)])
    scene.machine.assign({T0: 0})
    scene.world.run(scene.machine.ready())
    scene.machine.seek(T0, 8)
    assert values(scene.take()) == [b"8", b"9"]
    scene.machine.seek(T0, 2)
    assert values(scene.take(1)) == [b"2"]


def test_paused_partition_is_not_fetched() -> None:
    scene = Scene()
    scene.store.add(0, b"0")
    scene.store.add(1, b"1")
    scene.machine.assign({T0: 0, T1: 0})
    scene.machine.pause(T0)
    assert values(scene.take()) == [b"1"]
    scene.machine.pause(T1)
    scene.machine.resume(T0)
    assert values(scene.take()) == [b"0"]


def test_consumer_fetches_from_a_new_leader() -> None:
    scene = Scene(World(brokers=2, leaders={"t": [1, 1]}))
    scene.store.add(0, b"0")
    scene.store.faults = [6]
    scene.world.leaders["t"] = [2, 2]
    scene.machine.assign({T0: 0})
    assert values(scene.take()) == [b"0"]
    assert [asked.node for asked in scene.world.requests(FETCH)] == [1, 2]


def test_disconnects_and_temporary_errors_lose_nothing() -> None:
    scene = Scene()
    for number in range(5):
        scene.store.add(0, b"%d" % number)
    scene.store.drops = 2
    scene.store.faults = [5, 78, 74]
    scene.machine.assign({T0: 0})
    assert [record.offset for record in scene.take_all((T0, 5))] == [0, 1, 2, 3, 4]


def test_offset_out_of_range_is_an_error_by_default() -> None:
    scene = Scene()
    scene.store.add(0, b"9", base=9)
    scene.store.starts[0] = 9
    scene.machine.assign({T0: 3})
    with pytest.raises(OffsetOutOfRange, match="t-0 has no offset 3"):
        scene.take()
    scene.machine.seek(T0, 9)
    assert values(scene.take()) == [b"9"]


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [9]), ("latest", [10])])
def test_offset_out_of_range_is_reset_by_the_policy(policy: str, expected: list[int]) -> None:
    scene = Scene(out_of_range=policy)
    scene.store.add(0, b"9", base=9)
    scene.store.starts[0] = 9
    scene.machine.assign({T0: 3})
    scene.world.until(lambda: scene.machine.position(T0) >= 9)
    if policy == "latest":
        scene.store.add(0, b"10")
    assert [record.offset for record in scene.take()] == expected


def test_a_rejected_partition_is_an_error() -> None:
    scene = Scene()
    scene.store.faults = [29]
    scene.machine.assign({T0: 0})
    with pytest.raises(RequestFailed, match="TOPIC_AUTHORIZATION_FAILED"):
        scene.take()


def test_a_deleted_topic_is_an_error_after_a_while() -> None:
    scene = Scene()
    scene.store.faults = [3] * 100
    del scene.world.leaders["t"]
    scene.machine.assign({T0: 0})
    with pytest.raises(UnknownTopic, match="'t' was deleted"):
        scene.take()


def test_corrupt_record_is_never_returned() -> None:
    scene = Scene()
    scene.store.add(0, b"good")
    first, end, data = scene.store.batches[0][0]
    scene.store.batches[0][0] = (first, end, data[:-2] + b"\xff\x00")
    scene.machine.assign({T0: 0})
    with pytest.raises(RequestFailed, match="CORRUPT_MESSAGE"):
        scene.take_all((T0, 1))


def transactional(scene: Scene) -> None:
    """Aborted by 7, committed by 8, plain, aborted by 7 again, and one that 7 commits."""
    store = scene.store
    store.add(0, b"a0", b"a1", producer_id=7, producer_epoch=0, transactional=True)
    store.add(0, b"c2", producer_id=8, producer_epoch=0, transactional=True)
    store.add_marker(0, CONTROL_ABORT, 7)
    store.add(0, b"p4")
    store.add_marker(0, CONTROL_COMMIT, 8)
    store.add(0, b"a6", producer_id=7, producer_epoch=0, transactional=True)
    store.add_marker(0, CONTROL_ABORT, 7)
    store.add(0, b"c8", producer_id=7, producer_epoch=0, transactional=True)
    store.add_marker(0, CONTROL_COMMIT, 7)
    store.aborted = [
        {"producer_id": 7, "first_offset": 6},
        {"producer_id": 7, "first_offset": 0},
    ]


def test_read_committed_omits_records_of_aborted_transactions() -> None:
    scene = Scene(isolation="read_committed")
    transactional(scene)
    scene.machine.assign({T0: 0})
    assert values(scene.take_all((T0, 10))) == [b"c2", b"p4", b"c8"]
    assert scene.world.requests(FETCH)[0].request["isolation_level"] == 1


def test_read_uncommitted_returns_all_records_and_no_markers() -> None:
    scene = Scene()
    transactional(scene)
    scene.machine.assign({T0: 0})
    expected = [b"a0", b"a1", b"c2", b"p4", b"a6", b"c8"]
    assert values(scene.take_all((T0, 10))) == expected


def test_chunks_contain_undecoded_batches() -> None:
    scene = Scene()
    scene.store.add(0, b"0", b"1")
    scene.machine.assign({T0: 1})
    scene.world.run(scene.machine.ready())
    chunk = scene.machine.take_chunk()
    assert chunk is not None
    assert (chunk.partition, chunk.offset, chunk.next_offset) == (T0, 1, 2)
    assert chunk.data[chunk.start : chunk.end] == scene.store.batches[0][0][2]
    assert scene.machine.position(T0) == 2
    assert scene.machine.take_chunk() is None


def test_old_brokers_get_requests_of_their_version() -> None:
    scene = Scene(World(topic_ids=True, versions={FETCH: (0, 11)}))
    scene.store.add(0, b"0")
    scene.machine.assign({T0: 0})
    assert values(scene.take()) == [b"0"]
    assert scene.world.requests(FETCH)[0].version == 11


def test_topic_ids_are_used_if_they_are_known() -> None:
    scene = Scene(World(topic_ids=True))
    scene.store.add(0, b"0")
    scene.machine.assign({T0: 0})
    assert values(scene.take()) == [b"0"]
    assert scene.world.requests(FETCH)[0].version >= 13


def plan(scene: Scene, **changes: Any) -> tuple[dict[TopicPartition, int], arguments.ReadLimits]:
    given = {"partitions": None, "start": "earliest", "until": None, **changes}
    operation = arguments.plan_reading(
        scene.world.engine, "t", read_committed=False, wall_ms=5_000, **given
    )
    return scene.world.run(scene.world.engine.start(operation))


def test_reading_ends_at_the_log_end_of_its_start() -> None:
    scene = Scene()
    scene.store.add(0, b"0", b"1")
    starts, limits = plan(scene, until="end")
    assert starts == {T0: 0, T1: 0}
    assert limits.reached(T0, 2)
    assert not limits.reached(T0, 1)
    assert limits.reached(T1, 0)


def test_reading_until_an_offset_excludes_that_offset() -> None:
    _, limits = plan(Scene(), until=5, partitions=[1])
    assert limits.admits(Record("t", 1, 4, 0, None, None))
    assert not limits.admits(Record("t", 1, 5, 0, None, None))


def test_reading_until_a_future_time_ends_at_its_first_record() -> None:
    _, limits = plan(Scene(), until=AtTime(9_000))
    assert limits.admits(Record("t", 0, 4, 8_999, None, None))
    assert not limits.admits(Record("t", 0, 5, 9_000, None, None))
    assert not limits.admits(Record("t", 0, 6, 8_000, None, None))
    assert limits.admits(Record("t", 1, 6, 8_000, None, None))


def test_a_partition_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownTopic, match="partitions 0 to 1, not 5"):
        plan(Scene(), partitions=[5])


def test_invalid_start_is_named() -> None:
    with pytest.raises(ValueError, match="'yesterday'"):
        plan(Scene(), start="yesterday")


class Followed:
    """Broker 1 is the leader. It redirects consumers to broker 2, a follower with the same log."""

    def __init__(self) -> None:
        self.scene = Scene(World(brokers=2), rack="b")
        self.from_store = self.scene.store.fetch
        self.refusal = 0
        self.scene.world.answers[FETCH] = self.fetch

    def fetch(self, node: int, request: dict[str, Any]) -> dict[str, Any] | None:
        if node == 2 and not self.refusal:
            return self.from_store(node, request)
        part = {"partition_index": 0, "error_code": self.refusal, "high_watermark": 9}
        if node == 1:
            part |= {"error_code": 0, "preferred_read_replica": -1 if self.refusal else 2}
            if self.refusal:
                return self.from_store(node, request)
        return {"responses": [{"topic": "t", "partitions": [part]}]}

    def asked(self) -> list[int]:
        return [asked.node for asked in self.scene.world.requests(FETCH)]


def test_a_consumer_reads_from_the_replica_that_its_leader_names() -> None:
    followed = Followed()
    scene = followed.scene
    scene.store.add(0, b"0")
    scene.machine.assign({T0: 0})
    assert values(scene.take()) == [b"0"]
    scene.store.add(0, b"1")
    assert values(scene.take()) == [b"1"]
    assert followed.asked()[:2] == [1, 2]
    assert set(followed.asked()[2:]) == {2}
    assert {asked.request["rack_id"] for asked in scene.world.requests(FETCH)} == {"b"}


@pytest.mark.parametrize("code", [1, 6, 78])
def test_consumer_fetches_from_the_leader_after_an_error_of_a_replica(code: int) -> None:
    followed = Followed()
    scene = followed.scene
    scene.store.add(0, b"0")
    scene.machine.assign({T0: 0})
    assert values(scene.take()) == [b"0"]
    followed.refusal = code
    scene.store.add(0, b"1")
    assert values(scene.take()) == [b"1"]
    assert followed.asked()[-1] == 1


def test_preferred_replica_expires_after_metadata_age() -> None:
    followed = Followed()
    scene = followed.scene
    scene.store.add(0, b"0")
    scene.machine.assign({T0: 0})
    assert values(scene.take()) == [b"0"]
    scene.world.now_ms += 300_001
    scene.store.add(0, b"1")
    assert values(scene.take()) == [b"1"]
    assert followed.asked().count(1) == 2


def test_commit_has_the_leader_epoch_of_the_last_read_record() -> None:
    scene = Scene()
    for epoch, records in ((3, (b"0", b"1")), (3, (b"2",)), (5, (b"3", b"4"))):
        scene.store.add(0, *records, leader_epoch=epoch)
    scene.machine.assign({T0: 1})
    assert scene.machine.epoch_before(T0, 1) == -1
    assert len(scene.take()) == 4
    epochs = [scene.machine.epoch_before(T0, offset) for offset in range(1, 6)]
    assert epochs == [-1, 3, 3, 5, 5]
    scene.machine.seek(T0, 4)
    assert scene.machine.epoch_before(T0, 4) == -1
