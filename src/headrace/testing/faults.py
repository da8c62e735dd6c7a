"""Injects faults into a broker of a test: a slow disk, a full disk, lost responses.

Owns the current faults, which survive a restart of the broker. `headrace.testing.faulty` applies
them in the broker's process.
"""

import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

_TIMEOUT_S = 40.0


class Faults:
    """Mixin for a broker; clients connect to `port`."""

    port: int

    def __init__(self) -> None:
        self._faults: dict[str, object] = {}
        self._fault_socket = f"headrace-{uuid.uuid4().hex}"

    @property
    def is_running(self) -> bool:
        raise NotImplementedError

    @contextmanager
    def slow_disk(self, seconds: float) -> Iterator[None]:
        """Delay each write and each sync of a log file by this time."""
        with self._fault("slow_disk", seconds):
            yield

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Make each write to a log file fail with ENOSPC, so that the broker rejects records."""
        with self._fault("full_disk", True):
            yield

    def lose_responses(self) -> None:
        """Drop the next response, and the connection, of each client that is connected now.

        The broker executes the request. New connections work.
        """
        self._send({**self._faults, "lose_responses": [self.port]})

    def faulty_command(self) -> list[str]:
        """The module that injects faults, with its arguments. The `headrace` command follows."""
        return ["headrace.testing.faulty", self._fault_socket, json.dumps(self._faults)]

    @contextmanager
    def _fault(self, name: str, value: object) -> Iterator[None]:
        self._faults[name] = value
        self._send(self._faults)
        try:
            yield
        finally:
            del self._faults[name]
            if self.is_running:
                self._send(self._faults)

    def _send(self, faults: dict[str, object]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(f"\0{self._fault_socket}")
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.write(json.dumps(faults) + "\n")
                stream.flush()
                response = stream.readline()
        if response != "ok\n":
            raise RuntimeError(f"The broker did not accept the faults {faults}.")
