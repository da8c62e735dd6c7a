"""The eight steps: each does one thing to the cluster, waits for what follows, says what it saw.

No number here is written down: a step measures, and says what it measured.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headrace.client import ConfigChange, ConfigResource, TopicPartition, spreading
from headrace.client.spreading import Changes
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
"""Below it records only wait for their batch."""


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
        f"the partition carried {whole(per_second)} records/s, all of them through broker "
        f"{tour.watch.picture.leader_of(0)}; {' and '.join(idle) or 'nobody'} had nothing to do"
    )


def _find_on_disk(tour: Tour, number: int) -> None:
    place = tour.stage.directory / f"broker-{FIRST_HOME}" / f"{TOPIC}-0"
    for file in sorted(place.glob("*.log")):
        at = file.read_bytes().find(value_of(number))
        if at >= 0:
            tour.say(
                f"record {number} has offset 0 and lies in broker-{FIRST_HOME}/{TOPIC}-0/"
                f"{file.name}, its value at byte {at}"
            )


async def _until_members(tour: Tour) -> None:
    members = tour.load.members
    joined = 0
    while joined < len(members):
        await tour.until("a member reads", lambda: any(member.partitions for member in members))
        joined = len((await tour.client.describe_group(GROUP)).members)
        await asyncio.sleep(0.1)


async def bottleneck(tour: Tour) -> None:
    ledger = tour.ledger
    tour.load.rate = SURGE
    tour.say(f"{whole(SURGE)} records/s are offered now; they were {whole(CALM)}")
    # A client may save up a second of its limit: what it carries is seen after that.
    await tour.until("the queue grows", lambda: ledger.queue > QUEUE_OF_NOTE)
    queue, count, began = ledger.queue, ledger.acknowledged, time.monotonic()
    await tour.rest(10)
    seconds = time.monotonic() - began
    tour.per_second_before = (ledger.acknowledged - count) / seconds
    tour.say(
        f"acknowledged were {whole(tour.per_second_before)}/s, and the queue grew by "
        f"{whole((ledger.queue - queue) / seconds)}/s to {whole(ledger.queue)}: a record waits "
        f"{ledger.last_wait_s:.1f} s"
    )
    tour.say(f"of the bytes each broker took: {shares(_bytes_by_broker(tour))}")


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
        "all partitions lead",
        lambda: (
            len(watch.picture.partitions) == PARTITION_COUNT and not watch.picture.without_leader
        ),
    )
    count, queue, spread = ledger.acknowledged, ledger.queue, time.monotonic()
    await tour.until(
        "both members read", lambda: all(member.partitions for member in tour.load.members)
    )
    tour.say(
        f"{PARTITION_COUNT} partitions on three brokers; both consumers read "
        f"{time.monotonic() - began:.1f} s after they were asked for"
    )
    await tour.until("the queue is empty", lambda: ledger.queue < QUEUE_OF_NOTE)
    tour.say(f"a queue of {whole(queue)} is gone after {time.monotonic() - spread:.1f} s")
    await tour.rest(4)
    after = (ledger.acknowledged - count) / (time.monotonic() - spread)
    tour.say(
        f"{whole(after)} records/s were acknowledged since; with one partition it was "
        f"{whole(tour.per_second_before)}/s"
    )
    tour.say(f"of the bytes each broker took: {shares(_bytes_by_broker(tour))}")


async def without_replicas(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    tour.load.rate = CALM
    await tour.until("the queue is empty", lambda: ledger.queue < QUEUE_OF_NOTE)
    victim = _leader_but_not_controller(tour)
    lost = watch.picture.led_by(victim)
    tour.stage.kill(victim)
    began = time.monotonic()
    tour.say(f"broker {victim} is killed; it had the only copy of partitions {_listed(lost)}")
    await tour.until("they are without a leader", lambda: watch.picture.without_leader == lost)
    # What was acknowledged before has been counted by then.
    await asyncio.sleep(0.5)
    count = sum(ledger.acknowledged_of.get(index, 0) for index in lost)
    await tour.rest(8)
    news = sum(ledger.acknowledged_of.get(index, 0) for index in lost) - count
    tour.say(
        f"{time.monotonic() - began:.1f} s later: {whole(news)} acknowledged on partitions "
        f"{_listed(lost)}, and {whole(ledger.queue)} records wait"
    )
    tour.screen.keep()
    await tour.stage.start_broker(victim)
    await tour.until("all partitions lead", lambda: not watch.picture.without_leader)
    gone = time.monotonic() - began
    tour.say(f"the broker is back, and with it the partitions: they were gone for {gone:.1f} s")
    tour.say(await tour.count())


async def replicas(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    count, errors = ledger.acknowledged, tour.load.errors
    seconds = await _raise_factor(tour)
    tour.say(
        f"three replicas each after {seconds:.1f} s, while {whole(ledger.acknowledged - count)} "
        f"records were written; errors seen by clients: {tour.load.errors - errors}"
    )
    await tour.rest(4)
    victim = _leader_but_not_controller(tour)
    led = watch.picture.led_by(victim)
    epochs = {part.index: part.leader_epoch for part in watch.picture.partitions}
    marks = sum(watch.high_watermarks.get(index, 0) for index in led)
    ledger.longest_wait_s = 0.0
    tour.stage.kill(victim)
    seconds = await tour.until(
        "others lead",
        lambda: not watch.picture.led_by(victim) and not watch.picture.without_leader,
    )
    leaders = ", ".join(
        f"{index}: broker {watch.picture.leader_of(index)} (epoch {epochs[index]} to "
        f"{watch.picture.partitions[index].leader_epoch})"
        for index in led
    )
    tour.say(f"broker {victim} is killed; {seconds:.1f} s later others lead. {leaders}")
    await tour.until(
        "it is in sync no more",
        lambda: all(victim not in part.isr for part in watch.picture.partitions),
    )
    tour.say(f"in sync are {_in_sync(tour)}")
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
    targets = spreading.change_factor(
        before, dict.fromkeys(tour.watch.picture.live), list(before), REPLICA_COUNT
    )
    await _move(tour, targets)
    # Two of the three must have a record before it is acknowledged.
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

    await tour.until("the replicas are there", has_arrived)
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
        f"broker {node_id} is back; {seconds:.1f} s after it began to serve, in sync are "
        f"{_in_sync(tour)}"
    )
    await tour.client.elect_leaders()


async def controller(tour: Tour) -> None:
    watch = tour.watch
    before = watch.picture
    tour.stage.kill(before.controller)
    seconds = await tour.until(
        "there is another controller",
        lambda: (
            watch.picture.controller not in (-1, before.controller)
            and watch.picture.controller_epoch > before.controller_epoch
            and not watch.picture.without_leader
        ),
    )
    tour.say(
        f"broker {before.controller} was the controller and is killed; after {seconds:.1f} s it is "
        f"broker {watch.picture.controller}. The controller's epoch was {before.controller_epoch} "
        f"and is {watch.picture.controller_epoch}"
    )
    tour.screen.keep()
    await tour.rest(6)
    await _bring_back(tour, before.controller)


async def new_broker(tour: Tour) -> None:
    ledger, watch = tour.ledger, tour.watch
    errors, count, began = tour.load.errors, ledger.acknowledged, time.monotonic()
    node_id = max(tour.stage.brokers) + 1
    seconds = await tour.stage.start_broker(node_id)
    await tour.until("the cluster knows it", lambda: node_id in watch.picture.live)
    tour.say(f"broker {node_id} is there after {seconds:.1f} s, and has nothing yet")
    tour.screen.keep()
    await tour.rest(3)
    before = {TopicPartition(TOPIC, part.index): part.replicas for part in watch.picture.partitions}
    racks = dict.fromkeys(watch.picture.live)
    moving = time.monotonic()
    await _move(tour, spreading.add_brokers(before, racks, {node_id}))
    seconds = time.monotonic() - moving
    await tour.until("it leads", lambda: bool(watch.picture.led_by(node_id)))
    size = kilobytes(await _size_on(tour, node_id))
    held, led = watch.picture.held_by(node_id), watch.picture.led_by(node_id)
    tour.say(
        f"{seconds:.1f} s later it has partitions {_listed(held)} ({size}) and leads {_listed(led)}"
    )
    await tour.rest(6)
    per_second = (ledger.acknowledged - count) / (time.monotonic() - began)
    tour.say(
        f"meanwhile {whole(per_second)} records/s were acknowledged; errors seen by clients: "
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
    tour.say(f"nothing is written any more: {await tour.count()}")
    tally = Tally()
    began = time.monotonic()
    async for records in tour.client.consume_lists(TOPIC, until="end"):
        for record in records:
            tally.apply(*fields_of(record))
    seconds = time.monotonic() - began
    tour.replay_is_same = tally.totals == ledger.tally.totals
    tour.say(
        f"{whole(tally.count)} records of {len(tally.next_offsets)} partitions, from offset 0 on, "
        f"were read again in {seconds:.1f} s"
    )
    tour.say(
        f"state of {whole(len(tally.totals))} keys: {ledger.tally.digest()} as the group has it, "
        f"{tally.digest()} rebuilt: {'the same' if tour.replay_is_same else 'NOT the same'}"
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
        "One topic with one partition is one log on one broker: a producer appends, and each "
        "record gets the next offset. Two consumers form a group, but a partition has one reader, "
        "so one of the two has nothing to do.",
        one_partition,
    ),
    Step(
        "the bottleneck",
        "The load rises beyond what one broker takes: each broker of this tour has the same limit, "
        f"quota.producer.default = {kilobytes(LIMIT_BYTES)}/s, so that two cores are enough to see "
        "it. One partition is led by one broker, so one works, two are idle, and the queue grows.",
        bottleneck,
    ),
    Step(
        "more partitions",
        "The topic gets more partitions while it is written, and the controller spreads them over "
        "the brokers. Now three brokers take records and both consumers read: that is how a log "
        "scales.",
        more_partitions,
    ),
    Step(
        "a broker without a stand-in",
        "The topic has one replica of each partition, and one of its brokers is killed (kill -9). "
        "Nobody else has that data, so those partitions are gone until the broker is back; "
        "producers wait.",
        without_replicas,
    ),
    Step(
        "three replicas, and the leader dies",
        "The replication factor is raised to 3 while records are written: followers copy the log, "
        "and a record counts as written when all in-sync replicas have it. Then a leader is "
        "killed, a follower that has every acknowledged record takes over, and the dead one "
        "catches up later.",
        replicas,
    ),
    Step(
        "the controller dies",
        "One broker is the controller and decides who leads; it was elected through ZooKeeper. It "
        "is killed, another is elected, and its higher epoch makes sure that nobody listens to "
        "the old one any more.",
        controller,
    ),
    Step(
        "one broker more",
        "A fourth broker joins the running cluster, empty. A plan gives it its share: partitions "
        "are copied to it and it leads some of them, while clients go on.",
        new_broker,
    ),
    Step(
        "replay",
        "A log is kept after it was read: a new consumer begins at offset 0 and reads everything "
        "again. The state that it builds from the records is the one that the group has, after "
        "all that happened.",
        replay,
    ),
)
