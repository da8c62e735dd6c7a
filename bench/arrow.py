"""`python -m bench.arrow`: `headrace.arrow.read` beside the plain consumer, on one broker of ours.

1. Both read the same topic of 4 partitions, and a wrong count ends the run.
2. The plain consumer's records are made into an Arrow table of keys and values, as a user would.
"""

import argparse
import time
from collections.abc import Callable

import pyarrow as pa

import headrace
import headrace.arrow
from bench.spark import TOPIC, VALUE_BYTES, fill
from headrace.client import connect
from headrace.testing import RunningBroker


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.arrow", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    ways: dict[str, Callable[[str], pa.Table]] = {
        "headrace.arrow.read, 7 columns": lambda address: headrace.arrow.read(TOPIC, address),
        "headrace.arrow.read, value only": lambda address: headrace.arrow.read(
            TOPIC, address, columns=["value"]
        ),
        "client.consume, key and value": consumed,
    }
    best = dict.fromkeys(ways, 0.0)
    with RunningBroker.start(settings={"log.retention.ms": "-1"}) as broker:
        fill(broker.address, chosen.rows)
        for _ in range(chosen.rounds):
            for name, way in ways.items():
                began_s = time.monotonic()
                table = way(broker.address)
                took_s = time.monotonic() - began_s
                if table.num_rows != chosen.rows:
                    raise SystemExit(f"{name}: {table.num_rows} rows instead of {chosen.rows}")
                best[name] = max(best[name], chosen.rows / took_s)
    code = "compiled" if headrace.compiled() else "uncompiled"
    print(f"{chosen.rows:,} rows, values of {VALUE_BYTES} bytes, best of {chosen.rounds}, {code}")
    for name, rate in best.items():
        print(f"{name}: {rate / 1e6:.2f} M rows/s")


def consumed(address: str) -> pa.Table:
    keys, values = [], []
    with connect(address) as client:
        for record in client.consume(TOPIC, until="end"):
            keys.append(record.key)
            values.append(record.value)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


if __name__ == "__main__":
    main()
