"""Measures TLS: produce, fetch and handshakes of Headrace alongside Apache Kafka.

    python -m bench.tls [--headrace-only] [--rounds 3] [--seconds 5]

Starts its own brokers on loopback, with the same keys. Each client connection is a thread, so the
clients limit throughput; compare the broker's CPU time. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench import frames, kafka, load
from bench.brokers import HEADRACE, KAFKA, cpu_s_of
from bench.workloads import BULK, FETCH_SIZE, TYPICAL, ProduceLoad, batch_of
from headrace.ensemble.zookeeper import free_port
from headrace.security.certificates import Pair, create_ca, create_certificate
from headrace.testing import RunningBroker

HANDSHAKES = 300
LISTENERS = ("PLAINTEXT", "EC", "RSA", "MTLS")
Numbers = dict[str, float]


class Keys:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        now = datetime.now(UTC)
        ca = create_ca("bench", now)
        self.write("ca.pem", ca.certificate)
        for name, kind in (("ec", "ec"), ("rsa", "rsa")):
            self.write_pair(name, create_certificate(ca, name, now, ("localhost",), kind=kind))
        self.write_pair("client", create_certificate(ca, "client", now))

    def write_pair(self, name: str, pair: Pair) -> None:
        self.write(f"{name}.pem", pair.key + pair.certificate)

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def settings(self, ports: dict[str, int]) -> dict[str, str]:
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EC:SSL,RSA:SSL,MTLS:SSL",
            "ssl.truststore.location": self.path("ca.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.path("ec.pem"),
            "listener.name.rsa.ssl.keystore.location": self.path("rsa.pem"),
            "listener.name.mtls.ssl.client.auth": "required",
        }
        for name in ("ec", "rsa", "mtls"):
            prefix = f"listener.name.{name}."
            key = "rsa.pem" if name == "rsa" else "ec.pem"
            settings |= {
                prefix + "ssl.keystore.type": "PEM",
                prefix + "ssl.keystore.location": self.path(key),
                prefix + "ssl.truststore.type": "PEM",
                prefix + "ssl.truststore.location": self.path("ca.pem"),
            }
        return settings

    def context(self, *, has_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        if has_certificate:
            context.load_cert_chain(self.path("client.pem"))
        return context


class Target:
    def __init__(self, name: str, pid: int, ports: dict[str, int], keys: Keys) -> None:
        self.name = name
        self.pid = pid
        self.ports = ports
        self.keys = keys

    def connect(
        self,
        listener: str,
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> socket.socket:
        sock = load.connect("127.0.0.1", self.ports[listener])
        if listener == "PLAINTEXT":
            return sock
        context = context or self.keys.context()
        return context.wrap_socket(sock, server_hostname="localhost", session=session)

    def create(self, topic: str) -> str:
        load.create_topic("127.0.0.1", self.ports["PLAINTEXT"], topic, {})
        return topic


def measured(target: Target, work: Callable[[], int]) -> tuple[int, float, float]:
    """Run the work. Return its result, its time and the CPU time of the broker, in seconds."""
    os.sync()
    cpu, start = cpu_s_of(target.pid), time.perf_counter()
    done = work()
    return done, time.perf_counter() - start, cpu_s_of(target.pid) - cpu


def on_threads(count: int, work: Callable[[int], int]) -> int:
    """Run the work on `count` threads, and return the sum of the results."""
    results = [0] * count

    def run(number: int) -> None:
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(results):
        raise frames.ResponseError("a connection failed")
    return sum(results)


def produce(
    target: Target, listener: str, workload: ProduceLoad, name: str, seconds: float
) -> Numbers:
    topic = target.create(name)
    request = frames.produce(topic, batch_of(workload))
    response = frames.produce_response(topic)

    def one(_: int) -> int:
        with target.connect(listener) as sock:
            end = time.perf_counter() + seconds
            for _ in range(workload.depth):
                sock.sendall(request)
            sent = workload.depth
            for done in range(1, 1 << 60):
                found = load.receive_exactly(sock, response.size)
                if not found.startswith(response.before):
                    raise frames.ResponseError(f"unexpected response {found[:80]!r}")
                if time.perf_counter() < end:
                    sock.sendall(request)
                    sent += 1
                elif done == sent:
                    return sent * len(request)
        raise AssertionError

    return rate(measured(target, lambda: on_threads(workload.connections, one)))


def fetch(target: Target, listener: str, topic: str, seconds: float) -> Numbers:
    request = frames.fetch(topic, 0, size_max=FETCH_SIZE)

    def one(_: int) -> int:
        buffer = bytearray(1 << 20)
        size = 0
        with target.connect(listener) as sock:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                sock.sendall(request)
                left = int.from_bytes(load.receive_exactly(sock, 4), "big")
                size += left
                while left:
                    left -= sock.recv_into(buffer, min(left, len(buffer)))
        return size

    return rate(measured(target, lambda: on_threads(2, one)))


def rate(result: tuple[int, float, float]) -> Numbers:
    size, seconds, cpu_s = result
    return {"MB/s": size / seconds / 1e6, "CPU-s/GB": cpu_s / size * 1e9}


def handshakes(target: Target, listener: str, *, resumes: bool = False) -> Numbers:
    context = target.keys.context(has_certificate=listener == "MTLS")
    session = None
    request = kafka.api_versions_frame()

    def work() -> int:
        nonlocal session
        for _ in range(HANDSHAKES):
            with target.connect(listener, context, session) as sock:
                # TLS 1.3 sends session tickets after the handshake: a read receives them.
                load.ask(sock, request)
                assert isinstance(sock, ssl.SSLSocket)
                if resumes:
                    session = sock.session
        return HANDSHAKES

    done, seconds, cpu_s = measured(target, work)
    return {"per second": done / seconds, "CPU-ms": cpu_s / done * 1e3}


def round_of(target: Target, number: int, seconds: float) -> dict[str, Numbers]:
    found: dict[str, Numbers] = {}
    for listener in ("PLAINTEXT", "EC"):
        kind = "TLS" if listener == "EC" else "plaintext"
        name = f"{listener.lower()}-{number}"
        found[f"typical, {kind}"] = produce(target, listener, TYPICAL, f"typical-{name}", seconds)
        found[f"bulk, {kind}"] = produce(target, listener, BULK, f"bulk-{name}", seconds)
        found[f"fetch, {kind}"] = fetch(target, listener, f"bulk-{name}", seconds)
    found["handshake, ECDSA P-256"] = handshakes(target, "EC")
    found["handshake, RSA 2048"] = handshakes(target, "RSA")
    found["handshake, ECDSA, resumed"] = handshakes(target, "EC", resumes=True)
    found["handshake, ECDSA, mutual"] = handshakes(target, "MTLS")
    return found


@contextlib.contextmanager
def targets(keys: Keys, *, headrace_only: bool) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        ports = {name: free_port() for name in LISTENERS}
        broker = stack.enter_context(RunningBroker.start(settings=keys.settings(ports)))
        found = [Target(HEADRACE, broker.pid, ports, keys)]
        if not headrace_only:
            ports = {name: free_port() for name in LISTENERS}
            controller = free_port()
            settings = keys.settings(ports)
            listeners = settings["listeners"]
            settings["listeners"] = f"{listeners},CONTROLLER://127.0.0.1:{controller}"
            settings["advertised.listeners"] = listeners
            settings["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
            settings["controller.quorum.voters"] = f"1@127.0.0.1:{controller}"
            kafka.fetch()
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
            _, file = kafka.format_storage(directory, settings)
            node = kafka.launch_kafka(directory, ports["PLAINTEXT"], file)
            stack.callback(node.stop)
            found.append(Target(KAFKA, node.pid, ports, keys))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--headrace-only", action="store_true", help="do not run Apache Kafka")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="measured rounds, after one round to warm up (default: 3)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="time per measurement of produce or fetch (default: 5)",
    )
    chosen = parser.parse_args()
    samples: dict[tuple[str, str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-tls-") as directory,
        targets(Keys(Path(directory)), headrace_only=chosen.headrace_only) as found,
    ):
        for number in range(chosen.rounds + 1):
            for target in found:
                for row, numbers in round_of(target, number, chosen.seconds).items():
                    kafka.say(f"{number}  {target.name}  {row}  {numbers}")
                    for unit, value in numbers.items():
                        if number:
                            samples.setdefault((row, target.name, unit), []).append(value)
    print_table(samples)


def print_table(samples: dict[tuple[str, str, str], list[float]]) -> None:
    rows = list(dict.fromkeys(row for row, _, _ in samples))
    print("|  | Headrace | Apache Kafka | Headrace CPU | Kafka CPU |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        is_rate = (row, HEADRACE, "MB/s") in samples
        units = ("MB/s", "CPU-s/GB") if is_rate else ("per second", "CPU-ms")
        cells = [
            f"{statistics.median(values):,.2f} {unit}"
            if (values := samples.get((row, name, unit)))
            else "-"
            for unit in units
            for name in (HEADRACE, KAFKA)
        ]
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
