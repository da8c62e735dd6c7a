"""Bad input 37 and 38: how many connections there may be, and for how long."""

import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.log.upkeep.checkpoints import LOG_CHECKPOINT
from headrace.testing import RunningBroker
from tests.broker.raw import (
    API_VERSIONS,
    FETCH,
    RawConnection,
    eventually,
    many,
    one_batch,
    values_of,
)

IPV6_ADDRESSES = Path("/proc/net/if_inet6")
MIB = 1 << 20
STORAGE_ERROR = 56
TCP_ESTABLISHED = 1

Start = Callable[..., RunningBroker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a broker with these settings, their dots written as underscores."""
    brokers: list[RunningBroker] = []

    def start_one(**settings: str) -> RunningBroker:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        brokers.append(RunningBroker.start(settings=named))
        return brokers[-1]

    yield start_one
    for broker in brokers:
        broker.close()


def is_served(connection: RawConnection) -> bool:
    try:
        return bool(connection.ask(API_VERSIONS, 0, {})["error_code"] == 0)
    except OSError:
        return False


def can_come_in(broker: RunningBroker) -> bool:
    with RawConnection(broker.port) as connection:
        return is_served(connection)


def is_gone(connection: RawConnection) -> bool:
    """Whether the broker has closed a connection, even if it has unread bytes."""
    state = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] != TCP_ESTABLISHED


def test_connections_beyond_the_limit_are_closed_and_those_within_are_served(
    start: Start,
) -> None:
    broker = start(max_connections="200")
    with many(broker.port, 260) as connections:
        served = [is_served(connection) for connection in connections]
        assert served == [True] * 200 + [False] * 60
        assert 1 <= broker.log().count("max.connections is reached") <= 5
        for connection in connections[:50]:
            connection.sock.close()
        eventually("there is room again", lambda: can_come_in(broker))
        assert all(is_served(connection) for connection in connections[50:200])


def test_one_address_has_its_own_limit_and_it_can_change(start: Start) -> None:
    broker = start(max_connections_per_ip="20")
    with many(broker.port, 25) as connections:
        assert [is_served(each) for each in connections] == [True] * 20 + [False] * 5
        with RawConnection(broker.port, source="127.0.0.2") as other:
            assert is_served(other)
            setting = {"name": "max.connections.per.ip", "config_operation": 0, "value": "22"}
            brokers = {"resource_type": 4, "resource_name": "", "configs": [setting]}
            reply = other.ask(44, 0, {"resources": [brokers], "validate_only": False})
            assert reply["responses"][0]["error_code"] == 0
        with many(broker.port, 4) as more:
            assert [is_served(each) for each in more] == [True, True, False, False]


@pytest.mark.skipif(not IPV6_ADDRESSES.exists(), reason="this machine has no IPv6")
def test_limit_of_an_address_counts_ipv6_and_ipv4_inside_it(start: Start) -> None:
    broker = start(max_connections_per_ip="2")
    with ExitStack() as stack:

        def connect(host: str) -> bool:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            connection = RawConnection(broker.port, host=host, family=family)
            return is_served(stack.enter_context(connection))

        hosts = ("::1", "::1", "127.0.0.1", "::ffff:127.0.0.1")
        assert [connect(host) for host in hosts] == [True] * 4
        assert [connect(host) for host in hosts] == [False] * 4


def test_idle_connections_are_closed(
    start: Start,
) -> None:
    broker = start(connections_max_idle_ms="3000")
    with RawConnection(broker.port) as connection:
        connection.create_topic("idle")
        for _ in range(20):
            connection.produce("idle", one_batch(bytes(900_000)))
    with (
        many(broker.port, 5) as connections,
        RawConnection(broker.port, receive_buffer_bytes=65536) as unread,
    ):
        silent, busy, polling, dripping, dripping_large = connections
        closed = [silent, dripping, dripping_large, unread]
        polling.send(polling.fetch_frame("idle", 20, max_wait_ms=5000))
        unread.send(unread.fetch_frame("idle", 0))
        dripping.send(struct.pack(">i", 1000))
        dripping_large.send(struct.pack(">i", 10 * MIB))
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and not all(map(is_gone, closed)):
            assert is_served(busy)
            for connection in (dripping, dripping_large):
                try:
                    connection.send(b"\0")
                except OSError:
                    continue
        assert [is_gone(each) for each in closed] == [True] * 4
        # A long poll is not idle: it is the broker that is silent.
        reply = polling.read_answer(FETCH, 12)
        assert reply["responses"][0]["partitions"][0]["error_code"] == 0
        assert f"peer={unread.name} reason=it does not read" in broker.log()


def test_negative_limit_means_unlimited(start: Start) -> None:
    broker = start(connections_max_idle_ms="-1", queued_max_request_bytes="-1")
    with RawConnection(broker.port) as connection:
        connection.create_topic("free")
        began = time.monotonic()
        eventually("a round of upkeep", lambda: time.monotonic() - began > 0.8)
        assert connection.produce("free", one_batch(bytes(900_000)))["error_code"] == 0


def test_partition_without_a_descriptor_returns_a_storage_error_until_a_retry_succeeds(
    start: Start,
) -> None:
    broker = start()
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    with RawConnection(broker.port) as connection:
        connection.create_topic("first")
        allowed = max(map(int, os.listdir(f"/proc/{broker.pid}/fd"))) + 1
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (allowed, hard))
        connection.create_topic("second", partitions=20)
        rejected = connection.produce("second", one_batch(b"x"), partition=19)
        assert rejected["error_code"] == STORAGE_ERROR
        assert "second-19 cannot be written: Too many open files" in rejected["error_message"]
        # The periodic work has no descriptors either.
        eventually("the retry fails", lambda: "Headrace retries." in broker.log())
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))

        def is_written() -> bool:
            sent = connection.produce("second", one_batch(b"x"), partition=19)
            return bool(sent["error_code"] == 0)

        eventually("the retry succeeds", is_written)
    assert "Traceback" not in broker.log()


@pytest.mark.parametrize("free", [4, 100], ids=["hardly any", "few"])
def test_broker_without_descriptors_rejects_connections_and_recovers(
    start: Start, free: int
) -> None:
    broker = start()
    with RawConnection(broker.port) as first:
        first.create_topic("few")
        first.produce("few", one_batch(b"before"))
        # Whatever has to be opened to make the new topic durable has been.
        checkpoint = broker.data_dir / "few-0" / LOG_CHECKPOINT
        eventually("the topic is on disk", checkpoint.exists)
        allowed = max(map(int, os.listdir(f"/proc/{broker.pid}/fd"))) + free
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (allowed, allowed))
        with many(broker.port, 200) as connections:
            served = [is_served(connection) for connection in connections]
            assert 0 < served.count(True) < 200
            assert first.produce("few", one_batch(b"during"))["error_code"] == 0
            assert 1 <= broker.log().count("file descriptors") <= 5
            if free > 50:
                # Connections do not take them all: the logs have some for themselves.
                first.create_topic("more")
                assert first.produce("more", one_batch(b"x"))["error_code"] == 0
        eventually("there is room again", lambda: can_come_in(broker))
        assert values_of(first.fetch("few", 0)["records"]) == [b"before", b"during"]
