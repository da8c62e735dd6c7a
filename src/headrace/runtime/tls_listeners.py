"""The TLS settings of listeners, and their reload while the broker runs.

Owns one SSLContext per listener. Reads the files of keys and certificates; at the start on the
loop, later on a thread.

1. A reload creates a new context and replaces the old one if that succeeds. So connections that
   exist are not affected, and no handshake fails because of a file that is half written.
2. Tickets belong to a context: a client resumes no session from before a reload.
3. A certificate whose subject changes, or which lacks a name of the former one, is rejected at a
   reload unless ssl.allow.dn.changes or ssl.allow.san.changes is set.
"""

import logging
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.config.broker import BrokerConfig
from headrace.env.key_memory import alternative_names, load_key
from headrace.runtime.worker import Worker
from headrace.security.distinguished_name import InvalidCertificate, subject_of
from headrace.security.tls import (
    TlsError,
    TlsSettings,
    client_context,
    files_of,
    read_tls,
    server_context,
)

CHECK_SECONDS = 10.0
_log = logging.getLogger(__name__)

Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of change of each file."""


class Loaded(NamedTuple):
    settings: TlsSettings
    server: ssl.SSLContext
    client: ssl.SSLContext
    stamp: Stamp
    values: Mapping[str, str | None]


class TlsListener:
    def __init__(self, name: str, config: BrokerConfig, *, is_internal: bool) -> None:
        """Raises TlsError if the settings cannot be honoured."""
        self.name = name
        self.is_internal = is_internal
        self._config = config
        self._loaded = self._load(config)

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.server

    def client_context(self) -> ssl.SSLContext:
        """For connections to other brokers."""
        return self._loaded.client

    @property
    def settings(self) -> TlsSettings:
        return self._loaded.settings

    def _load(self, config: BrokerConfig) -> Loaded:
        values = config.tls_values(self.name)
        get = values.get
        stamp = _stamp(files_of(get))
        try:
            settings = read_tls(get, _read)
            return Loaded(
                settings,
                server_context(settings, load_key),
                client_context(settings, load_key),
                stamp,
                values,
            )
        except TlsError as error:
            raise TlsError(f"listener {self.name}: {error}") from None

    def is_stale(self) -> bool:
        """Whether settings or files have changed. Runs on the thread."""
        values = self._config.tls_values(self.name)
        return values != self._loaded.values or _stamp(files_of(values.get)) != self._loaded.stamp

    def reload(self) -> None:
        """Runs on the thread."""
        self._loaded = self._load_again(self._config)

    def check(self, config: BrokerConfig) -> None:
        """Raise TlsError if a reload with this configuration would fail. Runs on the thread."""
        if config.tls_values(self.name) != self._loaded.values:
            self._load_again(config)

    def _load_again(self, config: BrokerConfig) -> Loaded:
        new = self._load(config)
        self._check_names(new)
        return new

    def _check_names(self, new: Loaded) -> None:
        before, after = _names(self._loaded), _names(new)
        if before is None or after is None:
            return
        config = self._config
        if before[0] != after[0] and not config.get_bool("ssl.allow.dn.changes"):
            raise TlsError(
                f"listener {self.name}: the subject of the new certificate is {after[0]}, not "
                f"{before[0]}. Restart the broker, or set ssl.allow.dn.changes"
            )
        missing = before[1] - after[1]
        if missing and not config.get_bool("ssl.allow.san.changes"):
            raise TlsError(
                f"listener {self.name}: the new certificate lacks {', '.join(sorted(missing))}. "
                "Restart the broker, or set ssl.allow.san.changes"
            )


class TlsListeners:
    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self._config = config
        self._monotonic = monotonic
        self._version = config.version
        self._due = monotonic() + CHECK_SECONDS
        self._is_checking = False
        self.by_name = {
            name: TlsListener(name, config, is_internal=name == config.internal_listener)
            for name in config.tls_listeners
        }

    def check_dynamic(self, broker: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """Raise TlsError if these dynamic settings cannot be used. Runs on a thread."""
        config = self._config.with_dynamic(broker, defaults)
        for listener in self.by_name.values():
            listener.check(config)

    def check(self, worker: Worker, now: float, *, is_forced: bool = False) -> None:
        """Reload what has changed, every 10 s, and soon after a dynamic change of settings."""
        is_due = now >= self._due or self._version != self._config.version or is_forced
        if self._is_checking or not is_due:
            return
        self._is_checking = True
        self._due = now + CHECK_SECONDS
        self._version = self._config.version
        worker.submit(lambda: self._reload(is_forced), self._checked)

    def _checked(self, _: object, error: BaseException | None) -> None:
        self._is_checking = False
        if error is not None:
            _log.error("reload of certificates failed with an internal error", exc_info=error)

    def _reload(self, is_forced: bool) -> None:
        for listener in self.by_name.values():
            try:
                if is_forced or listener.is_stale():
                    listener.reload()
                    _log.info("certificates reloaded: listener=%s", listener.name)
            except TlsError as error:
                _log.error("certificates not reloaded, keeping the former ones: error=%s", error)


def _names(loaded: Loaded) -> tuple[str, frozenset[str]] | None:
    """The subject and the alternative names of a listener's own certificate."""
    chain = loaded.settings.own.chain
    if not chain:
        return None
    der = ssl.PEM_cert_to_DER_cert(chain[0])
    try:
        subject = subject_of(der)
    except InvalidCertificate:
        return None
    return subject, alternative_names(chain[0])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _stamp(paths: Iterable[str]) -> Stamp:
    found = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found.append((path, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
