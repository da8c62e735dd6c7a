"""TLS handshake and login of this broker on a new connection to another broker."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from headrace.model.cluster import Endpoint
from headrace.model.sasl import SCRAM_SHA_256
from headrace.runtime.link import Link, LinkBroken, call
from headrace.runtime.socket_link import SocketLink
from headrace.security.brokers import salted_once
from headrace.security.scram import NONCE_BYTES, SCRAMS
from headrace.security.scram_client import LoginFailed, ScramClient
from headrace.security.users import BROKER_USER
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE

_PLAINTEXT = "PLAINTEXT"
_TLS_PROTOCOLS = ("SSL", "SASL_SSL")
_TIMEOUT_S = 2.0
_HANDSHAKE_TIMEOUT_S = 10.0


class BrokerLogin:
    def __init__(
        self,
        secret: Callable[[], Awaitable[str]],
        entropy: Callable[[int], bytes],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`secret` returns the password that brokers share, `tls` the context for TLS."""
        self._tls = tls
        self._secret = secret
        self._entropy = entropy

    async def log_in(self, link: Link, endpoint: Endpoint) -> None:
        """Raises LinkBroken, with the link closed, if the other broker does not accept it."""
        if endpoint.protocol == _PLAINTEXT:
            return
        try:
            if endpoint.protocol in _TLS_PROTOCOLS:
                await self._start_tls(link, endpoint)
            await self._log_in(link, await self._secret())
        except LoginFailed as error:
            link.close()
            raise LinkBroken(f"the login at {endpoint.address} failed: {error}") from None
        except asyncio.CancelledError:
            link.close()
            raise

    async def _start_tls(self, link: Link, endpoint: Endpoint) -> None:
        if self._tls is None:
            link.close()
            raise LinkBroken(
                f"{endpoint.address} uses {endpoint.protocol}, but this broker has no TLS listener"
            )
        # Simulated networks have no TLS.
        assert isinstance(link, SocketLink)
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                await link.start_tls(self._tls(), endpoint.host)
        except OSError as error:
            link.close()
            raise LinkBroken(f"TLS with {endpoint.address} failed: {error}") from None

    async def _log_in(self, link: Link, secret: str) -> None:
        reply = await call(link, SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256}, _TIMEOUT_S)
        if reply["error_code"]:
            raise LoginFailed(f"SaslHandshake returned error {reply['error_code']}")
        nonce = self._entropy(NONCE_BYTES).hex()
        client = ScramClient(SCRAMS[SCRAM_SHA_256], BROKER_USER, secret, nonce, salted_once)
        challenge = b""
        while (token := client.next(challenge)) is not None:
            reply = await call(link, SASL_AUTHENTICATE, 2, {"auth_bytes": token}, _TIMEOUT_S)
            if reply["error_code"]:
                raise LoginFailed("the brokers do not have the same /cluster/secret")
            challenge = reply["auth_bytes"]
