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
from headrace.tour.ledger import Tally, kilobytes, shares, whole
from headrace.tour.load import GROUP, TOPIC, fields_of, value_of
from headrace.tour.stage import LIMIT_BYTES
from headrace.tour.tour import Tour

CALM = 500
SURGE = 1_800
PARTITION_COUNT = 6
REPLICA_COUNT = 3
FIRST_HOME = 2
QUEUE_OF_NOTE = 400
"""With fewer records, each waits only for its batch."""


class Step(NamedTuple):
    title: str
    text: str
    run: Callable[[Tour], Awaitable[None]]


async def one_partition(tour: Tour) -> None:
    await tour.client.create_topic(TOPIC, assignment={0: [FIRST_HOME]})
    await tour.until("the topic has a leader", lambda: bool(tour.watch.picture.led_by(FIRST_HOME)))
    number = tour.load.offer()
    await tour.until("the first record is acknowledged", lambda: tour.ledger.acknowledged > 0)
    await asyncio.to_thread(_find_on_disk, tour, number)
    tour.begin_reading()
    tour.load.rate = CALM
    await _until_members(tour)
    count, began = tour.ledger.acknowledged, time.monotonic()
    await tour.rest(10)
    per_second = (tour.ledger.acknowledged - count) / (time.monotonic() - began)
    idle = [member.name for member in tour.load.members if not member.partitions]
    tour.say(
        f"the partition received {whole(per_second)} records/s, all through broker "
        f"{tour.watch.picture.leader_of(0)}; idle: {' and '.join(idle) or 'no consumer'}"
    )


def _find_on_disk(tour: Tour, number: int) -> None:
    place = tour.stage.directory / f"broker-{FIRST_HOME}" / f"{TOPIC}-0"
    for file in sorted(place.glob("*.log")):
        at = file.read_bytes().find(value_of(number))
        if at >= 0:
            tour.say(
                f"record {number} has offset 0 and is stored in "
                f"broker-{FIRST_HOME}/{TOPIC}-0/{file.name}, its value at byte {at}"
            )


async def _until_members(tour: Tour) -> None:
    members = tour.load.members
    joined = 0
    while joined < len(members):
        await tour.until(
            "a consumer reads records", lambda: any(member.partitions for member in members)
        )
        joined = len((await tour.client.describe_group(GROUP)).members)
        await asyncio.sleep(0.1)


async def bottleneck(tour: Tour) -> None:
    ledger = tour.ledger
    tour.load.rate = SURGE
    tour.say(f"the load rises from {whole(CALM)} to {whole(SURGE)} records/s")
    # A client can save up one second of its quota: measure after that.
    await tour.until("the queue grows", lambda: ledger.queue > QUEUE_OF_NOTE)
    queue, count, began = ledger.queue, ledger.acknowledged, time.monotonic()
    await tour.rest(10)
    seconds = time.monotonic() - began
    tour.per_second_before = (ledger.acknowledged - count) / seconds
    tour.say(
        f"{whole(tour.per_second_before)} records/s were acknowledged; the queue grew by "
        f"{whole((ledger.queue - queue) / seconds)}/s to {whole(ledger.queue)}; a record waits "
        f"{ledger.last_wait_s:.1f} s"
    )
    tour.say(f"share of bytes per broker: {shares(_bytes_by_broker(tour))}")


def _bytes_by_broker(tour: Tour) -> dict[int, int]:
    now = time.monotonic()
    rates = tour.ledger.bytes_rates
    return {
        each: int(rates[each].per_second(now)) if each in rates else 0
        for each in tour.stage.brokers
    }


async def more_partitions(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    began = time.monotonic()
    await tour.client.create_partitions(TOPIC, PARTITION_COUNT)
    await tour.until(
        "all partitions have a leader",
        lambda: (
            len(watch.picture.partitions) == PARTITION_COUNT and not watch.picture.without_leader
        ),
    )
    count, queue, spread = ledger.acknowledged, ledger.queue, time.monotonic()
    await tour.until(
        "both consumers read records",
        lambda: all(member.partitions for member in tour.load.members),
    )
    tour.say(
        f"{PARTITION_COUNT} partitions on three brokers; both consumers read after "
        f"{time.monotonic() - began:.1f} s"
    )
    await tour.until("the queue is empty", lambda: ledger.queue < QUEUE_OF_NOTE)
    tour.say(
        f"the queue of {whole(queue)} records is empty after {time.monotonic() - spread:.1f} s"
    )
    await tour.rest(4)
    after = (ledger.acknowledged - count) / (time.monotonic() - spread)
    tour.say(
        f"{whole(after)} records/s are acknowledged, compared with "
        f"{whole(tour.per_second_before)}/s with one partition"
    )
    tour.say(f"share of bytes per broker: {shares(_bytes_by_broker(tour))}")


async def without_replicas(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    tour.load.rate = CALM
    await tour.until("the queue is empty", lambda: ledger.queue < QUEUE_OF_NOTE)
    victim = _leader_but_not_controller(tour)
    lost = watch.picture.led_by(victim)
    tour.stage.kill(victim)
    began = time.monotonic()
    tour.say(f"broker {victim} is killed; it has the only replica of partitions {_listed(lost)}")
    await tour.until("the partitions have no leader", lambda: watch.picture.without_leader == lost)
    # By then, earlier acknowledgements are counted.
    await asyncio.sleep(0.5)
    count = sum(ledger.acknowledged_of.get(index, 0) for index in lost)
    await tour.rest(8)
    news = sum(ledger.acknowledged_of.get(index, 0) for index in lost) - count
    tour.say(
        f"after {time.monotonic() - began:.1f} s: {whole(news)} acknowledged on partitions "
        f"{_listed(lost)}, {whole(ledger.queue)} records wait"
    )
    tour.screen.keep()
    await tour.stage.start_broker(victim)
    await tour.until("all partitions have a leader", lambda: not watch.picture.without_leader)
    gone = time.monotonic() - began
    tour.say(f"the broker and its partitions are available again, after {gone:.1f} s")
    tour.say(await tour.count())


async def replicas(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    count, errors = ledger.acknowledged, tour.load.errors
    seconds = await _raise_factor(tour)
    tour.say(
        f"each partition has three replicas after {seconds:.1f} s; "
        f"{whole(ledger.acknowledged - count)} records were written in this time; errors seen by "
        f"clients: {tour.load.errors - errors}"
    )
    await tour.rest(4)
    victim = _leader_but_not_controller(tour)
    led = watch.picture.led_by(victim)
    epochs = {part.index: part.leader_epoch for part in watch.picture.partitions}
    marks = sum(watch.high_watermarks.get(index, 0) for index in led)
    ledger.longest_wait_s = 0.0
    tour.stage.kill(victim)
    seconds = await tour.until(
        "new leaders are elected",
        lambda: not watch.picture.led_by(victim) and not watch.picture.without_leader,
    )
    leaders = ", ".join(
        f"{index}: broker {watch.picture.leader_of(index)} (epoch {epochs[index]} to "
        f"{watch.picture.partitions[index].leader_epoch})"
        for index in led
    )
    tour.say(f"broker {victim} is killed; new leaders after {seconds:.1f} s. {leaders}")
    await tour.until(
        "the dead broker is out of the ISR",
        lambda: all(victim not in part.isr for part in watch.picture.partitions),
    )
    tour.say(f"in sync: {_in_sync(tour)}")
    tour.screen.keep()
    await tour.rest(6)
    grown = sum(watch.high_watermarks.get(index, 0) for index in led) - marks
    tour.say(
        f"the high watermarks of partitions {_listed(led)} rose by {whole(grown)}; the longest "
        f"wait for an acknowledgement was {ledger.longest_wait_s:.1f} s"
    )
    await _bring_back(tour, victim)
    tour.say(await tour.count())


async def _raise_factor(tour: Tour) -> float:
    began = time.monotonic()
    before = {
        TopicPartition(TOPIC, part.index): part.replicas for part in tour.watch.picture.partitions
    }
    targets = replica_plan.change_factor(
        before, dict.fromkeys(tour.watch.picture.live), list(before), REPLICA_COUNT
    )
    await _move(tour, targets)
    # Two of the three replicas must have a record before it is acknowledged.
    changes = [ConfigChange("min.insync.replicas", "2")]
    await tour.client.alter_configs(ConfigResource("topic", TOPIC), changes)
    return time.monotonic() - began


async def _move(tour: Tour, targets: Changes) -> None:
    refused = await tour.client.alter_reassignments(targets)
    for error in refused.values():
        raise error

    def has_arrived() -> bool:
        parts = tour.watch.picture.partitions
        return all(
            parts[where.partition].replicas == nodes
            and set(nodes) == set(parts[where.partition].isr)
            for where, nodes in targets.items()
        )

    await tour.until("all replicas exist", has_arrived)
    await tour.client.elect_leaders(list(targets))


def _in_sync(tour: Tour) -> str:
    counts: dict[int, int] = {}
    for part in tour.watch.picture.partitions:
        counts[len(part.isr)] = counts.get(len(part.isr), 0) + 1
    return ", ".join(
        f"{size} of {REPLICA_COUNT} replicas of {count} partitions"
        for size, count in sorted(counts.items())
    )


async def _bring_back(tour: Tour, node_id: int) -> None:
    await tour.stage.start_broker(node_id)
    seconds = await tour.until("all are in sync", lambda: tour.watch.picture.is_in_sync)
    tour.say(
        f"broker {node_id} is running again; {seconds:.1f} s after its start, in sync: "
        f"{_in_sync(tour)}"
    )
    await tour.client.elect_leaders()


async def controller(tour: Tour) -> None:
    watch = tour.watch
    before = watch.picture
    tour.stage.kill(before.controller)
    seconds = await tour.until(
        "a new controller is elected",
        lambda: (
            watch.picture.controller not in (-1, before.controller)
            and watch.picture.controller_epoch > before.controller_epoch
            and not watch.picture.without_leader
        ),
    )
    tour.say(
        f"the controller, broker {before.controller}, is killed; broker "
        f"{watch.picture.controller} is elected after {seconds:.1f} s. The controller epoch rises "
        f"from {before.controller_epoch} to {watch.picture.controller_epoch}"
    )
    tour.screen.keep()
    await tour.rest(6)
    await _bring_back(tour, before.controller)


async def new_broker(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    errors, count, began = tour.load.errors, ledger.acknowledged, time.monotonic()
    node_id = max(tour.stage.brokers) + 1
    seconds = await tour.stage.start_broker(node_id)
    await tour.until("the broker is registered", lambda: node_id in watch.picture.live)
    tour.say(f"broker {node_id} is registered after {seconds:.1f} s, without partitions")
    tour.screen.keep()
    await tour.rest(3)
    before = {TopicPartition(TOPIC, part.index): part.replicas for part in watch.picture.partitions}
    racks = dict.fromkeys(watch.picture.live)
    moving = time.monotonic()
    await _move(tour, replica_plan.add_brokers(before, racks, {node_id}))
    seconds = time.monotonic() - moving
    await tour.until("it leads", lambda: bool(watch.picture.led_by(node_id)))
    size = kilobytes(await _size_on(tour, node_id))
    held, led = watch.picture.held_by(node_id), watch.picture.led_by(node_id)
    tour.say(
        f"after {seconds:.1f} s it has partitions {_listed(held)} ({size}) and is the leader of "
        f"{_listed(led)}"
    )
    await tour.rest(6)
    per_second = (ledger.acknowledged - count) / (time.monotonic() - began)
    tour.say(
        f"{whole(per_second)} records/s were acknowledged in this time; errors seen by clients: "
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
        f"{whole(tally.count)} records of {len(tally.next_offsets)} partitions were read again "
        f"from offset 0 in {seconds:.1f} s"
    )
    tour.say(
        f"checksum of the state of {whole(len(tally.totals))} keys: {ledger.tally.digest()} in the "
        f"group, {tally.digest()} rebuilt: {'the same' if tour.replay_is_same else 'NOT the same'}"
    )
    await tour.rest(3)


def _leader_but_not_controller(tour: Tour) -> int:
    picture = tour.watch.picture
    return next(part.leader for part in picture.partitions if part.leader != picture.controller)


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
