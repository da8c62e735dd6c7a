"""Writes the events of a shop's orders to the topic `orders`: the same for the same seed.

    python generate.py --orders 1000 --first 0

Some events are duplicates, some are late, and some records are not events. Some orders are
corrected, refunded, or placed again. Events from order 500 have the channel of the order.
"""

import argparse
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from encoding import encode

from headrace.client import Client, TopicExists, connect

PRICES_CENTS = {"bran": 250, "flour": 450, "groats": 620, "millstone": 45_000, "sieve": 4_800}
POPULARITY = (25, 35, 20, 5, 15)
OPENING = datetime(2026, 3, 2, 8, tzinfo=UTC)
CHANNEL_FROM_ORDER = 500
TOPICS = {"orders": 3, "orders-dead-letters": 1, "order-alerts": 1}


class Message(NamedTuple):
    due: datetime
    """The time at which it is written to the topic; after `at` if the event is late."""
    at: datetime
    key: bytes
    value: bytes | None


def order_events(seed: int, number: int) -> list[dict[str, Any]]:
    """The events of one order, valid and in order."""
    random = Random(f"{seed}/{number}")
    (product,) = random.choices(list(PRICES_CENTS), POPULARITY)
    quantity, price = random.randint(1, 5), PRICES_CENTS[product]
    moment = OPENING + timedelta(seconds=number + random.random())
    placed = {"product": product, "quantity": quantity, "price_cents": price}
    if number >= CHANNEL_FROM_ORDER:
        placed["channel"] = random.choice(["web", "app"])
    stages: list[tuple[str, dict[str, Any]]] = [("placed", placed)]
    if random.random() < 0.1:
        quantity = random.randint(1, 5)
        stages.append(("corrected", {"quantity": quantity}))
    amount = {"product": product, "amount_cents": quantity * price}
    if random.random() < 0.1:
        stages.append(("cancelled", {}))
    else:
        stages += [("paid", amount), ("shipped", {})]
        if random.random() < 0.1:
            stages.append(("refunded", amount))
    if random.random() < 0.05:
        # A client sends its order again, as a new event.
        stages.append(("placed", placed))
    events = []
    for seq, (kind, fields) in enumerate(stages, 1):
        at = moment.isoformat(timespec="milliseconds")
        events.append({"order_id": f"o{number:07}", "seq": seq, "type": kind, "at": at, **fields})
        moment += timedelta(seconds=random.uniform(2, 90))
    return events


def broken_value(event: dict[str, Any], random: Random) -> bytes | None:
    """A value that is not a valid event."""
    values: list[bytes | None] = [
        None,
        b"\xff\xfe not an event",
        encode(event)[:-9],
        encode({**event, "order_id": ""}),
        encode({**event, "seq": -1}),
        encode({**event, "type": "teleported"}),
        encode({**event, "at": "yesterday"}),
        encode({**event, "type": "placed", "quantity": 0}),
    ]
    return random.choice(values)


def order_messages(seed: int, number: int) -> Iterator[Message]:
    """The records of one order: duplicates, late events and invalid values included."""
    random = Random(f"{seed}/{number}/way")
    for event in order_events(seed, number):
        at = datetime.fromisoformat(event["at"])
        key = event["order_id"].encode()
        is_late = random.random() < 0.03
        due = at + timedelta(seconds=random.uniform(60, 900) if is_late else 0)
        yield Message(due, at, key, encode(event))
        if random.random() < 0.03:
            again = due + timedelta(seconds=random.uniform(0, 120))
            yield Message(again, at, key, encode(event))
        if random.random() < 0.01:
            yield Message(due, at, key, broken_value(event, random))


def messages(seed: int, first: int, orders: int) -> list[Message]:
    """The records of these orders, in the order in which they are written."""
    found = [m for n in range(first, first + orders) for m in order_messages(seed, n)]
    return sorted(found, key=lambda message: message.due)


def create_topics(client: Client) -> None:
    """Create the topics without retention; by default, records are deleted after a week."""
    for name, partitions in TOPICS.items():
        try:
            client.create_topic(name, partitions=partitions, configs={"retention.ms": "-1"})
        except TopicExists:
            continue


def default_bootstrap() -> str:
    """The address that `headrace pipeline` uses."""
    if "HEADRACE_BOOTSTRAP" in os.environ:
        return os.environ["HEADRACE_BOOTSTRAP"]
    import yaml

    spec = yaml.safe_load((Path(__file__).parent / "spark-pipeline.yml").read_text())
    return str(spec["configuration"]["headrace.bootstrap"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=1000, help="number of orders (default: 1000)")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first order (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="default: $HEADRACE_BOOTSTRAP, else the address of the project",
    )
    options = parser.parse_args()
    events = messages(options.seed, options.first, options.orders)
    with connect(options.bootstrap_server or default_bootstrap()) as client:
        create_topics(client)
        with client.producer() as producer:
            for event in events:
                timestamp_ms = int(event.at.timestamp() * 1000)
                producer.send("orders", event.value, key=event.key, timestamp_ms=timestamp_ms)
    print(f"Wrote {len(events):,} records of {options.orders:,} orders to topic orders.")


if __name__ == "__main__":
    main()
