"""The producer machine against scripted brokers: batching, order, retries, sequences."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.core.errors import (
    ClientClosed,
    RecordTooLarge,
    RequestFailed,
    TimedOut,
    UnknownTopic,
)
from headrace.client.core.options import ProducerOptions
from headrace.client.produce.partitioner import keyed_partition
from headrace.wire.apis import INIT_PRODUCER_ID, METADATA, PRODUCE
from tests.unit.client.engine_scenario import World
from tests.unit.client.producer_scenario import Scene, drop, fault, silence


def test_records_appended_together_go_in_one_batch() -> None:
    scene = Scene()
    deliveries = [scene.append(b"%d" % number, partition=0) for number in range(10)]
    scene.flush()
    assert len(scene.log.batches) == 1
    assert [delivery.result().offset for delivery in deliveries] == list(range(10))
    assert scene.machine.buffered_bytes == 0


def test_a_batch_waits_for_its_linger_time_and_no_longer() -> None:
    scene = Scene(linger_ms=20)
    scene.append(partition=0)
    scene.world.pass_ms(19)
    assert scene.log.batches == []
    scene.append(partition=0)
    scene.world.pass_ms(1)
    scene.world.settle()
    assert [batch.record_count for batch in scene.log.batches] == [2]


def test_awaited_delivery_is_sent_without_linger() -> None:
    scene = Scene(linger_ms=60_000)
    delivery = scene.append(partition=0)
    scene.machine.send_without_linger(delivery)
    before_ms = scene.world.now_ms
    scene.world.until(lambda: delivery.done)
    assert scene.world.now_ms - before_ms < 60_000


def test_records_after_a_full_batch_start_another() -> None:
    scene = Scene(batch_bytes_max=1_000, linger_ms=1_000)
    for _ in range(10):
        scene.append(b"x" * 300, partition=0)
    scene.flush()
    assert [batch.record_count for batch in scene.log.batches] == [2, 2, 2, 2, 2]
    assert len(scene.log.values[0]) == 10


def test_record_larger_than_a_batch_is_sent_alone() -> None:
    scene = Scene(batch_bytes_max=1_000)
    scene.append(b"small", partition=0)
    scene.append(b"x" * 5_000, partition=0)
    scene.flush()
    assert [batch.record_count for batch in scene.log.batches] == [1, 1]


def test_record_larger_than_a_request_is_rejected_immediately() -> None:
    scene = Scene()

    class Huge(bytes):
        def __len__(self) -> int:
            return 200_000_000

    with pytest.raises(RecordTooLarge, match="exceeds the maximum request size"):
        scene.append(Huge(), partition=0)


def test_partitions_of_one_leader_share_a_request() -> None:
    scene = Scene()
    scene.append(partition=0)
    scene.append(partition=1)
    scene.flush()
    assert len(scene.world.requests(PRODUCE)) == 1
    assert len(scene.log.batches) == 2


def test_each_leader_gets_its_own_partitions() -> None:
    scene = Scene(World(brokers=2, leaders={"t": [1, 2]}))
    scene.append(partition=0)
    scene.append(partition=1)
    scene.flush()
    assert sorted(asked.node for asked in scene.world.requests(PRODUCE)) == [1, 2]


def test_key_determines_the_partition() -> None:
    scene = Scene(World(leaders={"t": [1] * 7}))
    delivery = scene.append(key=b"k")
    scene.flush()
    assert delivery.result().partition == keyed_partition(b"k", 7)


def test_without_a_key_a_batch_stays_in_one_partition() -> None:
    scene = Scene(World(leaders={"t": [1] * 7}))
    deliveries = [scene.append() for _ in range(20)]
    scene.flush()
    assert len({delivery.result().partition for delivery in deliveries}) == 1


def test_round_robin_spreads_records() -> None:
    scene = Scene(World(leaders={"t": [1] * 5}), partitioner="round_robin")
    deliveries = [scene.append() for _ in range(10)]
    scene.flush()
    partitions = [delivery.result().partition for delivery in deliveries]
    assert sorted(partitions) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_partition_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownTopic, match="partitions 0 to 1, not 2"):
        Scene().append(partition=2)


def test_a_retry_keeps_its_sequence_and_is_written_once() -> None:
    scene = Scene()
    scene.log.after_append = [drop, silence]
    delivery = scene.append(b"once", partition=0)
    scene.flush()
    assert scene.log.values[0] == [b"once"]
    assert delivery.result().offset == 0
    assert scene.sequences() == [0, 0, 0]


def test_records_keep_their_order_after_failures() -> None:
    scene = Scene(batch_bytes_max=200)
    scene.log.faults = [fault(0), fault(6), fault(0), drop, fault(0), fault(19)]
    for number in range(40):
        scene.append(b"%d" % number + b"x" * 60, partition=0)
        if number % 3 == 0:
            scene.world.settle()
    scene.flush()
    numbers = [int(value.rstrip(b"x")) for value in scene.log.values[0]]
    assert numbers == list(range(40))


outcomes = st.sampled_from(
    [(0, None), (6, None), (19, None), (56, None), ("drop", None), (0, "drop"), (0, "silence")]
)


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(outcomes, max_size=12), pauses=st.lists(st.integers(0, 3), max_size=25))
def test_random_faults_neither_lose_duplicate_nor_reorder_records(
    plan: list[tuple[int | str, str | None]], pauses: list[int]
) -> None:
    scene = Scene(batch_bytes_max=150, delivery_timeout_ms=10_000_000)
    ends: dict[object, Callable[[], int]] = {"drop": drop, "silence": silence, None: fault(0)}
    scene.log.faults = [drop if before == "drop" else fault(int(before)) for before, _ in plan]
    scene.log.after_append = [ends[after] for _, after in plan]
    for number in range(25):
        scene.append(b"%d" % number + b"x" * 60, partition=number % 2)
        if number < len(pauses) and pauses[number]:
            scene.world.pass_ms(pauses[number] * 40)
    scene.world.run(scene.machine.flush(), limit_ms=10_000_000)
    for partition in (0, 1):
        numbers = [int(value.rstrip(b"x")) for value in scene.log.values[partition]]
        assert numbers == list(range(partition, 25, 2))


def test_a_producer_that_is_not_idempotent_has_one_batch_open_per_partition() -> None:
    scene = Scene(idempotent=False, acks=1, batch_bytes_max=100)
    scene.log.faults = [fault(6)]
    for number in range(6):
        scene.append(b"%d" % number + b"x" * 60, partition=0)
    scene.world.settle()
    assert len(scene.log.batches) == 1
    scene.flush()
    assert [value[:1] for value in scene.log.values[0]] == [b"%d" % n for n in range(6)]
    assert set(scene.sequences()) == {-1}


def test_unknown_producer_id_starts_a_new_epoch_at_sequence_0() -> None:
    scene = Scene()
    scene.append(b"1", partition=0)
    scene.flush()
    scene.log.faults = [fault(45)]
    scene.append(b"2", partition=0)
    scene.flush()
    assert scene.log.values[0] == [b"1", b"2"]
    last = scene.log.batches[-1]
    assert (last.producer_epoch, last.base_sequence) == (1, 0)


def test_rejected_batch_leaves_no_gap_in_the_sequences() -> None:
    scene = Scene(batch_bytes_max=100)
    scene.log.faults = [fault(0), fault(87)]
    deliveries = [scene.append(b"%d" % number + b"x" * 80, partition=0) for number in range(4)]
    with pytest.raises(RequestFailed, match="INVALID_RECORD"):
        scene.flush()
    with pytest.raises(RequestFailed):
        deliveries[1].result()
    assert [value[:1] for value in scene.log.values[0]] == [b"0", b"2", b"3"]


def test_an_unknown_outcome_never_gets_a_new_sequence() -> None:
    """A batch that may have been written and timed out: the next one must not jump over it."""
    scene = Scene(delivery_timeout_ms=1_000)
    scene.log.after_append = [silence]
    first = scene.append(b"maybe", partition=0)
    scene.world.until(lambda: first.done)
    with pytest.raises(TimedOut):
        first.result()
    scene.machine.options = ProducerOptions(linger_ms=0)
    scene.append(b"next", partition=0)
    scene.flush()
    assert scene.log.values[0] == [b"maybe", b"next"]
    assert scene.sequences()[-1] == 1


def test_a_fenced_producer_gets_another_id() -> None:
    scene = Scene()
    scene.log.faults = [fault(47)]
    scene.append(b"v", partition=0)
    scene.flush()
    assert len(scene.world.requests(INIT_PRODUCER_ID)) == 2
    assert scene.log.values[0] == [b"v"]


def test_batch_that_is_too_large_is_split() -> None:
    scene = Scene()
    scene.log.size_max = 500
    deliveries = [scene.append(b"%03d" % number + b"x" * 97, partition=0) for number in range(20)]
    scene.flush()
    assert [value[:3] for value in scene.log.values[0]] == [b"%03d" % n for n in range(20)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(20))


def test_too_large_record_fails_and_the_next_one_is_sent() -> None:
    scene = Scene()
    scene.log.size_max = 500
    large = scene.append(b"x" * 600, partition=0)
    scene.world.until(lambda: large.done)
    with pytest.raises(RecordTooLarge):
        large.result()
    assert scene.append(b"small", partition=0)
    scene.flush()
    assert scene.log.values[0] == [b"small"]


def test_acks_0_is_done_once_it_is_written_to_the_socket() -> None:
    scene = Scene(acks=0, idempotent=False)
    delivery = scene.append(partition=0)
    scene.flush()
    assert delivery.result().offset == -1


def test_nothing_is_delivered_after_the_deadline() -> None:
    scene = Scene(delivery_timeout_ms=5_000)
    scene.world.down = {1}
    scene.world.cut(1)
    delivery = scene.append(partition=0)
    scene.world.until(lambda: delivery.done)
    with pytest.raises(TimedOut, match="records not acknowledged by t-0 within 5000 ms: 1; "):
        delivery.result()
    assert scene.world.now_ms <= 7_000


def test_new_leader_is_found_without_loss_or_duplicates() -> None:
    scene = Scene(World(brokers=2, leaders={"t": [1]}), batch_bytes_max=100)

    def moved() -> int:
        scene.world.leaders["t"] = [2]
        return 6

    scene.log.faults = [fault(0), moved, fault(6)]
    for number in range(5):
        scene.append(b"%d" % number + b"x" * 80, partition=0)
    scene.flush()
    assert [value[:1] for value in scene.log.values[0]] == [b"%d" % n for n in range(5)]
    assert scene.world.requests(PRODUCE)[-1].node == 2


def test_a_partition_without_a_leader_waits_for_one() -> None:
    scene = Scene(World(leaders={"t": [-1]}))
    delivery = scene.append(partition=0)
    scene.world.pass_ms(3_000)
    assert not delivery.done
    scene.world.leaders["t"] = [1]
    scene.flush()
    assert delivery.result().offset == 0
    assert len(scene.world.requests(METADATA)) < 30


def test_at_most_five_requests_are_in_flight_per_broker() -> None:
    scene = Scene(batch_bytes_max=100)
    scene.append(partition=0)
    scene.flush()
    scene.world.asked.clear()
    scene.world.answers[PRODUCE] = lambda node, request: None
    for _ in range(20):
        scene.append(b"x" * 80, partition=0)
    scene.world.settle()
    assert len(scene.world.requests(PRODUCE)) == 5


def test_first_batch_of_a_producer_is_sent_alone() -> None:
    """A broker accepts any sequence of an unknown producer."""
    scene = Scene(batch_bytes_max=100)
    scene.world.answers[PRODUCE] = lambda node, request: None
    for _ in range(20):
        scene.append(b"x" * 80, partition=0)
    scene.world.settle()
    assert len(scene.world.requests(PRODUCE)) == 1


def test_appending_waits_while_the_buffer_is_full() -> None:
    scene = Scene(buffer_bytes_max=1_000, linger_ms=60_000)
    assert scene.machine.space().done
    for _ in range(10):
        scene.append(b"x" * 200, partition=0)
    space = scene.machine.space()
    assert not space.done
    scene.world.run(space)
    assert scene.machine.buffered_bytes < 1_000


def test_topic_ids_are_used_if_they_are_known() -> None:
    scene = Scene(World(topic_ids=True))
    delivery = scene.append(partition=1)
    scene.flush()
    assert scene.world.requests(PRODUCE)[0].version == 13
    assert delivery.result().partition == 1


def test_old_brokers_get_requests_of_their_version() -> None:
    scene = Scene(World(topic_ids=True, versions={PRODUCE: (0, 7)}))
    delivery = scene.append(partition=0)
    scene.flush()
    assert scene.world.requests(PRODUCE)[0].version == 7
    assert delivery.result().offset == 0


def test_flush_raises_only_unreported_errors() -> None:
    scene = Scene()
    scene.log.faults = [fault(87), fault(87)]
    seen = scene.append(partition=0)
    scene.world.until(lambda: seen.done)
    with pytest.raises(RequestFailed):
        seen.result()
    scene.flush()
    scene.append(partition=0)
    with pytest.raises(RequestFailed):
        scene.flush()
    scene.flush()


def test_close_fails_undelivered_records() -> None:
    scene = Scene(linger_ms=60_000)
    delivery = scene.append(partition=0)
    scene.machine.close(ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        delivery.result()
    with pytest.raises(ClientClosed):
        scene.append(partition=0)


def test_without_a_producer_id_nothing_is_sent() -> None:
    scene = Scene()
    scene.world.answers[INIT_PRODUCER_ID] = lambda node, request: {
        "error_code": 31,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    delivery = scene.append(partition=0)
    scene.world.until(lambda: delivery.done)
    with pytest.raises(RequestFailed, match="CLUSTER_AUTHORIZATION_FAILED"):
        delivery.result()
    assert scene.world.requests(PRODUCE) == []


def test_permanent_error_of_init_producer_id_fails_records_immediately() -> None:
    scene = Scene()
    init = scene.world.answers[INIT_PRODUCER_ID]
    scene.world.answers[INIT_PRODUCER_ID] = lambda node, request: {
        "error_code": -1,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    refused = scene.append(partition=0)
    scene.world.until(lambda: refused.done)
    with pytest.raises(RequestFailed, match="its disk might be full"):
        refused.result()
    assert len(scene.world.requests(INIT_PRODUCER_ID)) == 1
    scene.world.answers[INIT_PRODUCER_ID] = init
    delivery = scene.append(partition=0)
    scene.world.until(lambda: delivery.done)
    assert delivery.result().offset == 0


def test_an_idempotent_producer_needs_all_acknowledgements() -> None:
    with pytest.raises(ValueError, match="acks='all'"):
        ProducerOptions(acks=1)


def test_reconnected_broker_is_used_immediately() -> None:
    scene = Scene()
    scene.append(b"1", partition=0)
    scene.flush()
    scene.world.down = {1}
    scene.world.cut(1)
    delivery = scene.append(b"2", partition=0)
    scene.world.until(lambda: scene.world.now_ms > 10_000)
    back_ms = scene.world.now_ms
    scene.world.down = set()
    scene.world.until(lambda: delivery.done)
    assert scene.world.now_ms - back_ms < 3_000
