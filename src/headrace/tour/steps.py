"""The eight steps: each changes the cluster, waits for the effect, and reports measurements.

All reported numbers are measured.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headrace.client import ConfigChange, ConfigResource, TopicPartition
from headrace.client.admin import replica_plan
from headrace.client.admin.replica_plan import Changes
from headrace.tour.cluster import LIMIT_BYTES
from headrace.tour.ledger import Tally, grouped, kilobytes, shares
from headrace.tour.load import GROUP, TOPIC, fields_of, value_of
from headrace.tour.tour import Tour

NORMAL_RATE = 500
HIGH_RATE = 1_800
PARTITION_COUNT = 6
REPLICA_COUNT = 3
FIRST_BROKER = 2
QUEUE_NEARLY_EMPTY = 400
"""With fewer records, each waits only for its batch."""


class Step(NamedTuple):
    title: str
    text: str
    run: Callable[[Tour], Awaitable[None]]


async def one_partition(tour: Tour) -> None:
    await tour.client.create_topic(TOPIC, assignment={0: [FIRST_BROKER]})
    await tour.wait_until(
        "the topic has a leader", lambda: bool(tour.observer.state.leaders_on(FIRST_BROKER))
    )
    number = tour.load.offer()
    await tour.wait_until("the first record is acknowledged", lambda: tour.ledger.acknowledged > 0)
    await asyncio.to_thread(_find_on_disk, tour, number)
    tour.are_consumers_started.set()
    tour.load.rate = NORMAL_RATE
    await _until_members(tour)
    count, began = tour.ledger.acknowledged, time.monotonic()
    await tour.pause(10)
    per_second = (tour.ledger.acknowledged - count) / (time.monotonic() - began)
    idle = [member.name for member in tour.load.members if not member.partitions]
    tour.say(
        f"the partition received {grouped(per_second)} records/s, all through broker "
        f"{tour.observer.state.leader_of(0)}; idle: {' and '.join(idle) or 'no consumer'}"
    )


def _find_on_disk(tour: Tour, number: int) -> None:
    directory = tour.cluster.directory / f"broker-{FIRST_BROKER}" / f"{TOPIC}-0"
    for file in sorted(directory.glob("*.log")):
        at = file.read_bytes().find(value_of(number))
        if at >= 0:
            tour.say(
                f"record {number} has offset 0 and is stored in "
                f"broker-{FIRST_BROKER}/{TOPIC}-0/{file.name}, its value at byte {at}"
            )


async def _until_members(tour: Tour) -> None:
    members = tour.load.members
    joined = 0
    while joined < len(members):
        await tour.wait_until(
            "a consumer reads records", lambda: any(member.partitions for member in members)
        )
        joined = len((await tour.client.describe_group(GROUP)).members)
        await asyncio.sleep(0.1)


async def bottleneck(tour: Tour) -> None:
    ledger = tour.ledger
    tour.load.rate = HIGH_RATE
    tour.say(f"the load rises from {grouped(NORMAL_RATE)} to {grouped(HIGH_RATE)} records/s")
    # A client can save up one second of its quota: measure after that.
    await tour.wait_until("the queue grows", lambda: ledger.queue > QUEUE_NEARLY_EMPTY)
    queue, count, began = ledger.queue, ledger.acknowledged, time.monotonic()
    await tour.pause(10)
    seconds = time.monotonic() - began
    tour.per_second_before = (ledger.acknowledged - count) / seconds
    tour.say(
        f"{grouped(tour.per_second_before)} records/s were acknowledged; the queue grew by "
        f"{grouped((ledger.queue - queue) / seconds)}/s to {grouped(ledger.queue)}; a record waits "
        f"{ledger.last_wait_s:.1f} s"
    )
    tour.say(f"share of bytes per broker: {shares(_bytes_by_broker(tour))}")


def _bytes_by_broker(tour: Tour) -> dict[int, int]:
    now = time.monotonic()
    rates = tour.ledger.bytes_rates
    return {
        each: int(rates[each].per_second(now)) if each in rates else 0
        for each in tour.cluster.brokers
    }


async def more_partitions(tour: Tour) -> None:
    ledger, observer = tour.ledger, tour.observer
    began = time.monotonic()
    await tour.client.create_partitions(TOPIC, PARTITION_COUNT)
    await tour.wait_until(
        "all partitions have a leader",
        lambda: (
            len(observer.state.partitions) == PARTITION_COUNT and not observer.state.without_leader
        ),
    )
    count, queue, spread = ledger.acknowledged, ledger.queue, time.monotonic()
    await tour.wait_until(
        "both consumers read records",
        lambda: all(member.partitions for member in tour.load.members),
    )
    tour.say(
        f"{PARTITION_COUNT} partitions on three brokers; both consumers read after "
        f"{time.monotonic() - began:.1f} s"
    )
    await tour.wait_until("the queue is empty", lambda: ledger.queue < QUEUE_NEARLY_EMPTY)
    tour.say(
        f"the queue of {grouped(queue)} records is empty after {time.monotonic() - spread:.1f} s"
    )
    await tour.pause(4)
    after = (ledger.acknowledged - count) / (time.monotonic() - spread)
    tour.say(
        f"{grouped(after)} records/s are acknowledged, compared with "
        f"{grouped(tour.per_second_before)}/s with one partition"
    )
    tour.say(f"share of bytes per broker: {shares(_bytes_by_broker(tour))}")


async def without_replicas(tour: Tour) -> None:
    ledger, observer = tour.ledger, tour.observer
    tour.load.rate = NORMAL_RATE
    await tour.wait_until("the queue is empty", lambda: ledger.queue < QUEUE_NEARLY_EMPTY)
    victim = _leader_but_not_controller(tour)
    lost = observer.state.leaders_on(victim)
    tour.cluster.kill(victim)
    began = time.monotonic()
    tour.say(f"broker {victim} is killed; it has the only replica of partitions {_listed(lost)}")
    await tour.wait_until(
        "the partitions have no leader", lambda: observer.state.without_leader == lost
    )
    # By then, earlier acknowledgements are counted.
    await asyncio.sleep(0.5)
    count = sum(ledger.acknowledged_of.get(index, 0) for index in lost)
    await tour.pause(8)
    messages = sum(ledger.acknowledged_of.get(index, 0) for index in lost) - count
    tour.say(
        f"after {time.monotonic() - began:.1f} s: {grouped(messages)} acknowledged on partitions "
        f"{_listed(lost)}, {grouped(ledger.queue)} records wait"
    )
    tour.screen.record_frame()
    await tour.cluster.start_broker(victim)
    await tour.wait_until("all partitions have a leader", lambda: not observer.state.without_leader)
    gone = time.monotonic() - began
    tour.say(f"the broker and its partitions are available again, after {gone:.1f} s")
    tour.say(await tour.count())


async def replicas(tour: Tour) -> None:
    ledger, observer = tour.ledger, tour.observer
    count, errors = ledger.acknowledged, tour.load.errors
    seconds = await _raise_replication_factor(tour)
    tour.say(
        f"each partition has three replicas after {seconds:.1f} s; "
        f"{grouped(ledger.acknowledged - count)} records were written in this time; errors seen by "
        f"clients: {tour.load.errors - errors}"
    )
    await tour.pause(4)
    victim = _leader_but_not_controller(tour)
    led = observer.state.leaders_on(victim)
    epochs = {part.index: part.leader_epoch for part in observer.state.partitions}
    marks = sum(observer.high_watermarks.get(index, 0) for index in led)
    ledger.longest_wait_s = 0.0
    tour.cluster.kill(victim)
    seconds = await tour.wait_until(
        "new leaders are elected",
        lambda: not observer.state.leaders_on(victim) and not observer.state.without_leader,
    )
    leaders = ", ".join(
        f"{index}: broker {observer.state.leader_of(index)} (epoch {epochs[index]} to "
        f"{observer.state.partitions[index].leader_epoch})"
        for index in led
    )
    tour.say(f"broker {victim} is killed; new leaders after {seconds:.1f} s. {leaders}")
    await tour.wait_until(
        "the dead broker is out of the ISR",
        lambda: all(victim not in part.isr for part in observer.state.partitions),
    )
    tour.say(f"in sync: {_in_sync(tour)}")
    tour.screen.record_frame()
    await tour.pause(6)
    grown = sum(observer.high_watermarks.get(index, 0) for index in led) - marks
    tour.say(
        f"the high watermarks of partitions {_listed(led)} rose by {grouped(grown)}; the longest "
        f"wait for an acknowledgement was {ledger.longest_wait_s:.1f} s"
    )
    await _restart_broker(tour, victim)
    tour.say(await tour.count())


async def _raise_replication_factor(tour: Tour) -> float:
    began = time.monotonic()
    before = {
        TopicPartition(TOPIC, part.index): part.replicas for part in tour.observer.state.partitions
    }
    targets = replica_plan.change_factor(
        before, dict.fromkeys(tour.observer.state.live), list(before), REPLICA_COUNT
    )
    await _reassign(tour, targets)
    # Two of the three replicas must have a record before it is acknowledged.
    changes = [ConfigChange("min.insync.replicas", "2")]
    await tour.client.alter_configs(ConfigResource("topic", TOPIC), changes)
    return time.monotonic() - began


async def _reassign(tour: Tour, targets: Changes) -> None:
    errors = await tour.client.alter_reassignments(targets)
    for error in errors.values():
        raise error

    def is_reassigned() -> bool:
        parts = tour.observer.state.partitions
        return all(
            parts[partition.partition].replicas == nodes
            and set(nodes) == set(parts[partition.partition].isr)
            for partition, nodes in targets.items()
        )

    await tour.wait_until("all replicas exist", is_reassigned)
    await tour.client.elect_leaders(list(targets))


def _in_sync(tour: Tour) -> str:
    counts: dict[int, int] = {}
    for part in tour.observer.state.partitions:
        counts[len(part.isr)] = counts.get(len(part.isr), 0) + 1
    return ", ".join(
        f"{size} of {REPLICA_COUNT} replicas of {count} partitions"
        for size, count in sorted(counts.items())
    )


async def _restart_broker(tour: Tour, node_id: int) -> None:
    await tour.cluster.start_broker(node_id)
    seconds = await tour.wait_until("all are in sync", lambda: tour.observer.state.is_in_sync)
    tour.say(
        f"broker {node_id} is running again; {seconds:.1f} s after its start, in sync: "
        f"{_in_sync(tour)}"
    )
    await tour.client.elect_leaders()


async def controller(tour: Tour) -> None:
    observer = tour.observer
    before = observer.state
    tour.cluster.kill(before.controller)
    seconds = await tour.wait_until(
        "a new controller is elected",
        lambda: (
            observer.state.controller not in (-1, before.controller)
            and observer.state.controller_epoch > before.controller_epoch
            and not observer.state.without_leader
        ),
    )
    tour.say(
        f"the controller, broker {before.controller}, is killed; broker "
        f"{observer.state.controller} is elected after {seconds:.1f} s. The controller epoch rises "
        f"from {before.controller_epoch} to {observer.state.controller_epoch}"
    )
    tour.screen.record_frame()
    await tour.pause(6)
    await _restart_broker(tour, before.controller)


async def new_broker(tour: Tour) -> None:
    ledger, observer = tour.ledger, tour.observer
    errors, count, began = tour.load.errors, ledger.acknowledged, time.monotonic()
    node_id = max(tour.cluster.brokers) + 1
    seconds = await tour.cluster.start_broker(node_id)
    await tour.wait_until("the broker is registered", lambda: node_id in observer.state.live)
    tour.say(f"broker {node_id} is registered after {seconds:.1f} s, without partitions")
    tour.screen.record_frame()
    await tour.pause(3)
    before = {
        TopicPartition(TOPIC, part.index): part.replicas for part in observer.state.partitions
    }
    racks = dict.fromkeys(observer.state.live)
    moving = time.monotonic()
    await _reassign(tour, replica_plan.add_brokers(before, racks, {node_id}))
    seconds = time.monotonic() - moving
    await tour.wait_until("it leads", lambda: bool(observer.state.leaders_on(node_id)))
    size = kilobytes(await _size_on(tour, node_id))
    held, led = observer.state.replicas_on(node_id), observer.state.leaders_on(node_id)
    tour.say(
        f"after {seconds:.1f} s it has partitions {_listed(held)} ({size}) and is the leader of "
        f"{_listed(led)}"
    )
    await tour.pause(6)
    per_second = (ledger.acknowledged - count) / (time.monotonic() - began)
    tour.say(
        f"{grouped(per_second)} records/s were acknowledged in this time; errors seen by clients: "
        f"{tour.load.errors - errors}"
    )


async def _size_on(tour: Tour, node_id: int) -> int:
    directories = await tour.client.describe_log_dirs(node_id)
    return sum(
        part.size_bytes for each in directories for part in each.partitions if part.topic == TOPIC
    )


async def replay(tour: Tour) -> None:
    ledger = tour.ledger
    tour.load.rate = 0
    tour.say(f"the producer has stopped: {await tour.count()}")
    tally = Tally()
    began = time.monotonic()
    async for records in tour.client.consume_lists(TOPIC, until="end"):
        for record in records:
            tally.apply(*fields_of(record))
    seconds = time.monotonic() - began
    tour.replay_is_same = tally.totals == ledger.tally.totals
    tour.say(
        f"{grouped(tally.count)} records of {len(tally.next_offsets)} partitions were read again "
        f"from offset 0 in {seconds:.1f} s"
    )
    tour.say(
        f"checksum of the state of {grouped(len(tally.totals))} keys: "
        f"{ledger.tally.digest()} in the group, {tally.digest()} rebuilt: "
        f"{'the same' if tour.replay_is_same else 'NOT the same'}"
    )
    await tour.pause(3)


def _leader_but_not_controller(tour: Tour) -> int:
    state = tour.observer.state
    return next(part.leader for part in state.partitions if part.leader != state.controller)


def _listed(indexes: list[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, indexes[:-1])), *map(str, indexes[-1:])]))


STEPS = (
    Step(
        "one partition, one replica",
        "A topic with one partition is one log on one broker. A producer "
        "appends records; each gets the next offset. Two consumers form a "
        "group. A partition has one reader per group, so one of the two is "
        "idle.",
        one_partition,
    ),
    Step(
        "the bottleneck",
        "The load rises above the limit of one broker. Each broker of this tour is limited to "
        f"{kilobytes(LIMIT_BYTES)}/s (quota.producer.default), so that two cores are enough to "
        "show it. One partition has one leader: one broker works, two are idle, and the queue "
        "grows.",
        bottleneck,
    ),
    Step(
        "more partitions",
        "Partitions are added to the topic under load, and the controller "
        "spreads them over the brokers. Now three brokers receive records and "
        "both consumers read. This is how a log scales.",
        more_partitions,
    ),
    Step(
        "a broker with the only replica",
        "Each partition has one replica, and one broker is killed (kill -9). No"
        " other broker has its data: these partitions are unavailable until it "
        "restarts, and producers wait.",
        without_replicas,
    ),
    Step(
        "three replicas, and a leader is killed",
        "The replication factor rises to 3 under load. Followers copy the log, "
        "and a record is committed when all in-sync replicas have it. Then a "
        "leader is killed. A follower that has every acknowledged record "
        "becomes leader, and the killed broker catches up later.",
        replicas,
    ),
    Step(
        "the controller is killed",
        "One broker is the controller: it elects the leaders, and was itself "
        "elected through ZooKeeper. It is killed, and another one is elected. "
        "Its higher epoch fences the former controller.",
        controller,
    ),
    Step(
        "another broker",
        "A fourth broker joins the running cluster without data. A plan assigns"
        " its share: partitions are copied to it, and it becomes the leader of "
        "some of them. Clients continue.",
        new_broker,
    ),
    Step(
        "replay",
        "Records stay in the log after they were read. A new consumer starts at"
        " offset 0 and reads everything again. The state that it builds equals "
        "the state of the group.",
        replay,
    ),
)
