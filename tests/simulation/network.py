"""A simulated network that delays, blocks, resets and refuses connections.

Owns the connections between processes. It transfers frames unchanged, and does not decode them.

1. Frames of a connection arrive in order. A reset loses the last ones.
2. Frames of two connections can arrive in any order.
3. A cut delays all frames, in one direction or both, until it is healed. The sender gets no error.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.runtime.link import Link, LinkBroken, OnResponse, Refused
from tests.simulation.world import Process, World

SLOW_S = 0.3


class Server(Protocol):
    """A process that listens."""

    process: Process

    def accepted(self, wire: "Wire") -> None: ...


class Wire:
    """One end of a connection."""

    def __init__(self, network: "Simulated", process: Process, peer_name: str) -> None:
        self.network = network
        self.process = process
        self.peer_name = peer_name
        self.other: Wire | None = None
        self.is_open = True
        self.received: Callable[[bytes], None] = lambda _: None
        self.closed: Callable[[], None] = lambda: None
        self._free_at = 0.0
        self._held: list[tuple[str, bytes]] = []

    def send(self, data: bytes) -> None:
        self.network.frames += 1
        self.network.frame_bytes += len(data)
        self._pass("data", data)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._pass("close", b"")

    def _pass(self, kind: str, data: bytes) -> None:
        network = self.network
        other = self.other
        assert other is not None
        if self._held or network.is_cut(self.process.name, other.process.name):
            self._held.append((kind, data))
            network.holding[self] = None
            return
        delay = network.delay_between(self.process.name, other.process.name)
        when = max(network.world.now + delay, self._free_at)
        self._free_at = when + 1e-6
        if other.process.is_alive:
            other.process.at(when, other.arrive, kind, data)

    def release(self) -> None:
        held, self._held = self._held, []
        self.network.holding.pop(self, None)
        for kind, data in held:
            self._pass(kind, data)

    def arrive(self, kind: str, data: bytes) -> None:
        if not self.is_open:
            return
        if kind == "data":
            self.received(data)
        else:
            self.is_open = False
            self.closed()

    def reset(self) -> None:
        """Close the connection at both ends. Frames in flight are lost."""
        for end in (self, self.other):
            assert end is not None
            end._held.clear()
            end.network.holding.pop(end, None)
            if end.is_open:
                end.is_open = False
                if end.process.is_alive:
                    end.process.at(0, end.closed)


class Simulated:
    def __init__(self, world: World, delay_s_max: float) -> None:
        self.world = world
        self.delay_s_max = delay_s_max
        self.servers: dict[tuple[str, int], Server] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.refusals: set[tuple[str, str]] = set()
        """Pairs (from, to) of live processes between which connections are refused."""
        self.slow: set[str] = set()
        """Processes whose frames take longer."""
        self.wires: list[Wire] = []
        self.holding: dict[Wire, None] = {}
        self.frames = 0
        self.frame_bytes = 0
        """All that were sent."""

    def delay(self) -> float:
        generator = self.world.random
        if generator.random() < 0.9:
            return generator.uniform(0.0001, 0.002)
        return generator.uniform(0.001, self.delay_s_max)

    def delay_between(self, source: str, target: str) -> float:
        delay = self.delay()
        if self.slow and (source in self.slow or target in self.slow):
            delay += self.world.random.uniform(0, SLOW_S)
        return delay

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cuts

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def heal(self) -> None:
        self.cuts.clear()
        self.refusals.clear()
        for wire in list(self.holding):
            wire.release()

    def heal_one(self, source: str, target: str) -> None:
        """End one cut, in one direction."""
        self.cuts.discard((source, target))
        for wire in list(self.holding):
            if wire.process.name == source:
                wire.release()

    def reset_some(self, share: float) -> None:
        self.wires = [wire for wire in self.wires if wire.is_open]
        for wire in list(self.wires):
            if self.world.random.random() < share:
                wire.reset()

    def reset_between(self, one: str, other: str) -> None:
        """Reset all connections between two processes."""
        for wire in list(self.wires):
            if wire.is_open and {wire.process.name, wire.peer_name} == {one, other}:
                wire.reset()

    def died(self, process: Process) -> None:
        """The kernel of a dead process closes its sockets."""
        for key in [key for key, server in self.servers.items() if server.process is process]:
            del self.servers[key]
        for wire in list(self.wires):
            other = wire.other
            assert other is not None
            for near, far in ((wire, other), (other, wire)):
                if near.process is process and far.is_open and far.process.is_alive:
                    near.is_open = False
                    if self.is_cut(near.process.name, far.process.name):
                        continue  # The peer does not get the end of the connection either.
                    far.process.at(self.world.now + self.delay(), far.arrive, "close", b"")

    async def connect(self, process: Process, host: str, port: int, timeout_s: float) -> Wire:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.delay())
        server = self.servers.get((host, port))
        if server is None:
            raise Refused(f"{host}:{port} refuses connections")
        name = server.process.name
        if (process.name, name) in self.refusals:
            raise Refused(f"{host}:{port} refuses connections")
        deadline = loop.time() + timeout_s
        while self.is_cut(process.name, name) or self.is_cut(name, process.name):
            if loop.time() >= deadline:
                raise TimeoutError
            await asyncio.sleep(0.05)
        near, far = Wire(self, process, name), Wire(self, server.process, process.name)
        near.other, far.other = far, near
        self.wires.append(near)
        if self.servers.get((host, port)) is not server:
            raise LinkBroken("gone meanwhile")
        accepted_at = self.world.now + self.delay()
        server.process.at(accepted_at, server.accepted, far)
        near._free_at = accepted_at + 1e-6
        return near


class SimulatedLink:
    """The Link port over a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._asked: list[OnResponse] = []
        self._listeners: list[Callable[[], None]] = []
        self._correlation_id = 0
        self.is_lost = False
        wire.received = self._received
        wire.closed = self._lost

    @property
    def is_open(self) -> bool:
        return self._wire.is_open

    def send(self, frame: bytes, answered: OnResponse) -> None:
        if not self.is_open:
            self._loop.call_soon(answered, None)
            return
        self._correlation_id += 1
        self._asked.append(answered)
        self._wire.send(frame[:4] + self._correlation_id.to_bytes(4, "big") + frame[8:])

    def _received(self, frame: bytes) -> None:
        self._asked.pop(0)(frame)

    def is_ended(self) -> bool:
        return self.is_lost

    def on_close(self, tell: Callable[[], None]) -> None:
        if self.is_open:
            self._listeners.append(tell)
        else:
            self._loop.call_soon(tell)

    def close(self) -> None:
        if self.is_open:
            self._wire.close()
            self._ended()

    def _lost(self) -> None:
        self.is_lost = True
        self._ended()

    def reset(self) -> None:
        """End the connection; data in flight does not arrive."""
        self._wire.reset()
        self._ended()

    def _ended(self) -> None:
        asked, self._asked = self._asked, []
        listeners, self._listeners = self._listeners, []
        for answered in asked:
            self._loop.call_soon(answered, None)
        for tell in listeners:
            self._loop.call_soon(tell)


class ProcessNetwork:
    """The Network port, as one process has it."""

    def __init__(self, network: Simulated, process: Process) -> None:
        self._network = network
        self._process = process

    async def connect(self, host: str, port: int, timeout_s: float) -> Link:
        wire = await self._network.connect(self._process, host, port, timeout_s)
        return SimulatedLink(wire)
