"""Measures the broker's CPU time per login, and the latency of a client during failed logins.

    python -m bench.logins [--rate 1000] [--seconds 10] [--addresses 1]

Starts a broker on 127.0.0.1. The load runs in another process, which stands for other machines: it
gets a core only if the broker and the client need none. Prints a line per measurement.
"""

import argparse
import multiprocessing
import os
import secrets
import socket
import time
from datetime import UTC, datetime

import headrace.client
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256
from headrace.security.certificates import create_ca, create_certificate
from headrace.security.scram_client import login_client
from headrace.testing import RunningBroker
from headrace.wire.apis import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import MalformedRequest, decode_response, encode_request

LOGINS = 300


HANDSHAKE = "TLS"
"""In place of a mechanism: half a ClientHello, and nothing more."""
HALF_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(200)
OPEN_MAX = {HANDSHAKE: 1000}
"""The connections that the load keeps open; 400 for others."""


class Wire:
    """One blocking connection."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, api_key: int, version: int, body: dict[str, object]) -> None:
        frame = encode_request(api_key, version, 1, "bench", body)
        self.sock.sendall(len(frame).to_bytes(4, "big") + frame)

    def ask(self, api_key: int, version: int, body: dict[str, object]) -> dict[str, object]:
        self.send(api_key, version, body)
        size = int.from_bytes(self.sock.recv(4, socket.MSG_WAITALL), "big")
        frame = self.sock.recv(size, socket.MSG_WAITALL)
        return decode_response(api_key, version, frame)[1]

    def log_in(self, mechanism: str, password: str) -> None:
        self.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        client = login_client(mechanism, "alice", password, secrets.token_hex(8))
        challenge = b""
        while (token := client.next(challenge)) is not None:
            reply = self.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
            assert not reply["error_code"], reply
            challenge = reply["auth_bytes"]  # type: ignore[assignment]


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_logins(broker: RunningBroker, port: int) -> None:
    for mechanism in MECHANISMS:
        before = cpu_seconds(broker.pid)
        for _ in range(LOGINS):
            wire = Wire(port)
            wire.log_in(mechanism, "secret")
            wire.sock.close()
        cost = (cpu_seconds(broker.pid) - before) / LOGINS
        print(f"{mechanism:14} {cost * 1000:6.2f} ms of CPU time per login")


def fail_login(wire: Wire, mechanism: str) -> None:
    if not mechanism:
        wire.ask(API_VERSIONS, 0, {})
        return
    if mechanism == HANDSHAKE:
        wire.sock.sendall(HALF_HELLO)
        return
    wire.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    if mechanism == PLAIN:
        wire.send(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0wrong"})
        return
    token = b"n,,n=alice,r=abcdef"
    reply = wire.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
    nonce = bytes(reply["auth_bytes"]).split(b",")[0]  # type: ignore[call-overload]
    proof = b"c=biws," + nonce + b",p=" + b"A" * 43 + b"="
    wire.send(SASL_AUTHENTICATE, 2, {"auth_bytes": proof})


def fail_logins(port: int, rate: int, seconds: float, mechanism: str, addresses: int) -> None:
    """Send failing logins at a rate, without waiting for the delayed responses.

    Without a mechanism, open connections to the listener without SASL, as a comparison.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    open_sockets: list[socket.socket] = []
    began = time.monotonic()
    count = 0
    while (passed := time.monotonic() - began) < seconds:
        if count >= passed * rate:
            time.sleep(0.0005)
            continue
        count += 1
        at = count % addresses
        wire = Wire(port, f"127.0.{at // 250}.{1 + at % 250}")
        open_sockets.append(wire.sock)
        if len(open_sockets) > OPEN_MAX.get(mechanism, 400):
            open_sockets.pop(0).close()
        try:
            fail_login(wire, mechanism)
        except (ConnectionError, MalformedRequest):
            continue  # The broker rejects further logins of this address for some time.
    kind = f"failed logins with {mechanism}" if mechanism else "connections without a login"
    if mechanism == HANDSHAKE:
        kind = "unfinished TLS handshakes"
    print(f"  {count / seconds:.0f} {kind} per second")


def latencies(wire: Wire, seconds: float) -> tuple[float, float]:
    """The median and the 99th percentile of Metadata requests, in ms."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.perf_counter()
        wire.ask(METADATA, 1, {"topics": []})
        times.append(time.perf_counter() - before)
        time.sleep(0.001)
    times.sort()
    return times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000


def measure_failures(
    broker: RunningBroker, ports: dict[str, int], rate: int, seconds: float, addresses: int
) -> None:
    """`ports` has a port per load."""
    wire = Wire(ports[SCRAM_SHA_256])
    wire.log_in(SCRAM_SHA_256, "secret")
    before = cpu_seconds(broker.pid)
    median, p99 = latencies(wire, seconds)
    quiet = (cpu_seconds(broker.pid) - before) / seconds
    print(f"quiet: median {median:.2f} ms, 99th percentile {p99:.2f} ms")
    for mechanism, port in ports.items():
        load = multiprocessing.Process(
            target=fail_logins, args=(port, rate, seconds, mechanism, addresses)
        )
        before = cpu_seconds(broker.pid)
        load.start()
        median, p99 = latencies(wire, seconds)
        load.join()
        share = (cpu_seconds(broker.pid) - before) / seconds
        print(f"loaded: median {median:.2f} ms, 99th percentile {p99:.2f} ms,", end=" ")
        print(f"the broker uses {share:.0%} of a core (quiet: {quiet:.0%})")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.logins",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rate", type=int, default=1000, help="failed logins per second (default: 1000)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="per measurement (default: 10)")
    parser.add_argument("--addresses", type=int, default=1, help="of the load (default: 1)")
    args = parser.parse_args()
    port, open_port, tls_port = free_port(), free_port(), free_port()
    ports = {"": open_port, SCRAM_SHA_256: port, PLAIN: port, HANDSHAKE: tls_port}
    listeners = ("SASL_PLAINTEXT", port), ("PLAINTEXT", open_port), ("SSL", tls_port)
    ca = create_ca("bench", datetime.now(UTC))
    pair = create_certificate(ca, "bench", datetime.now(UTC), ("localhost",))
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.key": pair.key,
        "ssl.keystore.certificate.chain": pair.certificate,
    }
    with RunningBroker.start(settings=settings) as broker:
        with headrace.client.connect(f"127.0.0.1:{open_port}") as client:
            client.set_password("alice", "secret")
        measure_logins(broker, port)
        measure_failures(broker, ports, args.rate, args.seconds, args.addresses)


if __name__ == "__main__":
    main()
