"""The engine of a client under a virtual clock, with brokers whose responses a test defines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from headrace.client.core.engine import Engine
from headrace.client.core.network import Effect, Open, Write
from headrace.client.core.operation import Outcome
from headrace.client.core.options import ClientOptions, parse_addresses
from headrace.wire.apis import API_VERSIONS, APIS, METADATA, PRODUCE
from headrace.wire.codec import decode_request, encode_response
from headrace.wire.cursor import Cursor

T = TypeVar("T")
Answer = Callable[[int, dict[str, Any]], Mapping[str, Any] | None]
TOPIC_ID = UUID(int=7)


class Drop(Exception):
    """Raised instead of a response: the broker closes the connection."""


class Silence(Exception):
    """Raised instead of a response: the broker never responds to this and later requests."""


@dataclass
class Asked:
    """One request that a broker was sent."""

    node: int
    api_key: int
    version: int
    request: dict[str, Any]
    at_ms: float


@dataclass
class Link:
    node: int
    data: bytes = b""
    muted: bool = False


@dataclass
class World:
    """Brokers 1, 2, ... at b1:9092, b2:9092, ... Tests define the responses of each API."""

    brokers: int = 1
    bootstrap: str = "b1:9092"
    answers: dict[int, Answer] = field(default_factory=dict)
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    """Brokers that accept connections, but never respond."""
    unconnectable: set[int] = field(default_factory=set)
    """Brokers that never accept a connection, and never reject one."""
    leaders: dict[str, list[int]] = field(default_factory=lambda: {"t": [1, 1]})
    topic_ids: bool = False
    seed: int = 7
    now_ms: float = 1_000.0
    asked: list[Asked] = field(default_factory=list)
    links: dict[int, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = ClientOptions(parse_addresses(self.bootstrap))
        self.engine = Engine(options, random=Random(self.seed), now_ms=self.now_ms)
        self.answers.setdefault(METADATA, self.metadata)

    # What tests do.

    def run(self, outcome: Outcome[T], limit_ms: float = 200_000) -> T:
        self.until(lambda: outcome.done, limit_ms)
        return outcome.result()

    def until(self, done: Callable[[], bool], limit_ms: float = 200_000) -> None:
        """Let things happen, and time pass, until something is so."""
        end_ms = self.now_ms + limit_ms
        while not done():
            effects = self.engine.poll(self.now_ms)
            if effects:
                self._carry_out(effects)
                continue
            if done():
                return
            wakeup_ms = self.engine.next_wakeup_ms()
            assert wakeup_ms is not None, "nothing will ever happen"
            self.now_ms = max(self.now_ms, wakeup_ms)
            assert self.now_ms <= end_ms, "it takes too long"

    def settle(self) -> None:
        """Carry out everything that needs no time to pass."""
        while effects := self.engine.poll(self.now_ms):
            self._carry_out(effects)

    def pass_ms(self, duration_ms: float) -> None:
        self.now_ms += duration_ms
        self.settle()

    def requests(self, api_key: int) -> list[Asked]:
        return [asked for asked in self.asked if asked.api_key == api_key]

    def cut(self, node: int) -> None:
        """Break every connection to a broker."""
        for link, entry in list(self.links.items()):
            if entry.node == node:
                del self.links[link]
                self.engine.lost(link, "connection reset", self.now_ms)

    # Brokers.

    def metadata(self, node: int, request: dict[str, Any]) -> Mapping[str, Any]:
        named = request["topics"]
        names = list(self.leaders)
        if named is not None:
            # Asked for by id, it is the one topic that has one.
            names = [topic["name"] or names[0] for topic in named]
        return {
            "cluster_id": "c",
            "controller_id": 1,
            "brokers": [
                {"node_id": node, "host": f"b{node}", "port": 9092, "rack": None}
                for node in range(1, self.brokers + 1)
            ],
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> Mapping[str, Any]:
        if name not in self.leaders:
            return {"error_code": 3, "name": name, "partitions": []}
        return {
            "error_code": 0,
            "name": name,
            "topic_id": TOPIC_ID if self.topic_ids else None,
            "partitions": [
                {
                    "partition_index": index,
                    "leader_id": leader,
                    "leader_epoch": leader,
                    "replica_nodes": [leader],
                    "isr_nodes": [leader],
                }
                for index, leader in enumerate(self.leaders[name])
            ],
        }

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Open):
                node = int(effect.host.removeprefix("b"))
                if node in self.down:
                    self.engine.failed(effect.link, "connection refused", self.now_ms)
                elif node not in self.unconnectable:
                    self.links[effect.link] = Link(node, muted=node in self.paused)
                    self.engine.opened(effect.link, self.now_ms)
            elif isinstance(effect, Write):
                if effect.link in self.links:
                    self.links[effect.link].data += b"".join(effect.data)
                    self._serve(effect.link)
            else:
                self.links.pop(effect.link, None)

    def _serve(self, number: int) -> None:
        while (link := self.links.get(number)) is not None and len(link.data) >= 4:
            if link.muted:
                return
            size = int.from_bytes(link.data[:4], "big")
            frame, link.data = link.data[4 : 4 + size], link.data[4 + size :]
            reply = self._reply(number, link.node, frame)
            if reply is not None:
                framed = len(reply).to_bytes(4, "big") + reply
                self.engine.received(number, framed, self.now_ms)

    def _reply(self, number: int, node: int, frame: bytes) -> bytes | None:
        cursor = Cursor(frame, 0, len(frame))
        api_key, version = int(cursor.read_i16()), int(cursor.read_i16())
        correlation_id = int(cursor.read_i32())
        cursor.string(flexible=False)
        if APIS[api_key].is_flexible(version):
            cursor.skip_tags()
        if api_key == API_VERSIONS:
            body: Mapping[str, Any] | None = {"error_code": 0, "api_keys": self._api_keys()}
            return encode_response(api_key, version, correlation_id, body or {})
        request = decode_request(api_key, version, frame, int(cursor.at))
        self.asked.append(Asked(node, api_key, version, request, self.now_ms))
        try:
            body = self.answers[api_key](node, request)
        except Drop:
            del self.links[number]
            self.engine.lost(number, "connection reset", self.now_ms)
            return None
        except Silence:
            self.links[number].muted = True
            return None
        if body is None or (api_key == PRODUCE and request["acks"] == 0):
            return None
        return encode_response(api_key, version, correlation_id, body)

    def _api_keys(self) -> list[dict[str, int]]:
        keys = []
        for key, api in APIS.items():
            low, high = self.versions.get(key, (api.version_min, api.version_max))
            keys.append({"api_key": key, "min_version": low, "max_version": high})
        return keys
