"""The complete pipeline on its own broker and Spark: run it with `pytest`."""

import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import generate
import pyarrow.dataset

from headrace.client import connect
from headrace.pipelines.written import table_files
from headrace.testing import RunningBroker

PROJECT = Path(__file__).resolve().parent
SEED, FIRST, ORDERS = 1, 400, 200
STAGES = ("placed", "paid", "shipped", "cancelled", "refunded")
STATE = ("status", "events", "paid_cents", "channel", "quantity")


def read_table(warehouse: Path, name: str) -> list[dict[str, Any]]:
    files = sorted(map(str, table_files(warehouse / name)))
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(files).to_table().to_pylist()
    return rows


def events(first: int, orders: int) -> list[dict[str, Any]]:
    numbers = range(first, first + orders)
    return [event for n in numbers for event in generate.order_events(SEED, n)]


def revenue(first: int, orders: int) -> dict[tuple[datetime, str], int]:
    """The expected rows of revenue_per_minute, in plain Python."""
    found: Counter[tuple[datetime, str]] = Counter()
    for event in events(first, orders):
        if event["type"] in ("paid", "refunded"):
            minute = datetime.fromisoformat(event["at"]).replace(second=0, microsecond=0)
            sign = 1 if event["type"] == "paid" else -1
            found[minute, event["product"]] += sign * event["amount_cents"]
    return dict(found)


def states(first: int, orders: int) -> dict[str, dict[str, Any]]:
    """The expected rows of orders: events in order, a status that never goes back."""
    found: dict[str, dict[str, Any]] = {}
    for event in events(first, orders):
        kind = event["type"]
        new = {"status": kind, "events": 0, "paid_cents": None, "channel": event.get("channel")}
        state = found.setdefault(event["order_id"], new)
        state["events"] += 1
        if kind == "corrected":
            state["quantity"] = event["quantity"]
            continue
        state.setdefault("quantity", event.get("quantity"))
        state["status"] = max(state["status"], kind, key=STAGES.index)
        if kind in ("paid", "refunded"):
            sign = 1 if kind == "paid" else -1
            state["paid_cents"] = (state["paid_cents"] or 0) + sign * event["amount_cents"]
    return found


def check_tables(warehouse: Path, first: int, orders: int) -> None:
    rows = read_table(warehouse, "revenue_per_minute")
    found = {
        (row["minute"].replace(tzinfo=UTC), row["product"]): row["revenue_cents"] for row in rows
    }
    assert found == revenue(first, orders)
    found_states = {
        row["order_id"]: {name: row[name] for name in STATE}
        for row in read_table(warehouse, "orders")
    }
    assert found_states == states(first, orders)


def check_topics(bootstrap: str, warehouse: Path, first: int, orders: int) -> None:
    with connect(bootstrap) as client:
        dead = list(client.consume("orders-dead-letters", until="end"))
        alerts = {alert.key for alert in client.consume("order-alerts", until="end")}
    wrong = len(read_table(warehouse, "raw_orders")) - len(read_table(warehouse, "order_events"))
    assert len({(h["partition"], h["offset"]) for h in (dict(d.headers) for d in dead)}) == wrong
    assert all(dict(letter.headers)["reason"] for letter in dead)
    placed = [event for event in events(first, orders) if event["type"] == "placed"]
    large = {e["order_id"] for e in placed if e["quantity"] * e["price_cents"] >= 100_000}
    assert alerts == {order_id.encode() for order_id in large}


def test_the_tables_are_what_the_events_say(headrace_broker: RunningBroker, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns(".headrace"))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace(str(PROJECT), str(project)))
    address = ["--bootstrap-server", headrace_broker.address]
    numbers = ["--first", str(FIRST), "--orders", str(ORDERS), "--seed", str(SEED)]
    subprocess.run([sys.executable, "generate.py", *numbers, *address], cwd=project, check=True)
    run = [sys.executable, "-m", "headrace", "pipeline", "run", *address]
    subprocess.run(run, cwd=project, check=True)
    warehouse = project / ".headrace" / "warehouse"
    check_tables(warehouse, FIRST, ORDERS)
    check_topics(headrace_broker.address, warehouse, FIRST, ORDERS)
