"""Tries the installed package: a broker returns a record that was written before kill -9.

Run `python release/trial.py compiled`, or `pure`.
"""

import argparse
import time

import headrace
from headrace.client import connect
from headrace.testing import RunningBroker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", choices=("compiled", "pure"), help="the expected build")
    is_compiled = parser.parse_args().build == "compiled"
    assert headrace.compiled() == is_compiled, f"compiled: {headrace.compiled()}"
    began_s = time.monotonic()
    with RunningBroker.start() as broker, connect(broker.address) as client:
        ready_s = time.monotonic() - began_s
        client.produce("trial", "record")
        broker.kill()
        broker.restart()
        assert [record.value for record in client.consume("trial", until="end")] == [b"record"]
    print(f"a broker was ready after {ready_s:.2f} s, and returned its record after kill -9")


if __name__ == "__main__":
    main()
