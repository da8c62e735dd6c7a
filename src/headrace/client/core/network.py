"""All connections of a client: decides which to open, when to retry, and which bytes to write.

Pure: the inputs are events of a link (`opened`, `failed`, `received`, `lost`) and the time. The
outputs are Open, Write and Close, which a driver carries out. A link is one connection attempt with
a unique number, so that late events of a former link are ignored.

1. A request finishes exactly once, with a response or an error.
2. After a failed attempt to connect to a broker, the next one follows after an increasing pause.
3. A request to any broker waits for the first connection that is ready. While none is ready,
   another one is opened every second: to the brokers of the cluster, then to the bootstrap
   addresses. The request fails after each of them has failed once.
4. A broker sends the responses of a connection in order, so a slow response delays all later ones.
   Requests with slow responses, such as Fetch, therefore use a *lane*: separate connections for one
   consumer, identified by a number. Lane 0 is shared by all other requests.
5. The time limit for connecting includes TLS, ApiVersions and the login, because the system accepts
   connections for a process that no longer runs.
6. If the broker limits the lifetime of a login, the connection is replaced before it expires, when
   no request is in flight.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from headrace.client.core.connection import Connection, Request
from headrace.client.core.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientError,
    Disconnected,
    ProtocolViolation,
    Unreachable,
    UnsupportedVersion,
)
from headrace.client.core.login import Login
from headrace.client.core.options import Address, ClientOptions
from headrace.client.core.sockets import NAME_NOT_RESOLVED
from headrace.client.core.values import Node
from headrace.model.backoff import backoff
from headrace.security.scram import NONCE_BYTES
from headrace.security.scram_client import login_client
from headrace.wire.apis import (
    APIS,
    CONTROLLER_APIS,
)

_LIFETIME_SHARE = 0.8
"""A connection is closed after this share of the lifetime of its login."""
_NEXT_BROKER_MS = 1_000
"""A request to any broker waits this long for a connection before another one is opened."""
_MIGHT_NEED_LOGIN = (
    " before its first response. If it requires a login or TLS, set sasl_username and "
    "sasl_password, or ssl; commands read them with --config"
)


def _api_description(api_key: int) -> str:
    name = APIS[api_key].name
    if api_key in CONTROLLER_APIS:
        return f"{name}, which needs the controller, and in a cluster ZooKeeper"
    return name


@dataclass(frozen=True, slots=True)
class Open:
    """Connect to an address; the driver then calls `opened` or `failed`."""

    link: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Write:
    link: int
    data: list[bytes]


@dataclass(frozen=True, slots=True)
class Close:
    """Close a link, or stop opening it; no more events follow."""

    link: int


Effect = Open | Write | Close


@dataclass(slots=True, eq=False)
class _Peer:
    """A broker, or a bootstrap address. A bootstrap address has a negative id."""

    peer_id: int
    address: Address
    link: int | None = None
    connection: Connection | None = None
    waiting: list[Request] = field(default_factory=list)
    connect_deadline_ms: float = 0
    failures: int = 0
    retry_at_ms: float = 0
    reason: str = ""
    close_at_ms: float = math.inf
    """When to close the connection, because its login will expire."""
    rejection: AuthenticationFailed | None = None
    """Why the last login failed."""

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.ready

    @property
    def load(self) -> int:
        in_flight = self.connection.in_flight if self.connection is not None else 0
        return in_flight + len(self.waiting)


class Network:
    def __init__(self, options: ClientOptions, random: Random, software_version: str) -> None:
        self._options = options
        self._random = random
        self._software_version = software_version
        self._bootstrap = [
            _Peer(-1 - index, address) for index, address in enumerate(options.bootstrap)
        ]
        self._nodes: dict[int, _Peer] = {}
        self._lanes: dict[tuple[int, int], _Peer] = {}
        self._next_lane = 1
        self._requests_to_any: list[Request] = []
        self._tried: set[_Peer] = set()
        """The peers that were opened since the oldest request to any broker was sent."""
        self._links: dict[int, _Peer] = {}
        self._next_link = 0
        self._effects: list[Effect] = []
        self._closed = False

    # Queries.

    def bootstrap_is_exhausted(self) -> bool:
        """Whether all bootstrap addresses have failed, and no connection is open."""
        return not self._links and all(peer.failures for peer in self._bootstrap)

    def unreachable(self) -> ClientError:
        """The exception for the program if no broker can be reached."""
        reasons: dict[str, None] = {}
        for peer in [*self._bootstrap, *self._nodes.values()]:
            if peer.rejection is not None:
                return peer.rejection
            if peer.reason:
                reasons[peer.reason] = None
        text = "; ".join(reasons) or "no response"
        unresolved = [
            peer.address.host for peer in self._bootstrap if NAME_NOT_RESOLVED in peer.reason
        ]
        hint = "; is the broker running?"
        if unresolved:
            hint = f"; check the host name {', '.join(dict.fromkeys(unresolved))}"
        elif _MIGHT_NEED_LOGIN in text:
            hint = ""  # The reason names the next step.
        elif "certificate" in text or "TLS" in text:
            hint = "; check security.protocol and the settings of TLS"
        elif "closed the connection" in text:
            hint = "; the listener might require TLS or a login: check security.protocol"
        return Unreachable(f"cannot reach any of {self._options.bootstrap_text}: {text}{hint}")

    def oldest_wait(self) -> str:
        """What the oldest request on a shared connection waits for; "" if no request waits."""
        for peer in self._shared_peers():
            sent = peer.connection.unfinished() if peer.connection is not None else []
            if sent:
                return f"no response from {peer.address} to {_api_description(sent[0].api_key)}"
            if peer.waiting or (self._requests_to_any and peer.link is not None):
                return f"no connection to {peer.address}" + (peer.reason and f": {peer.reason}")
        return ""

    def next_wakeup_ms(self) -> float | None:
        """When to call `poll` next, if no event occurs earlier."""
        times: list[float] = []
        for peer in self._peers():
            if peer.connection is not None:
                deadline = peer.connection.next_deadline_ms()
                if deadline is not None:
                    times.append(deadline)
                if not peer.is_ready:
                    times.append(peer.connect_deadline_ms)
                continue
            if peer.link is not None:
                times.append(peer.connect_deadline_ms)
            elif peer.waiting:
                times.append(peer.retry_at_ms)
            times += [request.deadline_ms for request in peer.waiting]
        if self._requests_to_any:
            times += [request.deadline_ms for request in self._requests_to_any]
            times.append(self._next_attempt_ms())
        return min(times, default=None)

    # Inputs of the client.

    def set_nodes(self, nodes: Iterable[Node], now_ms: float) -> None:
        """Set the brokers of the cluster, and disconnect from brokers that are not in `nodes`."""
        peers: dict[int, _Peer] = {}
        for node in nodes:
            address = Address(node.host, node.port)
            peer = self._nodes.pop(node.node_id, None)
            if peer is not None and peer.address != address:
                self._disconnect(peer, "its address changed", now_ms, failed=False)
                peer = None
            peers[node.node_id] = peer or self._peer_of_broker(node.node_id, address)
        dropped, self._nodes = list(self._nodes.values()), peers
        for (lane, node_id), peer in list(self._lanes.items()):
            if node_id not in peers or peers[node_id].address != peer.address:
                dropped.append(self._lanes.pop((lane, node_id)))
        for peer in dropped:
            self._disconnect(peer, "it left the cluster", now_ms, failed=False)

    def open_lane(self) -> int:
        """The number of a new lane."""
        self._next_lane += 1
        return self._next_lane

    def close_lane(self, lane: int, now_ms: float) -> None:
        """Close the connections of a lane; its requests in flight fail."""
        for key in [key for key in self._lanes if key[0] == lane]:
            self._disconnect(self._lanes.pop(key), "its consumer was closed", now_ms, failed=False)

    def send(self, peer_id: int, request: Request, now_ms: float, lane: int = 0) -> None:
        """Send a request, or keep it until the connection is open."""
        peer = self._peer(peer_id, lane)
        if self._closed:
            request.finish(None, ClientClosed("the client is closed"), now_ms)
        elif peer is None:
            request.finish(None, Disconnected(f"broker {peer_id} has no known address"), now_ms)
        elif peer.connection is None or peer.close_at_ms <= now_ms:
            peer.waiting.append(request)
        else:
            self._send_now(peer.connection, request, now_ms)

    def send_to_any(self, request: Request, now_ms: float) -> None:
        """Send a request to the broker with the fewest requests, or keep it until one is ready."""
        if self._closed:
            request.finish(None, ClientClosed("the client is closed"), now_ms)
            return
        self._requests_to_any.append(request)
        self._send_to_ready(now_ms)

    def close(self, now_ms: float) -> None:
        """Close all links; requests in flight fail."""
        self._closed = True
        self._fail_requests_to_any(ClientClosed("the client is closed"), now_ms)
        for peer in self._peers():
            self._disconnect(peer, "the client was closed", now_ms, failed=False)

    # Events.

    def opened(self, link: int, now_ms: float) -> None:
        peer = self._links.get(link)
        if peer is None or peer.connection is not None:
            return
        options = self._options
        peer.connection = Connection(
            options.client_id,
            self._software_version,
            options.response_bytes_max,
            self._new_login(),
        )
        waiting, peer.waiting = peer.waiting, []
        for request in waiting:
            self._send_now(peer.connection, request, now_ms)

    def _new_login(self) -> Login | None:
        options = self._options
        if not options.sasl_username:
            return None
        mechanism = options.sasl_mechanism
        nonce = f"{self._random.getrandbits(8 * NONCE_BYTES):x}"
        client = login_client(
            mechanism,
            options.sasl_username,
            options.sasl_password,
            nonce,
            is_token=options.sasl_token,
        )
        return Login(mechanism, client)

    def failed(self, link: int, reason: str, now_ms: float) -> None:
        """The attempt to open a link has failed."""
        peer = self._links.get(link)
        if peer is not None:
            self._disconnect(peer, reason, now_ms, failed=True, close=False)

    def lost(self, link: int, reason: str, now_ms: float) -> None:
        """An open link was closed by the broker or by an error."""
        peer = self._links.get(link)
        if peer is not None:
            connection = peer.connection
            failed = not peer.is_ready
            if connection is not None and connection.ready and not connection.has_response:
                # A listener that requires a login closes the connection after the first request.
                failed = connection.in_flight > 0
                if failed and not self._options.sasl_username:
                    reason += _MIGHT_NEED_LOGIN
            self._disconnect(peer, reason, now_ms, failed=failed, close=False)

    def bytes_to_read(self, link: int) -> int:
        """The number of bytes to read next; 0 for any number."""
        peer = self._links.get(link)
        return 0 if peer is None or peer.connection is None else peer.connection.bytes_to_read()

    def received(self, link: int, data: bytes, now_ms: float) -> None:
        peer = self._links.get(link)
        if peer is None or peer.connection is None:
            return
        try:
            responses, unsupported = peer.connection.received(data)
        except (ProtocolViolation, AuthenticationFailed) as error:
            self._disconnect(peer, str(error), now_ms, failed=True, cause=error)
            return
        if peer.is_ready:
            lifetime_ms = peer.connection.lifetime_ms
            if lifetime_ms and peer.close_at_ms == math.inf:
                peer.close_at_ms = now_ms + lifetime_ms * _LIFETIME_SHARE
            peer.failures = 0
            peer.reason = ""
        for request, unsupported_version in unsupported:
            request.finish(None, unsupported_version, now_ms)
        for response in responses:
            request = response.request
            try:
                result = request.decode(response.version, response.data, response.at, response.end)
            except ProtocolViolation as error:
                request.finish(None, error, now_ms)
            else:
                request.finish(result, None, now_ms)

    def poll(self, now_ms: float) -> list[Effect]:
        """Do all work that is due at this time, and return the effects for the driver."""
        for peer in self._peers():
            self._check_deadlines(peer, now_ms)
            self._close_before_expiry(peer, now_ms)
        self._serve_requests_to_any(now_ms)
        for peer in self._peers():
            if peer.link is None and peer.waiting and peer.retry_at_ms <= now_ms:
                self._open(peer, now_ms)
            if peer.connection is not None and peer.link is not None:
                data = peer.connection.take_output()
                if data:
                    self._effects.append(Write(peer.link, data))
                for request in peer.connection.take_sent_without_response():
                    request.finish(None, None, now_ms)
        effects, self._effects = self._effects, []
        return effects

    # Internals.

    def _peers(self) -> list[_Peer]:
        return [*self._nodes.values(), *self._lanes.values(), *self._bootstrap]

    def _shared_peers(self) -> list[_Peer]:
        return [*self._nodes.values(), *self._bootstrap]

    def _send_to_ready(self, now_ms: float) -> None:
        """Send all requests to any broker if a connection is ready."""
        peers = self._shared_peers()
        ready = [peer for peer in peers if peer.is_ready and peer.close_at_ms > now_ms]
        while ready and self._requests_to_any:
            connection = min(ready, key=lambda peer: peer.load).connection
            assert connection is not None
            self._send_now(connection, self._requests_to_any.pop(0), now_ms)

    def _serve_requests_to_any(self, now_ms: float) -> None:
        """Send the requests to any broker, open another connection for them, or fail them."""
        self._send_to_ready(now_ms)
        if not self._requests_to_any:
            self._tried.clear()
            return
        if self._next_attempt_ms() > now_ms:
            overdue = [each for each in self._requests_to_any if each.deadline_ms <= now_ms]
            for request in overdue:
                self._requests_to_any.remove(request)
                request.finish(None, Disconnected("no broker responded in time"), now_ms)
            return
        due = [peer for peer in self._untried() if peer.retry_at_ms <= now_ms]
        if not due:
            last = max(self._tried, key=lambda peer: peer.retry_at_ms)
            self._fail_requests_to_any(self._disconnected(last, last.reason), now_ms)
            return
        # Brokers of the cluster have ids from 0.
        due = [peer for peer in due if peer.peer_id >= 0] or due
        fewest = min(peer.failures for peer in due)
        peer = self._random.choice([peer for peer in due if peer.failures == fewest])
        self._tried.add(peer)
        self._open(peer, now_ms)

    def _untried(self) -> list[_Peer]:
        """The peers that can be opened for the requests to any broker."""
        peers = self._shared_peers()
        return [peer for peer in peers if peer.link is None and peer not in self._tried]

    def _next_attempt_ms(self) -> float:
        """When to open another connection for requests to any broker, or to fail them."""
        opened_ms = [
            peer.connect_deadline_ms - self._options.connect_timeout_ms
            for peer in self._shared_peers()
            if peer.link is not None
        ]
        retries_ms = [peer.retry_at_ms for peer in self._untried()]
        if not retries_ms:
            return math.inf if opened_ms else 0
        return max(min(retries_ms), max(opened_ms, default=-math.inf) + _NEXT_BROKER_MS)

    def _fail_requests_to_any(self, error: ClientError, now_ms: float) -> None:
        requests, self._requests_to_any = self._requests_to_any, []
        for request in requests:
            request.finish(None, error, now_ms)

    def _peer(self, peer_id: int, lane: int) -> _Peer | None:
        if peer_id >= 0:
            peer = self._nodes.get(peer_id)
            if lane == 0 or peer is None:
                return peer
            return self._lanes.setdefault((lane, peer_id), _Peer(peer_id, peer.address))
        index = -1 - peer_id
        return self._bootstrap[index] if index < len(self._bootstrap) else None

    def _peer_of_broker(self, node_id: int, address: Address) -> _Peer:
        """The peer of a broker; reuses a bootstrap connection to the same address."""
        for index, peer in enumerate(self._bootstrap):
            if peer.address == address and peer.connection is not None:
                self._bootstrap[index] = _Peer(peer.peer_id, address)
                peer.peer_id = node_id
                return peer
        return _Peer(node_id, address)

    def _open(self, peer: _Peer, now_ms: float) -> None:
        link = self._next_link
        self._next_link += 1
        peer.link = link
        peer.connect_deadline_ms = now_ms + self._options.connect_timeout_ms
        self._links[link] = peer
        self._effects.append(Open(link, peer.address.host, peer.address.port))

    def _send_now(self, connection: Connection, request: Request, now_ms: float) -> None:
        try:
            connection.send(request)
        except UnsupportedVersion as error:
            request.finish(None, error, now_ms)

    def _check_deadlines(self, peer: _Peer, now_ms: float) -> None:
        connection = peer.connection
        if connection is not None:
            deadline = connection.next_deadline_ms()
            if deadline is not None and deadline <= now_ms:
                # Responses arrive in order, so a late response delays all later ones.
                first = min(connection.unfinished(), key=lambda each: each.deadline_ms)
                what = f"no response in time to {_api_description(first.api_key)}"
                self._disconnect(peer, what, now_ms, failed=True)
            elif not connection.ready and peer.connect_deadline_ms <= now_ms:
                what = f"{peer.address} accepted the connection, but did not respond in time"
                self._disconnect(peer, what, now_ms, failed=True)
            return
        if peer.link is not None and peer.connect_deadline_ms <= now_ms:
            self._disconnect(peer, f"connecting to {peer.address} timed out", now_ms, failed=True)
            return
        overdue = [request for request in peer.waiting if request.deadline_ms <= now_ms]
        if overdue:
            peer.waiting = [request for request in peer.waiting if request.deadline_ms > now_ms]
            reason = peer.reason or f"connecting to {peer.address} timed out"
            for request in overdue:
                request.finish(None, Disconnected(reason), now_ms)

    def _close_before_expiry(self, peer: _Peer, now_ms: float) -> None:
        """Close a connection before its login expires, when no request is in flight."""
        connection = peer.connection
        if connection is None or peer.close_at_ms > now_ms or connection.in_flight:
            return
        waiting, peer.waiting = peer.waiting, []
        self._disconnect(peer, "its login will expire", now_ms, failed=False)
        peer.waiting = waiting

    def _disconnect(
        self,
        peer: _Peer,
        reason: str,
        now_ms: float,
        *,
        failed: bool,
        close: bool = True,
        cause: ClientError | None = None,
    ) -> None:
        """Close a peer's link, if any, and fail all its requests."""
        unfinished = peer.waiting
        if peer.connection is not None:
            unfinished = peer.connection.unfinished() + unfinished
        if peer.link is not None:
            del self._links[peer.link]
            if close:
                self._effects.append(Close(peer.link))
        peer.link, peer.connection, peer.waiting = None, None, []
        peer.close_at_ms = math.inf
        peer.reason = reason
        peer.rejection = cause if isinstance(cause, AuthenticationFailed) else None
        if failed:
            peer.failures += 1
            options = self._options
            pause_ms = backoff(
                options.retry_backoff_ms, options.retry_backoff_ms_max, peer.failures
            )
            peer.retry_at_ms = now_ms + pause_ms * (0.8 + 0.4 * self._random.random())
        for request in unfinished:
            request.finish(None, cause or self._disconnected(peer, reason), now_ms)
        if cause is not None:
            # The other brokers would reject the login or the protocol also.
            self._fail_requests_to_any(cause, now_ms)

    def _disconnected(self, peer: _Peer, reason: str) -> ClientError:
        if self._closed:
            return ClientClosed("the client is closed")
        return Disconnected(f"lost the connection to {peer.address}: {reason}")
