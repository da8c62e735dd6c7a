"""Measures whether the time of a response reveals that a user, a token or a topic exists.

    python -m bench.timing [--samples 3000]

Starts a broker on 127.0.0.1 whose failed logins are not delayed. Sends pairs of requests in random
order: one about a name that exists, one about a name that does not. Prints the medians, and how
often the response about the existing name took longer. 50 % reveals nothing. For comparison, the
last line has two names that do not exist.
"""

import argparse
import random
import socket
import statistics
import time
from collections.abc import Callable
from itertools import count

import headrace.client
from bench.frames import ResponseError
from headrace.client import GroupOffset
from headrace.config.security_rows import AUTHORIZERS
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from headrace.model.topics import TopicPartition
from headrace.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAMS,
    salted_password,
)
from headrace.security.scram_client import login_client
from headrace.testing import RunningBroker
from headrace.wire import apis
from headrace.wire.codec import Message, decode_response, encode_request

ATTEMPTS_PER_ADDRESS = 8
"""The broker delays the responses to further failures of an address."""
HIDDEN, ABSENT = "orders-hidden", "orders-absent"
PASSWORD = "secret"
Sample = Callable[[str], float]
"""Sends a request about this name, and returns the seconds until the response."""


class Wire:
    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.sock = socket.socket()
        self.sock.bind((source, 0))
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def timed(self, api_key: int, version: int, body: Message) -> tuple[float, Message]:
        frame = encode_request(api_key, version, 1, "bench", body)
        frame = len(frame).to_bytes(4, "big") + frame
        before = time.perf_counter()
        self.sock.sendall(frame)
        size = int.from_bytes(self.sock.recv(4, socket.MSG_WAITALL), "big")
        seconds = time.perf_counter() - before
        if not size:
            raise ResponseError("the broker closed the connection")
        response = self.sock.recv(size, socket.MSG_WAITALL)
        return seconds, decode_response(api_key, version, response)[1]

    def ask(self, api_key: int, version: int, body: Message) -> Message:
        return self.timed(api_key, version, body)[1]

    def authenticate(self, token: bytes) -> tuple[float, Message]:
        return self.timed(apis.SASL_AUTHENTICATE, 2, {"auth_bytes": token})

    def log_in(self, user: str, password: str) -> None:
        self.ask(apis.SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256})
        client = login_client(SCRAM_SHA_256, user, password, "nonce")
        challenge = b""
        while (token := client.next(challenge)) is not None:
            reply = self.authenticate(token)[1]
            if reply["error_code"]:
                raise ResponseError(reply["error_message"])
            challenge = reply["auth_bytes"]


class Attacker:
    """Each login comes from a new connection, and after some logins from a new address."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = count()

    def _shaken(self, mechanism: str) -> Wire:
        at = next(self._number) // ATTEMPTS_PER_ADDRESS
        wire = Wire(self._port, f"127.{1 + at // 60000}.{at // 250 % 250}.{1 + at % 250}")
        wire.ask(apis.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        return wire

    def plain(self, user: str) -> float:
        wire = self._shaken(PLAIN)
        seconds, _ = wire.authenticate(f"\0{user}\0wrong".encode())
        wire.sock.close()
        return seconds

    def scram_first(self, mechanism: str, extension: str = "") -> Sample:
        def sample(user: str) -> float:
            wire = self._shaken(mechanism)
            seconds, _ = wire.authenticate(f"n,,n={user},r=abcdef{extension}".encode())
            wire.sock.close()
            return seconds

        return sample

    def scram_final(self, mechanism: str) -> Sample:
        def sample(user: str) -> float:
            wire = self._shaken(mechanism)
            client = login_client(mechanism, user, "wrong", "abcdef")
            first = client.next(b"")
            assert first is not None
            reply = wire.authenticate(first)[1]
            final = client.next(reply["auth_bytes"])
            assert final is not None
            seconds, _ = wire.authenticate(final)
            wire.sock.close()
            return seconds

        return sample


def about_topic(wire: Wire, api_key: int, version: int, body: Callable[[str], Message]) -> Sample:
    return lambda name: wire.timed(api_key, version, body(name))[0]


def requests(wire: Wire) -> dict[str, Sample]:
    """Requests of a user without permissions."""

    def with_partitions(name: str) -> Message:
        return {"topics": [{"name": name, "partitions": [{"partition_index": 0}]}]}

    def fetch(name: str) -> Message:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": name, "partitions": [part]}]
        return {"replica_id": -1, "max_wait_ms": 0, "session_epoch": -1, "topics": topics}

    def produce(name: str) -> Message:
        topics = [{"name": name, "partition_data": [{"index": 0, "records": b"x" * 100}]}]
        return {"acks": -1, "timeout_ms": 1000, "topic_data": topics}

    return {
        "Metadata": about_topic(wire, apis.METADATA, 1, lambda name: {"topics": [{"name": name}]}),
        "ListOffsets": about_topic(wire, apis.LIST_OFFSETS, 3, with_partitions),
        "Fetch": about_topic(wire, apis.FETCH, 11, fetch),
        "Produce": about_topic(wire, apis.PRODUCE, 8, produce),
        "FindCoordinator": about_topic(
            wire, apis.FIND_COORDINATOR, 2, lambda name: {"key": name, "key_type": 0}
        ),
        "DescribeGroups": about_topic(
            wire, apis.DESCRIBE_GROUPS, 1, lambda name: {"groups": [name]}
        ),
    }


def is_longer(known: list[float], unknown: list[float]) -> float:
    """How often a time of `known` is longer than one of `unknown`: the area under the ROC curve."""
    ranked = sorted([(value, 1) for value in known] + [(value, 0) for value in unknown])
    below = above = 0
    for _, is_known in ranked:
        if is_known:
            above += below
        else:
            below += 1
    return above / (len(known) * len(unknown))


def compare(title: str, sample: Sample, known: str, unknown: str, samples: int) -> None:
    names = known, unknown
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(20):
        for name in names:
            sample(name)
    for _ in range(samples):
        for name in random.sample(names, 2):
            found[name].append(sample(name))
    medians = [statistics.median(found[name]) * 1e6 for name in names]
    share = is_longer(found[known], found[unknown])
    print(f"| {title} | {medians[0]:,.0f} us | {medians[1]:,.0f} us | {share:.1%} |", flush=True)


def create_users(wire: Wire) -> None:
    for mechanism, user, iterations in (
        (SCRAM_SHA_256, "known", ITERATIONS_MIN),
        (SCRAM_SHA_512, "known-512", ITERATIONS_MIN),
        (SCRAM_SHA_256, "costly", ITERATIONS_MAX),
        (SCRAM_SHA_256, "reader", ITERATIONS_MIN),
    ):
        scram, salt = SCRAMS[mechanism], random.randbytes(SALT_BYTES)
        credential = {
            "name": user,
            "mechanism": scram.code,
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted_password(scram, PASSWORD, salt, iterations),
        }
        reply = wire.ask(
            apis.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [credential]}
        )
        assert not reply["results"][0]["error_code"], reply


def measure(port: int, open_port: int, samples: int) -> None:
    with headrace.client.connect(f"127.0.0.1:{open_port}") as client:
        create_users(Wire(open_port))
        client.create_topic(HIDDEN)
        client.produce(HIDDEN, "value")
        client.commit_group_offsets(HIDDEN, {TopicPartition(HIDDEN, 0): GroupOffset(1)})
    address = f"127.0.0.1:{port}"
    with headrace.client.connect(address, sasl_username="reader", sasl_password=PASSWORD) as client:
        token = client.create_token().token_id
    print("| request | exists | does not exist | exists is slower |")
    print("| --- | --- | --- | --- |")
    attacker = Attacker(port)
    plain, first, final = attacker.plain, attacker.scram_first, attacker.scram_final
    by_token = first(SCRAM_SHA_256, ",tokenauth=true")
    for title, sample, known, unknown in (
        ("PLAIN, 4,096 iterations", plain, "known", "absen"),
        ("PLAIN, 16,384 iterations", plain, "costly", "absent"),
        ("SCRAM-SHA-256, first message", first(SCRAM_SHA_256), "known", "absen"),
        ("SCRAM-SHA-512, first message", first(SCRAM_SHA_512), "known-512", "absen-512"),
        ("SCRAM-SHA-256, wrong proof", final(SCRAM_SHA_256), "known", "absen"),
        ("delegation token, first message", by_token, token, token[::-1]),
    ):
        compare(title, sample, known, unknown, samples)
    wire = Wire(port)
    wire.log_in("reader", PASSWORD)
    for title, sample in requests(wire).items():
        compare(title, sample, HIDDEN, ABSENT, samples)
    compare("Metadata, two absent topics", requests(wire)["Metadata"], "absent-1", ABSENT, samples)
    compare("SCRAM-SHA-256, two absent users", first(SCRAM_SHA_256), "absen", "other", samples)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.timing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--samples", type=int, default=3000, help="pairs per row (default: 3,000)")
    samples = parser.parse_args().samples
    port, open_port = free_port(), free_port()
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{open_port}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connection.failed.authentication.delay.ms": "0",
        "delegation.token.secret.key": "secret",
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:ANONYMOUS",
    }
    with RunningBroker.start(settings=settings) as broker:
        measure(port, open_port, samples)
        broker.stop()


if __name__ == "__main__":
    main()
