"""TLS settings with Kafka's names, and the SSLContext that they describe.

Used by brokers and clients. The caller passes functions that return settings and read files, so it
decides about prefixes of settings and about errors.

1. A setting that is not supported raises TlsError. No setting is ignored.
2. Renegotiation and compression are disabled. Only TLS 1.2 and 1.3 are supported.
3. The caller hands private keys to OpenSSL: see env/key_memory.py.
"""

import ssl
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.security.key_stores import InvalidStore, Store, read_pem, read_store
from headrace.security.principal_rules import InvalidRules, Rule, parse_rules

REQUIRED, REQUESTED, NONE = "required", "requested", "none"
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TLS_1_3_SUITES = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_UNSUPPORTED = ("ssl.engine.factory.class", "ssl.provider")

Get = Callable[[str], str | None]
"""Returns the value of a setting; None if it is not set."""
Read = Callable[[str], bytes]
"""Returns the content of a file; raises OSError."""
LoadKey = Callable[[ssl.SSLContext, str, str], None]
"""Loads a key with its certificates, and its password, into a context; raises ssl.SSLError."""


class TlsError(ValueError):
    """A TLS setting is not valid or not supported. The message has no full stop at its end."""


class TlsSettings(NamedTuple):
    own: Store
    """The private key and its certificates."""
    key_password: str | None
    trusted: tuple[str, ...]
    """Certificates of CAs in PEM. If it is empty, a client trusts those of the system."""
    client_auth: str
    versions: tuple[str, ...]
    suites: tuple[str, ...]
    checks_host: bool
    rules: tuple[Rule, ...]


def read_tls(get: Get, read: Read) -> TlsSettings:
    for name in _UNSUPPORTED:
        if get(name):
            raise TlsError(f"{name} is not supported. Remove it")
    key_password = get("ssl.key.password")
    own = _own_store(get, read, key_password)
    versions = _list(get("ssl.enabled.protocols")) or tuple(VERSIONS)
    for version in versions:
        if version not in VERSIONS:
            raise TlsError(
                f"ssl.enabled.protocols contains {version}, which is not supported. Use "
                f"{' and '.join(VERSIONS)}"
            )
    algorithm = get("ssl.endpoint.identification.algorithm")
    if algorithm and algorithm.lower() != "https":
        raise TlsError(
            f"ssl.endpoint.identification.algorithm is {algorithm!r}, which is not supported. Use "
            "https, or an empty value to accept any host name"
        )
    client_auth = (get("ssl.client.auth") or NONE).lower()
    if client_auth not in (REQUIRED, REQUESTED, NONE):
        raise TlsError(f"ssl.client.auth is {client_auth!r}. Use required, requested or none")
    try:
        rules = tuple(parse_rules(get("ssl.principal.mapping.rules") or "DEFAULT"))
    except InvalidRules as error:
        raise TlsError(f"ssl.principal.mapping.rules: {error}") from None
    return TlsSettings(
        own,
        key_password,
        _trusted(get, read),
        client_auth,
        versions,
        _list(get("ssl.cipher.suites")),
        algorithm is None or algorithm != "",
        rules,
    )


def server_context(settings: TlsSettings, load_key: LoadKey) -> ssl.SSLContext:
    if not settings.own.key:
        raise TlsError(
            "the private key is missing. Set ssl.keystore.location, or ssl.keystore.key and "
            "ssl.keystore.certificate.chain"
        )
    if settings.client_auth != NONE and not settings.trusted:
        raise TlsError(
            f"ssl.client.auth is {settings.client_auth}, but no CA is trusted. Set "
            "ssl.truststore.location or ssl.truststore.certificates"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = {
        REQUIRED: ssl.CERT_REQUIRED,
        REQUESTED: ssl.CERT_OPTIONAL,
        NONE: ssl.CERT_NONE,
    }[settings.client_auth]
    _configure(context, settings, load_key)
    return context


def client_context(settings: TlsSettings, load_key: LoadKey) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host
    if not settings.trusted:
        context.load_default_certs()
    _configure(context, settings, load_key)
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings, load_key: LoadKey) -> None:
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    versions = sorted(VERSIONS[name] for name in settings.versions)
    if settings.suites:
        versions = _choose_suites(context, settings.suites, versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if settings.trusted:
        try:
            context.load_verify_locations(cadata="".join(settings.trusted))
        except ssl.SSLError as error:
            raise TlsError(f"the trusted certificates cannot be read: {_reason(error)}") from None
    if settings.own.key:
        try:
            text = settings.own.key + "".join(settings.own.chain)
            load_key(context, text, settings.key_password or "")
        except ssl.SSLError as error:
            weak = (error.reason or "").endswith(("_TOO_WEAK", "_TOO_SMALL"))
            raise TlsError(
                f"the private key and its certificate cannot be used: {_reason(error)}. "
                + (
                    "Create a key and certificates that OpenSSL accepts: RSA keys of at least 2048 "
                    "bits, and signatures with SHA-256 instead of SHA-1"
                    if weak
                    else "Check that they belong together, and check ssl.key.password"
                )
            ) from None


def _choose_suites(
    context: ssl.SSLContext, suites: tuple[str, ...], versions: list[ssl.TLSVersion]
) -> list[ssl.TLSVersion]:
    """Set the cipher suites, and return the TLS versions that have at least one of them.

    Python cannot select among the three suites of TLS 1.3.
    """
    newer = TLS_1_3_SUITES.intersection(suites)
    older = [suite for suite in suites if suite not in TLS_1_3_SUITES]
    if newer and newer != TLS_1_3_SUITES and ssl.TLSVersion.TLSv1_3 in versions:
        raise TlsError(
            "ssl.cipher.suites contains only some suites of TLS 1.3, which cannot be selected. "
            f"List all of {', '.join(sorted(TLS_1_3_SUITES))}, or set ssl.enabled.protocols=TLSv1.2"
        )
    usable = [v for v in versions if (newer if v == ssl.TLSVersion.TLSv1_3 else older)]
    if not usable:
        raise TlsError("ssl.cipher.suites contains no suite for the versions that are enabled")
    if older:
        try:
            context.set_ciphers(":".join(map(openssl_name, older)))
        except ssl.SSLError:
            raise TlsError(
                f"ssl.cipher.suites contains no suite that OpenSSL supports: {', '.join(older)}"
            ) from None
    return usable


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    prefix = "" if exchange == "RSA" else exchange + "_"
    return (prefix + cipher).replace("_", "-")


def _own_store(get: Get, read: Read, key_password: str | None) -> Store:
    key, chain = get("ssl.keystore.key"), get("ssl.keystore.certificate.chain")
    location = get("ssl.keystore.location")
    if key or chain:
        if location:
            raise TlsError("ssl.keystore.location and ssl.keystore.key are both set. Remove one")
        if not key or not chain:
            raise TlsError(
                "set both ssl.keystore.key and ssl.keystore.certificate.chain, or neither"
            )
        return _opened("ssl.keystore.key", lambda: _inline(key, chain))
    if not location:
        return Store()
    data = _contents("ssl.keystore.location", location, read)
    password = get("ssl.keystore.password")
    store = _opened(location, lambda: read_store(data, password, key_password))
    if not store.key or not store.chain:
        raise TlsError(f"{location} contains no private key with its certificate")
    return store


def _inline(key: str, chain: str) -> Store:
    store = read_pem(_lines(key))
    certificates = read_pem(_lines(chain)).chain
    if not store.key or not certificates:
        raise InvalidStore("it is not a PEM key with a PEM certificate")
    return Store(store.key, certificates)


def _lines(text: str) -> str:
    """Add line breaks to PEM text whose lines were joined, as in Kafka's property files."""
    if "\n" in text.strip():
        return text
    return (
        text.replace("-----BEGIN ", "\n-----BEGIN ")
        .replace("-----END ", "\n-----END ")
        .replace("KEY-----", "KEY-----\n")
        .replace("CERTIFICATE-----", "CERTIFICATE-----\n")
    )


def _trusted(get: Get, read: Read) -> tuple[str, ...]:
    text, location = get("ssl.truststore.certificates"), get("ssl.truststore.location")
    if text and location:
        raise TlsError(
            "ssl.truststore.location and ssl.truststore.certificates are both set. Remove one"
        )
    if text:
        trusted = _opened("ssl.truststore.certificates", lambda: read_pem(_lines(text))).chain
    elif location:
        data = _contents("ssl.truststore.location", location, read)
        password = get("ssl.truststore.password")
        trusted = _opened(location, lambda: read_store(data, password)).trusted
    else:
        return ()
    if not trusted:
        raise TlsError(f"{location or 'ssl.truststore.certificates'} contains no certificate")
    return trusted


def _contents(setting: str, path: str, read: Read) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise TlsError(f"{setting} is {path}, which cannot be read: {error.strerror}") from None


def _opened(name: str, open_store: Callable[[], Store]) -> Store:
    try:
        return open_store()
    except InvalidStore as error:
        raise TlsError(f"{name}: {error}") from None


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def failure_text(error: Exception) -> str:
    """The reason of a failed handshake, for logs and error messages."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed during the TLS handshake"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {_reason(error)}"
    return str(error)


def files_of(get: Get) -> Iterable[str]:
    """The files that the settings name."""
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return [path for path in map(get, names) if path]
