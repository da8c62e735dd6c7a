"""Compares the broker's CPU time per Produce request without ACLs and with 10,000 ACLs.

    python -m bench.acls [--rounds 40] [--acls 10000]

Two brokers get the same blocks of requests alternately, so that other load of the machine affects
both. Prints the median of the CPU times, and the median and quartiles of the ratios of the rounds.
"""

import argparse
import socket
import statistics
import time
from pathlib import Path

import headrace
import headrace.client
from bench import frames
from headrace.client import Acl, AclOperation, PatternType, Permission, ResourceType
from headrace.config.security_rows import AUTHORIZERS
from headrace.testing import RunningBroker
from headrace.wire.apis import PRODUCE
from headrace.wire.codec import decode_response

TOPIC = "orders"
WORKLOADS = {"small": (1, 100, 2000), "typical": (160, 100, 500)}
"""Records per request, bytes per record, and requests per block."""
PIPELINED = 10
ACLS_PER_REQUEST = 1000
ACLS = {
    "authorizer.class.name": AUTHORIZERS[0],
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}


def cpu_ns(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks)


class Target:
    def __init__(self, broker: RunningBroker) -> None:
        self._pid = broker.pid
        self._sock = socket.create_connection(("127.0.0.1", broker.port))

    def block(self, request: bytes, count: int) -> float:
        """CPU time per request, in us."""
        before = cpu_ns(self._pid)
        for _ in range(count // PIPELINED):
            self._sock.sendall(request * PIPELINED)
            for _ in range(PIPELINED):
                reply = self._read(int.from_bytes(self._read(4), "big"))
        cost = (cpu_ns(self._pid) - before) / count / 1000
        (topic,) = decode_response(PRODUCE, 11, reply)[1]["responses"]
        assert topic["partition_responses"][0]["error_code"] == 0, topic
        return cost

    def _read(self, size: int) -> bytes:
        data = self._sock.recv(size, socket.MSG_WAITALL)
        if len(data) != size:
            raise ConnectionError("the broker closed the connection")
        return data


def add_acls(address: str, count: int) -> None:
    """Create one ACL for the topic, and ACLs for unused topics and users."""
    rules = [(TOPIC, PatternType.LITERAL, "User:ANONYMOUS")]
    kinds = (PatternType.LITERAL, PatternType.PREFIXED)
    rules += [(f"topic-{at}", kinds[at % 2], f"User:user-{at % 100}") for at in range(1, count)]
    acls = [
        Acl(ResourceType.TOPIC, kind, name, user, "*", AclOperation.WRITE, Permission.ALLOW)
        for name, kind, user in rules
    ]
    with headrace.client.connect(address, operation_timeout_ms=600_000) as client:
        for first in range(0, len(acls), ACLS_PER_REQUEST):
            client.create_acls(acls[first : first + ACLS_PER_REQUEST])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.acls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=40, help="default: 40")
    parser.add_argument("--acls", type=int, default=10_000, help="default: 10,000")
    args = parser.parse_args()
    print("compiled" if headrace.compiled() else "uncompiled")
    with RunningBroker.start() as plain, RunningBroker.start(settings=ACLS) as secured:
        for broker in (plain, secured):
            with headrace.client.connect(broker.address) as client:
                client.create_topic(TOPIC, partitions=1)
        add_acls(secured.address, args.acls)
        targets = Target(plain), Target(secured)
        for name, (records, size, count) in WORKLOADS.items():
            values = frames.text_values(records, size)
            batch = frames.build_batch(values, frames.CODEC_NONE, round(time.time() * 1000))
            request = frames.produce(TOPIC, batch)
            for target in targets:
                target.block(request, count)
            rounds = [
                tuple(each.block(request, count) for each in targets) for _ in range(args.rounds)
            ]
            without, with_acls = (statistics.median(each) for each in zip(*rounds, strict=True))
            low, middle, high = statistics.quantiles((b / a for a, b in rounds), n=4)
            print(
                f"{name}: {without:.2f} us without ACLs, {with_acls:.2f} us with {args.acls:,}: "
                f"ratio {middle:.3f}, quartiles {low:.3f} to {high:.3f}"
            )


if __name__ == "__main__":
    main()
