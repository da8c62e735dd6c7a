"""A network of brokers in one process: real frames, dispatched as a broker does, no sockets."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast

from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.env.clock import SystemClock
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.runtime.link import Link, LinkBroken, OnResponse, Refused
from headrace.wire.header import read_header


class MemoryNetwork:
    """Brokers by their internal port. `refused` and `silent` contain (from, to) pairs."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerContext] = {}
        self.links: list[MemoryLink] = []
        self.refused: set[tuple[int, int]] = set()
        self.silent: set[tuple[int, int]] = set()
        self.dials = 0

    def serve(self, port: int, controller: Controller) -> BrokerContext:
        unused = cast(Any, None)
        broker = BrokerContext(
            controller.node_id,
            controller.image,
            BrokerConfig.load({}),
            controller,
            unused,
            {},
            SystemClock(),
            unused,
            unused,
        )
        self.brokers[port] = broker
        return broker

    def stop(self, port: int) -> None:
        """The process ends: new connections are refused, and links are closed."""
        self.brokers.pop(port, None)
        for link in self.links.copy():
            if port in (link.source, link.port):
                link.is_lost = port == link.port
                link.close()

    def break_links(self, port: int) -> None:
        for link in self.links.copy():
            if link.port == port:
                link.is_lost = True
                link.close()

    def door_of(self, port: int) -> "Door":
        return Door(self, port)


class Door:
    """The network as one broker sees it."""

    def __init__(self, network: MemoryNetwork, port: int) -> None:
        self._network = network
        self._port = port

    async def connect(self, host: str, port: int, timeout_s: float) -> Link:
        network = self._network
        network.dials += 1
        await asyncio.sleep(0)
        if (self._port, port) in network.silent:
            raise LinkBroken("silence")
        if port not in network.brokers or (self._port, port) in network.refused:
            raise Refused("refused")
        link = MemoryLink(network, self._port, port)
        network.links.append(link)
        return link


class MemoryLink:
    def __init__(self, network: MemoryNetwork, source: int, port: int) -> None:
        self.is_open = True
        self.is_lost = False
        self.source = source
        self.port = port
        self._network = network
        self._asked: list[OnResponse] = []
        self._listeners: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, frame: bytes, answered: OnResponse) -> None:
        self._asked.append(answered)
        loop = asyncio.get_running_loop()
        if self.is_open and (self.source, self.port) not in self._network.silent:
            task = loop.create_task(self._deliver(frame, answered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not self.is_open:
            loop.call_soon(answered, None)

    async def _deliver(self, frame: bytes, answered: OnResponse) -> None:
        broker = self._network.brokers[self.port]
        header = read_header(frame)
        context = RequestContext(*header[:4], f"127.0.0.1:{self.source}", "INTERNAL", True)
        answer = handle_frame(broker, context, frame, header.body_at)
        reply = await answer if inspect.isawaitable(answer) else answer
        if self.is_open:
            self._asked.remove(answered)
            answered(reply)

    def is_ended(self) -> bool:
        return self.is_lost

    def on_close(self, tell: Callable[[], None]) -> None:
        self._listeners.append(tell)
        if not self.is_open:
            asyncio.get_running_loop().call_soon(tell)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._network.links.remove(self)
        for task in self._tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        for answered in self._asked:
            loop.call_soon(answered, None)
        for tell in self._listeners:
            loop.call_soon(tell)
