"""Tries the installed package: a broker keeps a record through a kill, and serves it."""

import argparse
import time

import headrace
from headrace.client import connect
from headrace.testing import RunningBroker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", choices=("compiled", "pure"))
    is_compiled = parser.parse_args().build == "compiled"
    assert headrace.compiled() == is_compiled, f"compiled: {headrace.compiled()}"
    began_s = time.monotonic()
    with RunningBroker.start() as broker, connect(broker.address) as client:
        ready_s = time.monotonic() - began_s
        client.produce("trial", "record")
        broker.kill()
        broker.restart()
        assert [record.value for record in client.consume("trial", until="end")] == [b"record"]
    print(f"a broker was ready after {ready_s:.2f} s and kept its record")


if __name__ == "__main__":
    main()
