"""The keys that verify OAUTHBEARER tokens: from a file, or from a JWKS document at an HTTPS URL.

Only listeners with OAUTHBEARER load this module. Downloads run on a thread.

1. Without keys, every token is rejected. A failed download keeps the former keys.
2. A token with an unknown `kid` starts a download, at most one per RELOAD_SECONDS_MIN.
3. A download follows no redirects, and is limited in size and time. Only the settings of the broker
   contain the URL; clients cannot change it.
"""

import asyncio
import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import unquote, urlsplit

from headrace.config.broker import BrokerConfig
from headrace.config.setting import ConfigError
from headrace.env.extras import install_command
from headrace.runtime.worker import Worker
from headrace.security.bearer import (
    KEYS_BYTES_MAX,
    BearerFailed,
    Claims,
    InvalidKeys,
    Keys,
    Rules,
    UnknownKey,
    read_keys,
    verify,
)

RELOAD_SECONDS_MIN = 10.0
DOWNLOAD_SECONDS_MAX = 10.0
URL = "sasl.oauthbearer.jwks.endpoint.url"
_log = logging.getLogger(__name__)


class BearerKeys:
    def __init__(
        self,
        config: BrokerConfig,
        wall_ms: Callable[[], int],
        monotonic: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Raises ConfigError if the settings or the keys of a file cannot be used."""
        try:
            import jwt  # noqa: F401
            from cryptography.hazmat.primitives import serialization  # noqa: F401
        except ImportError:
            raise ConfigError(
                "OAUTHBEARER requires PyJWT and cryptography, which are not installed. "
                f"Run: {install_command('secure')}"
            ) from None
        self._rules = _rules_of(config)
        self._url = _checked_url(config)
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._keys: Keys = {}
        self._worker = Worker("keys", loop)
        self._loading: asyncio.Future[None] | None = None
        self._loaded_at = float("-inf")
        self._refresh_s = config.get_int("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        if self._url.startswith("file:"):
            try:
                self._keys = read_keys(_read_file(self._url))
            except (OSError, InvalidKeys) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(
                    f"{URL} is {self._url}, which cannot be used: {reason}."
                ) from None
            self._loaded_at = monotonic()
        self._refresh()

    async def verify(self, token: str) -> Claims:
        """Raises BearerFailed."""
        try:
            return self._verify(token)
        except UnknownKey:
            if self._monotonic() - self._loaded_at < RELOAD_SECONDS_MIN and self._loading is None:
                raise
        await self._load()
        return self._verify(token)

    def _verify(self, token: str) -> Claims:
        return verify(token, self._keys, self._rules, self._wall_ms() / 1000)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._worker.stop(finish=False)

    def _refresh(self) -> None:
        pause = self._refresh_s if self._keys else RELOAD_SECONDS_MIN
        self._timer = self._loop.call_later(max(pause, 1.0), self._refresh)
        if self._monotonic() - self._loaded_at >= min(pause, RELOAD_SECONDS_MIN):
            self._load()

    def _load(self) -> "asyncio.Future[None]":
        """Read the keys again; one read at a time."""
        if self._loading is None:
            self._loading = self._loop.create_future()
            self._loaded_at = self._monotonic()
            self._worker.submit(lambda: read_keys(_read(self._url)), self._loaded)
        return self._loading

    def _loaded(self, result: object, error: BaseException | None) -> None:
        loading, self._loading = self._loading, None
        if isinstance(result, dict):
            self._keys = result
            _log.info("OAUTHBEARER keys loaded: url=%s keys=%d", self._url, len(result))
        else:
            _log.warning("OAUTHBEARER keys not loaded: url=%s error=%s", self._url, error)
        if loading is not None and not loading.done():
            loading.set_result(None)


def _rules_of(config: BrokerConfig) -> Rules:
    issuer = config.get_optional_str("sasl.oauthbearer.expected.issuer")
    audience = config.get_list("sasl.oauthbearer.expected.audience")
    for name, value in (("issuer", issuer), ("audience", audience)):
        if not value:
            raise ConfigError(
                f"OAUTHBEARER requires sasl.oauthbearer.expected.{name}: without it, tokens for "
                "other services would be accepted."
            )
    return Rules(
        issuer or "",
        audience,
        config.get_str("sasl.oauthbearer.sub.claim.name"),
        config.get_int("sasl.oauthbearer.clock.skew.seconds"),
    )


def _checked_url(config: BrokerConfig) -> str:
    url = config.get_optional_str(URL)
    if url is None:
        raise ConfigError(f"OAUTHBEARER requires {URL}: an https:// URL, or file:///path.")
    parts = urlsplit(url)
    is_file = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    if not is_file and not (parts.scheme == "https" and parts.hostname):
        raise ConfigError(f"{URL} is {url}. It must be an https:// URL, or file:///path.")
    return url


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _read(url: str) -> bytes:
    return _read_file(url) if url.startswith("file:") else _download(url)


def _read_file(url: str) -> bytes:
    with open(unquote(urlsplit(url).path), "rb") as file:
        return file.read(KEYS_BYTES_MAX + 1)


def _download(url: str) -> bytes:
    context = ssl.create_default_context()
    handler = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(handler, _NoRedirects())
    try:
        with opener.open(url, timeout=DOWNLOAD_SECONDS_MAX) as response:
            data: bytes = response.read(KEYS_BYTES_MAX + 1)
            return data
    except (urllib.error.URLError, HTTPException) as error:
        raise InvalidKeys(f"the download failed: {error}") from None


__all__ = ["BearerFailed", "BearerKeys"]
