"""The addresses on which a listener accepts connections."""

import errno
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.config.broker import BrokerConfig
from headrace.server.listener import (
    DESCRIPTORS_KEPT,
    Admission,
    CannotListen,
    above_clients,
    bind,
)

NAME = "mill.example"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 0))
        for address in addresses
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def bound(opened: ExitStack, host: str, port: int = 0) -> list[tuple[str, int]]:
    sockets = [opened.enter_context(sock) for sock in bind(host, port, 1)]
    return [sock.getsockname()[:2] for sock in sockets]


def test_a_name_is_served_on_every_address_it_has(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.3", "127.0.0.2")
    (first, port), (second, same_port) = bound(opened, NAME)
    assert (first, second) == ("127.0.0.2", "127.0.0.3")
    assert port == same_port


def test_addresses_of_other_machines_are_omitted(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.2")
    assert [host for host, _ in bound(opened, NAME)] == ["127.0.0.2"]
    resolve_to(monkeypatch, "192.0.2.1")
    with pytest.raises(OSError, match="annot assign") as error:
        bind(NAME, 0, 1)
    assert error.value.errno == errno.EADDRNOTAVAIL


def test_name_with_one_address_in_use_is_not_served_partially(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "127.0.0.3")
    ((_, port),) = bound(opened, NAME)
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.3")
    with pytest.raises(CannotListen, match="in use") as refused:
        bind(NAME, port, 1)
    assert (refused.value.host, refused.value.port) == (NAME, port)
    resolve_to(monkeypatch, "127.0.0.2")
    assert bound(opened, NAME, port) == [("127.0.0.2", port)]


def test_scope_id_of_an_address_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("fe80::1%lo", 0, 0, 1))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    asked: list[object] = []

    def refuse(family: int, address: object, backlog: int) -> None:
        asked.append(address)
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr("headrace.server.listener._bind_one", refuse)
    with pytest.raises(CannotListen):
        bind("fe80::1%lo", 9092, 1)
    assert asked == [("fe80::1%lo", 9092, 0, 1)]


def test_other_process_on_the_other_localhost_address_is_reported(
    opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        other = opened.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = other.getsockname()[1]
    with caplog.at_level(logging.WARNING):
        assert bound(opened, "127.0.0.1", port) == [("127.0.0.1", port)]
    assert (
        f"not listening on IPv6: host=[::1] port={port} error=Address already in use" in caplog.text
    )


def test_connection_of_a_broker_gets_a_high_descriptor_and_still_works() -> None:
    near, far = socket.socketpair()
    client = os.open(os.devnull, os.O_RDONLY)
    with near:
        moved = above_clients(far)
        with moved:
            assert far.fileno() == -1
            assert moved.fileno() > client
            near.sendall(b"x")
            assert moved.recv(1) == b"x"
    os.close(client)


def test_clients_that_take_all_connections_do_not_stop_brokers() -> None:
    limits = {"max.connections": "2", "max.connections.per.ip": "1"}
    admission = Admission(BrokerConfig.load(limits))
    addresses = ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert [admission.admit(each, is_internal=False) for each in addresses] == [
        True,
        False,
        True,
        False,
    ]
    assert admission.admit("10.0.0.1", is_internal=True)
    assert admission.total == 3


def test_brokers_get_descriptors_that_clients_do_not_get(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4 * DESCRIPTORS_KEPT
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    admission = Admission(BrokerConfig.load())
    while admission.admit("10.0.0.1", is_internal=False):
        pass
    assert admission.total == most - DESCRIPTORS_KEPT
    while admission.admit("10.0.0.1", is_internal=True):
        pass
    assert admission.total == most - DESCRIPTORS_KEPT // 2
