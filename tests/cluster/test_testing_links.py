"""The network that tests cut: silence, and everything after it was healed."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.ensemble.zookeeper import free_port
from headrace.testing.links import ZOOKEEPER, Links, owner_of


@pytest.fixture
def links() -> Iterator[Links]:
    links = Links()
    yield links
    links.close()


def test_cut_blocks_data_and_healing_delivers_it(links: Links) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        target = server.getsockname()[:2]
        first, second = free_port(), free_port()
        links.add("127.0.0.1", first, target, lambda _: (1, ZOOKEEPER))
        links.add("127.0.0.1", second, target, lambda _: (2, ZOOKEEPER))
        with (
            socket.create_connection(("127.0.0.1", first), 30) as one,
            server.accept()[0] as one_end,
            socket.create_connection(("127.0.0.1", second), 30) as two,
            server.accept()[0] as two_end,
        ):
            one_end.settimeout(30)
            two_end.settimeout(30)
            one.sendall(b"before")
            assert one_end.recv(100) == b"before"
            links.cut(ZOOKEEPER, 1)
            one.sendall(b"held")
            one_end.sendall(b"held, too")
            # Data on another path arrives. By this time, data without a cut would have arrived.
            two.sendall(b"other")
            assert two_end.recv(100) == b"other"
            for end in (one, one_end):
                end.setblocking(False)
                with pytest.raises(BlockingIOError):
                    end.recv(100)
                end.settimeout(30)
            links.heal()
            assert one_end.recv(100) == b"held"
            assert one.recv(100) == b"held, too"
            one.shutdown(socket.SHUT_RDWR)
            assert one_end.recv(100) == b""


def test_the_process_at_the_other_end_is_known_by_its_port() -> None:
    script = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        command = [sys.executable, "-c", script + "sys.stdin.read()", str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            end, (_, port) = server.accept()
            assert owner_of(port, {1: os.getpid(), 2: process.pid}) == 2
            with pytest.raises(LookupError):
                owner_of(port, {})
            end.close()
            process.kill()
