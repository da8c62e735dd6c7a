"""Compares the speed of `headrace.arrow.read` and of `client.consume`, on one Headrace broker.

    python -m bench.arrow

1. Both read the same topic with 4 partitions. A wrong number of rows ends the run.
2. For `client.consume`, the time includes the conversion of keys and values to an Arrow table.
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
    parser = argparse.ArgumentParser(
        prog="python -m bench.arrow",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    chosen = parser.parse_args()
    readers: dict[str, Callable[[str], pa.Table]] = {
        "headrace.arrow.read, 7 columns": lambda address: headrace.arrow.read(TOPIC, address),
        "headrace.arrow.read, value only": lambda address: headrace.arrow.read(
            TOPIC, address, columns=["value"]
        ),
        "client.consume, key and value": consume,
    }
    best = dict.fromkeys(readers, 0.0)
    with RunningBroker.start(settings={"log.retention.ms": "-1"}) as broker:
        fill(broker.address, chosen.rows)
        for _ in range(chosen.rounds):
            for name, read in readers.items():
                began_s = time.monotonic()
                table = read(broker.address)
                took_s = time.monotonic() - began_s
                if table.num_rows != chosen.rows:
                    raise SystemExit(f"{name}: {table.num_rows} rows instead of {chosen.rows}")
                best[name] = max(best[name], chosen.rows / took_s)
    code = "compiled" if headrace.compiled() else "uncompiled"
    print(f"{chosen.rows:,} rows, values of {VALUE_BYTES} bytes, best of {chosen.rounds}, {code}")
    for name, rate in best.items():
        print(f"{name}: {rate / 1e6:.2f} M rows/s")


def consume(address: str) -> pa.Table:
    keys, values = [], []
    with connect(address) as client:
        for record in client.consume(TOPIC, until="end"):
            keys.append(record.key)
            values.append(record.value)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


if __name__ == "__main__":
    main()
