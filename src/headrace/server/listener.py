"""Listening sockets, and limits for connections: in total and per address."""

import errno
import fcntl
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.env.rate_limited_log import LineLimit
from headrace.runtime import link
from headrace.server.address_rates import AddressRates
from headrace.server.connection import Connection
from headrace.server.transport import Transport

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig
    from headrace.server.plane import Plane

ACCEPTS_PER_TURN_MAX = 64
DESCRIPTORS_KEPT = 700
"""For 512 open segments, files that are opened for a sync, and libraries."""
INTERNAL_DESCRIPTOR_MIN = 4096
"""For connections from other brokers: see `above_clients`."""
_log = logging.getLogger(__name__)

Begin = Callable[[Transport, str, str, float], None]
"""Starts a TLS handshake or a login, with the client's name and host and the accept time."""


class CannotListen(OSError):
    """The broker cannot listen on an address; `errno` is the reason."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.host = host
        self.port = port


class Admission:
    """Counts the connections of all listeners. The limits can change while the broker runs.

    Connections never use all file descriptors, because logs need some for their files.

    1. The sum of `per_address` is `total`. An address without connections has no entry.
    2. The limits do not apply to connections of brokers. These can also use half of the descriptors
       that clients cannot use, so clients that use all connections do not stop replication.
    """

    def __init__(self, config: "BrokerConfig") -> None:
        self._config = config
        self.total = 0
        self.per_address: dict[str, int] = {}
        self._rejected = LineLimit(1.0)

    def admit(self, address: str, *, is_internal: bool) -> bool:
        held = self.per_address.get(address, 0)
        kept = DESCRIPTORS_KEPT // 2 if is_internal else DESCRIPTORS_KEPT
        if self.total >= _descriptors_beside(kept):
            self.log_rejection(address, "the remaining file descriptors are reserved for logs")
            return False
        for count, limit in ((self.total, "max.connections"), (held, "max.connections.per.ip")):
            if not is_internal and count >= self._config.get_int(limit):
                self.log_rejection(address, f"{limit} is reached")
                return False
        self.total += 1
        self.per_address[address] = held + 1
        return True

    def limit(self) -> int:
        """The most connections of clients that are admitted."""
        return min(self._config.get_int("max.connections"), _descriptors_beside(DESCRIPTORS_KEPT))

    def leave(self, address: str) -> None:
        self.total -= 1
        left = self.per_address[address] - 1
        if left:
            self.per_address[address] = left
        else:
            del self.per_address[address]

    def log_rejection(self, address: str, why: str) -> None:
        """Log a rejected connection, with at most one line per second."""
        count = self._rejected.add(time.monotonic())
        if count:
            _log.warning("connections rejected: count=%d last=%s reason=%s", count, address, why)


class Listener:
    def __init__(
        self,
        plane: "Plane",
        name: str,
        sock: socket.socket,
        admission: Admission,
        send_buffer_bytes: int,
        receive_buffer_bytes: int,
        rates: AddressRates,
        *,
        is_internal: bool,
        begin: "Begin | None" = None,
    ) -> None:
        """For both buffers, -1 leaves the size to the operating system.

        `begin` is called for each transport if the listener has TLS, or if clients must log in.
        """
        self._begin = begin
        self.name = name
        self._is_internal = is_internal
        self.sock = sock
        self._buffers = {
            socket.SO_SNDBUF: send_buffer_bytes,
            socket.SO_RCVBUF: receive_buffer_bytes,
        }
        self._plane = plane
        self._admission = admission
        self._rates = rates
        self._reserve = _open_reserve()
        """A spare descriptor, which `_turn_away` closes if no other is left; or -1."""
        plane.listen(self, sock)

    def accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, address = self.sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    _log.error("connection not accepted: error=%s", error.strerror)
                    return
                if self._turn_away():
                    continue
                return
            host = str(address[0])
            if not self._admission.admit(host, is_internal=self._is_internal):
                sock.close()
                continue
            if self._rates.is_active and not self._is_internal:
                wait_s = self._rates.wait_s(host)
                if wait_s > 0:
                    self._admission.log_rejection(host, "connection_creation_rate is exceeded")
                    self._rates.park(sock, wait_s, partial(self._admission.leave, host))
                    continue
            if self._is_internal:
                sock = above_clients(sock)
                link.tune(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in self._buffers.items():
                if size >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
            name = f"{host}:{address[1]}"
            plane = self._plane
            transport = Transport(sock)
            if self._begin is not None:
                self._begin(transport, name, host, plane.now)
                continue
            plane.add(Connection(plane, transport, name, self.name, self._is_internal, plane.now))

    def _turn_away(self) -> bool:
        """Close the waiting connection if no descriptor is left: epoll would report it forever.

        Returns False if another thread has used the spare descriptor, so that this is not possible.
        """
        self._close_reserve()
        try:
            sock, address = self.sock.accept()
        except OSError as error:
            # Otherwise the client has disconnected.
            return error.errno not in (errno.EMFILE, errno.ENFILE)
        else:
            sock.close()
            self._admission.log_rejection(str(address[0]), "no file descriptors are left")
            return True
        finally:
            self._reserve = _open_reserve()

    def _close_reserve(self) -> None:
        # The number can belong to another file as soon as it is closed.
        reserve, self._reserve = self._reserve, -1
        if reserve >= 0:
            os.close(reserve)

    def close(self) -> None:
        self._close_reserve()
        self._plane.listeners.pop(self.sock.fileno(), None)
        self._plane.epoll.unregister(self.sock.fileno())
        self.sock.close()


def _descriptors_beside(kept: int) -> int:
    """The number of file descriptors for connections, if `kept` of them are kept for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - min(kept, soft // 2)


def _open_reserve() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def above_clients(sock: socket.socket) -> socket.socket:
    """Move a broker's connection to a descriptor above those of most clients.

    After kill -9, Linux closes descriptors from the highest to the lowest. Other brokers must
    notice the failure before clients request new leaders from them.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        number = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, min(INTERNAL_DESCRIPTOR_MIN, soft // 2))
    except OSError:
        return sock  # No descriptor is left: the connection works without this as well.
    moved = socket.socket(sock.family, sock.type, sock.proto, fileno=number)
    sock.close()
    return moved


def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Open sockets for all addresses of a host.

    The hosts in `also` below get an IPv6 address as well, if the machine has it: librdkafka can
    resolve `localhost` to ::1. With port 0, the first socket gets a free port, which the others
    then use.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address, *scope in _addresses(host):
            try:
                sockets.append(_bind_one(family, (address, port, *scope), backlog))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # Some addresses of a name cannot be used on this machine.
            else:
                port = sockets[0].getsockname()[1]
        if missing is not None and not sockets:
            raise missing
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotListen(host, port, error) from error
    also = {"": "::", "0.0.0.0": "::", "127.0.0.1": "::1", "localhost": "::1"}.get(host)
    if also is not None and socket.has_ipv6:
        try:
            sockets.append(_bind_one(socket.AF_INET6, (also, port), backlog))
        except OSError as error:
            # A client that connects to localhost can then reach another process.
            level = logging.WARNING if error.errno == errno.EADDRINUSE else logging.DEBUG
            _log.log(
                level,
                "not listening on IPv6: host=[%s] port=%d error=%s",
                also,
                port,
                error.strerror,
            )
    return sockets


def _addresses(host: str) -> Iterable[tuple[Any, ...]]:
    """The family and the IP address of each address of a host; for IPv6, also flow and scope."""
    host = {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise OSError(errno.EADDRNOTAVAIL, str(error)) from None
    return dict.fromkeys((family, address[0], *address[2:]) for family, *_, address in found)


def _bind_one(
    family: socket.AddressFamily, address: tuple[Any, ...], backlog: int
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
