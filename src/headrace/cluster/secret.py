"""The secret of the cluster, which brokers use to log in to each other.

It is created once, by the first broker with a SASL listener, and never changes.
"""

import ssl
from base64 import b64encode
from collections.abc import Callable

from headrace.coordination import layout
from headrace.coordination.port import NodeExists, NoNode, Store, StoreUnavailable, UnknownOutcome
from headrace.runtime.broker_login import BrokerLogin
from headrace.runtime.link import LinkBroken
from headrace.security.brokers import SECRET_BYTES, broker_credential

_ATTEMPTS_MAX = 10


class ClusterSecret:
    def __init__(
        self,
        store: Store,
        entropy: Callable[[int], bytes],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` returns the context for TLS with other brokers."""
        self.text = ""
        """The secret; empty until it is read."""
        self._store = store
        self._entropy = entropy
        self.log_in = BrokerLogin(self.get, entropy, tls).log_in

    async def create(self) -> None:
        """Read the secret, and create it first if it does not exist."""
        for _ in range(_ATTEMPTS_MAX):
            if await self._read():
                # Derives and caches the keys. This takes milliseconds, so do it before the start.
                broker_credential(self.text)
                return
            text = b64encode(self._entropy(SECRET_BYTES)).decode()
            try:
                await self._store.create(layout.CLUSTER_SECRET, layout.encode_cluster_secret(text))
            except (NodeExists, UnknownOutcome):
                await self._store.sync()
        raise StoreUnavailable(f"{layout.CLUSTER_SECRET} was not created")

    async def get(self) -> str:
        """The secret, for a login at another broker. Raises LinkBroken if it cannot be read."""
        try:
            if not self.text and not await self._read():
                raise LinkBroken(f"{layout.CLUSTER_SECRET} does not exist")
        except StoreUnavailable as error:
            raise LinkBroken(f"{layout.CLUSTER_SECRET} cannot be read: {error}") from error
        return self.text

    async def _read(self) -> bool:
        try:
            data, _ = await self._store.get(layout.CLUSTER_SECRET)
        except NoNode:
            return False
        self.text = layout.decode_cluster_secret(data)
        return True
