"""Parses and checks ``listeners`` and ``advertised.listeners``.

It resolves no name and opens no socket. An empty host means all interfaces, and port 0 means a free
port, until the caller replaces them.

1. Listener names are unique. Ports are unique as well, except for one IPv4 and one IPv6 address
   (KIP-797).
2. A TLS setting that is not supported is rejected.
"""

from collections.abc import Callable, Iterable, Mapping

from headrace.config.broker_rows import SECURITY_PROTOCOLS
from headrace.config.setting import ConfigError, shown
from headrace.model.cluster import Endpoint
from headrace.model.sasl import LISTENER_MECHANISMS

PLAINTEXT = "PLAINTEXT"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SSL = "SSL"
SASL_SSL = "SASL_SSL"
SASL_PROTOCOLS = frozenset({SASL_PLAINTEXT, SASL_SSL})
TLS_PROTOCOLS = frozenset({SSL, SASL_SSL})
ANY_HOSTS = frozenset({"", "0.0.0.0", "::"})


def parse_protocol_map(text: str) -> dict[str, str]:
    """The security protocol of each listener name."""
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.partition(":")
        protocol = protocol.strip().upper()
        if not name or not colon or protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map has {shown(entry)}: it must be a list of "
                f"NAME:PROTOCOL, where PROTOCOL is one of {', '.join(SECURITY_PROTOCOLS)}."
            )
        protocols[name.strip().upper()] = protocol
    return protocols


def parse_listeners(
    setting: str, entries: Iterable[str], protocols: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    """The endpoints of ``listeners`` or ``advertised.listeners``."""
    endpoints = tuple(_parse_listener(setting, entry, protocols) for entry in entries)
    names = [endpoint.listener for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{setting} has {name} twice: a listener's name must be unique.")
    return endpoints


def _parse_listener(setting: str, entry: str, protocols: Mapping[str, str]) -> Endpoint:
    name, separator, address = entry.partition("://")
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not name
        or not separator
        or not colon
        or (":" in host and not is_bracketed)
        or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535)
    ):
        raise ConfigError(
            f"{setting} contains {shown(entry)}: an entry must be NAME://host:port, such as "
            "PLAINTEXT://127.0.0.1:9092 or PLAINTEXT://[::1]:9092, with a port up to 65535."
        )
    name = name.upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{setting} contains {shown(name)}, which is not a security protocol. Set its protocol "
            "in listener.security.protocol.map."
        )
    return Endpoint(name, host[1:-1] if is_bracketed else host, int(port), protocol)


def check_listeners(listeners: tuple[Endpoint, ...]) -> None:
    if not listeners:
        raise ConfigError("listeners is empty: a broker needs an address to listen on.")
    for index, one in enumerate(listeners):
        for other in listeners[index + 1 :]:
            if one.port and one.port == other.port and not _can_share_port(one.host, other.host):
                raise ConfigError(
                    f"listeners contains {one.listener} and {other.listener} on port {one.port}: "
                    "each needs its own port."
                )


def _can_share_port(one: str, other: str) -> bool:
    """Whether two hosts can have the same port: different addresses, or 0.0.0.0 and [::]."""
    if one in ANY_HOSTS or other in ANY_HOSTS:
        return {one, other} == {"0.0.0.0", "::"}
    return one != other


def advertise(
    listeners: tuple[Endpoint, ...],
    advertised: tuple[Endpoint, ...],
    ports: Mapping[str, int],
    host: str,
) -> tuple[Endpoint, ...]:
    """The addresses for clients: the advertised address of a listener, or its own.

    ``ports`` has the bound port of each listener. ``host`` is this machine's name for clients,
    which replaces "all interfaces".
    """
    advertised_by_name = {endpoint.listener: endpoint for endpoint in advertised}
    endpoints = []
    for listener in listeners:
        chosen = advertised_by_name.get(listener.listener, listener)
        endpoints.append(
            Endpoint(
                listener.listener,
                host if chosen.host in ANY_HOSTS else chosen.host,
                chosen.port or ports.get(listener.listener, listener.port),
                listener.protocol,
            )
        )
    return tuple(endpoints)


def check_advertised(listeners: tuple[Endpoint, ...], advertised: tuple[Endpoint, ...]) -> None:
    names = [endpoint.listener for endpoint in listeners]
    for endpoint in advertised:
        if endpoint.listener not in names:
            raise ConfigError(
                f"advertised.listeners has {endpoint.listener}, which is not in listeners "
                f"({', '.join(names)})."
            )
        if endpoint.host in ANY_HOSTS - {""}:
            raise ConfigError(
                f"advertised.listeners has the host {endpoint.host}, which clients cannot "
                "connect to: it must be an address or a name of this machine."
            )


def check_mechanisms(setting: str, mechanisms: tuple[str, ...]) -> None:
    """Check the mechanisms of a SASL listener. `setting` is the name of the setting."""
    for mechanism in mechanisms:
        if mechanism not in LISTENER_MECHANISMS:
            raise ConfigError(
                f"{setting} contains {shown(mechanism)}, which is not supported. Use "
                f"{', '.join(LISTENER_MECHANISMS)}."
            )
    if not mechanisms:
        raise ConfigError(f"{setting} is empty: a SASL listener needs a mechanism.")


def check_internal(internal: Endpoint, listeners: tuple[Endpoint, ...]) -> None:
    """Check that the listener for brokers requires a login if another listener does."""
    if internal.protocol not in SASL_PROTOCOLS and any(e.protocol != PLAINTEXT for e in listeners):
        raise ConfigError(
            f"inter.broker.listener.name is {internal.listener}, which uses {internal.protocol}, "
            "but brokers log in to each other with SASL if any listener uses SASL or SSL. Map "
            f"{internal.listener} to {SASL_SSL} or {SASL_PLAINTEXT} in "
            "listener.security.protocol.map, or remove inter.broker.listener.name."
        )


def internal_protocol(listeners: tuple[Endpoint, ...]) -> str:
    """The protocol of the listener for brokers, if no setting names this listener."""
    protocols = {endpoint.protocol for endpoint in listeners}
    if protocols & TLS_PROTOCOLS:
        return SASL_SSL
    return SASL_PLAINTEXT if SASL_PLAINTEXT in protocols else PLAINTEXT


def check_tls(is_set: Callable[[str], bool], listeners: tuple[Endpoint, ...]) -> None:
    """Reject TLS settings that would have no effect."""
    by_prefix = {
        f"listener.name.{endpoint.listener.lower()}.": endpoint.protocol for endpoint in listeners
    }
    setting = "ssl.client.auth"
    for prefix, protocol in by_prefix.items():
        if protocol not in TLS_PROTOCOLS and is_set(prefix + setting):
            raise ConfigError(
                f"{prefix}{setting} is set, but this listener uses {protocol}, which has no "
                "certificates. Use SSL or SASL_SSL, or remove the setting."
            )
    if is_set(setting) and SSL not in by_prefix.values():
        prefixed = "listener.name.NAME." + setting
        hint = f" On SASL_SSL listeners, use {prefixed}." if SASL_SSL in by_prefix.values() else ""
        raise ConfigError(
            f"{setting} is set, but no listener uses SSL, so no client needs a certificate. Use an "
            f"SSL listener, or remove the setting.{hint}"
        )
