"""Hosts of ACLs: `*`, an IP address, or a CIDR range such as 10.0.0.0/8. Pure.

1. An IPv4 address inside IPv6 (::ffff:10.0.0.1) equals its IPv4 address.
2. An IPv4 range contains only IPv4 addresses, and an IPv6 range only IPv6 addresses.
"""

from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from headrace.model.acls import WILDCARD

Address = IPv4Address | IPv6Address


class InvalidHost(ValueError):
    """The text is not a host. The message is a sentence with the reason."""


def check_host(host: str) -> None:
    """Raise InvalidHost if an ACL cannot have this host."""
    if host == WILDCARD:
        return
    try:
        _range(host) if "/" in host else ip_address(host)
    except ValueError as error:
        raise InvalidHost(
            f"Host {host[:100]!r} is not valid: {error}. Use *, an IP address or a CIDR range."
        ) from None


@lru_cache(maxsize=10_000)
def host_matches(acl_host: str, host: str) -> bool:
    """Whether the host of an ACL includes the host of a client."""
    if acl_host in (WILDCARD, host):
        return True
    address = _address(host)
    if address is None:
        return False
    if "/" not in acl_host:
        return _address(acl_host) == address
    try:
        return address in _range(acl_host)
    except ValueError:
        return False


def _range(text: str) -> IPv4Network | IPv6Network:
    found = ip_network(text)
    first = found.network_address
    if isinstance(first, IPv6Address) and first.ipv4_mapped and found.prefixlen >= 96:
        return IPv4Network((first.ipv4_mapped, found.prefixlen - 96))
    return found


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
