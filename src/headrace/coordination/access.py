"""Credentials, node ACLs and TLS for connections to ZooKeeper.

Reads the settings of a broker, and the files that they name. Does not connect. Each error is a
StoreUnavailable with a message for the operator, and never contains a password.

1. The file with the credentials must be private: no other user of the machine may have access.
2. TLS verifies the certificate, and the host name unless the operator disables that check.
"""

import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.config.broker import BrokerConfig
from headrace.coordination.port import StoreUnavailable

DIGEST_FILE = "headrace.zookeeper.digest.file"
SET_ACL = "zookeeper.set.acl"
_UNSUPPORTED = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    digest: str = field(default="", repr=False)
    """USER:PASSWORD, or empty for no credentials."""
    sets_acls: bool = False
    """Whether new nodes get ACLs, so that they can be changed only with these credentials."""
    tls: ssl.SSLContext | None = None


ANONYMOUS = ZooKeeperAccess()


def access_of(config: BrokerConfig) -> ZooKeeperAccess:
    """The access that the settings of a broker describe. Raises StoreUnavailable."""
    path = config.get_optional_str(DIGEST_FILE)
    sets_acls = config.get_bool(SET_ACL)
    if sets_acls and path is None:
        raise StoreUnavailable(
            f"{SET_ACL} requires credentials for ZooKeeper. Set {DIGEST_FILE} to a file that "
            "contains USER:PASSWORD."
        )
    digest = "" if path is None else read_digest(path)
    return ZooKeeperAccess(digest, sets_acls, _tls_of(config))


def read_digest(path: str) -> str:
    """The credentials in a private file. Raises StoreUnavailable."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise StoreUnavailable(
            f"Cannot read {path}, which {DIGEST_FILE} names: {reason}."
        ) from None
    if mode & 0o077:
        raise StoreUnavailable(
            f"Other users can access {path}, which {DIGEST_FILE} names: its mode is {mode:04o}. "
            f"Run: chmod 600 {path}"
        )
    user, _, password = text.partition(":")
    if not user or not password or "\n" in text:
        raise StoreUnavailable(
            f"{path}, which {DIGEST_FILE} names, is not valid: it must contain one line, "
            "USER:PASSWORD."
        )
    return text


def create_digest(path: str, entropy: Callable[[int], bytes]) -> None:
    """Create a private file with new credentials, unless it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"headrace:{entropy(24).hex()}\n")


def _tls_of(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config.get_bool("zookeeper.ssl.client.enable"):
        return None
    for name in _UNSUPPORTED:
        if config.get_bool(name):
            raise StoreUnavailable(f"{name} is not supported. Remove it.")
    if config.get_list("zookeeper.ssl.cipher.suites"):
        raise StoreUnavailable("zookeeper.ssl.cipher.suites is not supported. Remove it.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = _protocols(config)
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)
    algorithm = "zookeeper.ssl.endpoint.identification.algorithm"
    context.check_hostname = config.get_optional_str(algorithm) is not None
    _load_trust(context, config)
    _load_key(context, config)
    return context


def _protocols(config: BrokerConfig) -> list[ssl.TLSVersion]:
    names = config.get_list("zookeeper.ssl.enabled.protocols")
    one = config.get_optional_str("zookeeper.ssl.protocol")
    return [_VERSIONS[name] for name in names or ([one] if one else _VERSIONS)]


def _load_trust(context: ssl.SSLContext, config: BrokerConfig) -> None:
    name = "zookeeper.ssl.truststore.location"
    path = config.get_optional_str(name)
    if path is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(path)
    except OSError as error:  # An SSLError is one.
        raise _unusable(name, path, error) from None


def _load_key(context: ssl.SSLContext, config: BrokerConfig) -> None:
    name = "zookeeper.ssl.keystore.location"
    path = config.get_optional_str(name)
    if path is None:
        return
    password = config.get_optional_str("zookeeper.ssl.keystore.password") or ""
    try:
        # Without a password, OpenSSL would request one from the terminal. So it can be empty.
        context.load_cert_chain(path, password=password)
    except OSError as error:
        raise _unusable(name, path, error) from None


def _unusable(name: str, path: str, error: OSError) -> StoreUnavailable:
    if isinstance(error, ssl.SSLError):
        return StoreUnavailable(
            f"{name} is {path}, which cannot be used ({error.reason or error}). It must be a PEM "
            "file; convert PKCS12 or JKS with openssl or keytool."
        )
    return StoreUnavailable(f"{name} is {path}, which cannot be read: {error.strerror}.")
