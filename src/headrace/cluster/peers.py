"""Links to other brokers: one per broker, on the inter-broker listener.

Owns the open links and connection attempts. Sends each request once; the caller decides whether to
retry it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from headrace.model.cluster import BrokerInfo, ClusterImage, Endpoint
from headrace.runtime.link import Link, LinkBroken, Network, Refused, call

CONNECT_TIMEOUT_S = 2.0
RECONNECT_S = 0.05
"""The pause between two connection attempts to the same broker."""
REFUSALS_OF_DEAD_PROCESS = 2
"""If its port refuses so many connection attempts, a process is dead."""
CALL_TIMEOUT_S = 10.0


class Unreachable(LinkBroken):
    """No link could be opened, so the request was not sent."""


class Peers:
    def __init__(
        self,
        network: Network | None,
        image: ClusterImage,
        listener: str,
        log_in: Callable[[Link, Endpoint], Awaitable[None]],
    ) -> None:
        self._network = network
        self._image = image
        self._listener = listener
        self._log_in = log_in
        self._links: dict[int, tuple[int, Link]] = {}
        """By broker: the broker epoch for which the link was opened, and the link."""
        self._connection_attempts: dict[int, asyncio.Lock] = {}

    @property
    def has_network(self) -> bool:
        """False for a single broker."""
        return self._network is not None

    async def call(
        self,
        node_id: int,
        api_key: int,
        version: int,
        message: Mapping[str, Any],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a request once. Unreachable: not sent. LinkBroken: it might have been processed."""
        try:
            link = await self.link(node_id)
        except LinkBroken as error:
            raise Unreachable(str(error)) from error
        return await call(link, api_key, version, message, timeout_s)

    async def link(self, node_id: int) -> Link:
        """The link to the present incarnation of a broker; opens one if necessary."""
        async with self._connection_attempts.setdefault(node_id, asyncio.Lock()):
            info = self._image.brokers.get(node_id)
            if info is None:
                raise LinkBroken(f"broker {node_id} is not registered")
            epoch, link = self._links.get(node_id, (-1, None))
            if link is not None and link.is_open and epoch == info.epoch:
                return link
            if link is not None:
                link.close()
            link = await self.connect(node_id)
            self._links[node_id] = (info.epoch, link)
            return link

    def is_ended(self, node_id: int) -> bool:
        """Whether the link to a broker exists, and the broker has closed or reset it."""
        _, link = self._links.get(node_id, (-1, None))
        return link is not None and link.is_ended()

    async def connect(self, node_id: int) -> Link:
        """A new link. Raises Refused if the port is closed, else LinkBroken."""
        endpoint = self.endpoint(node_id)
        if self._network is None or endpoint is None:
            raise LinkBroken(f"broker {node_id} has no inter-broker address")
        try:
            link = await self._network.connect(endpoint.host, endpoint.port, CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise LinkBroken(f"broker {node_id} does not respond") from None
        await self._log_in(link, endpoint)
        return link

    def endpoint(self, node_id: int) -> Endpoint | None:
        info = self._image.brokers.get(node_id)
        return None if info is None else _endpoint_on(self._listener, info.endpoints)

    async def looks_dead(self, former: BrokerInfo) -> bool:
        """Whether the process of a former incarnation of this broker is dead.

        Its port must refuse two connection attempts.
        """
        endpoint = _endpoint_on(self._listener, former.endpoints)
        if self._network is None or endpoint is None:
            return False
        for attempt in range(REFUSALS_OF_DEAD_PROCESS):
            if attempt:
                await asyncio.sleep(RECONNECT_S)
            try:
                link = await self._network.connect(endpoint.host, endpoint.port, CONNECT_TIMEOUT_S)
            except Refused:
                continue
            except (LinkBroken, TimeoutError):
                return False
            link.close()
            return False
        return True

    def close_former_links(self) -> None:
        """Close the links to former incarnations, so that no caller waits for their responses."""
        brokers = self._image.brokers
        for node_id, (epoch, link) in list(self._links.items()):
            if node_id not in brokers or brokers[node_id].epoch != epoch:
                del self._links[node_id]
                link.close()

    def close(self) -> None:
        for _, link in self._links.values():
            link.close()
        self._links.clear()


def _endpoint_on(listener: str, endpoints: Iterable[Endpoint]) -> Endpoint | None:
    return next((endpoint for endpoint in endpoints if endpoint.listener == listener), None)
