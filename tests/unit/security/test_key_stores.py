"""Key stores: PEM, PKCS12 and JKS, and the TLS settings that name them."""

import hashlib
import ssl
import struct
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace.env.key_memory import load_key
from headrace.security.certificates import Pair, create_ca, create_certificate
from headrace.security.key_stores import InvalidStore, read_store
from headrace.security.tls import TlsError, client_context, openssl_name, read_tls, server_context

PASSWORD = "changeit"


@pytest.fixture(scope="module")
def ca() -> Pair:
    return create_ca("ca", datetime.now(UTC))


@pytest.fixture(scope="module")
def pair(ca: Pair) -> Pair:
    return create_certificate(ca, "broker", datetime.now(UTC), ("localhost",))


def der(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem)


def key_der(pair: Pair) -> bytes:
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    return key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def element(tag: int, data: bytes) -> bytes:
    size = len(data).to_bytes(2, "big")
    return bytes([tag, 0x82]) + size + data


def jks(pair: Pair, ca: Pair, key_password: str = PASSWORD) -> bytes:
    """A store as keytool -storetype JKS writes it: one key with its chain, one trusted CA."""
    secret = key_password.encode("utf-16-be")
    salt, plain = bytes(range(20)), key_der(pair)
    stream, block = b"", salt
    while len(stream) < len(plain):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    hidden = bytes(a ^ b for a, b in zip(plain, stream, strict=False))
    octets = salt + hidden + hashlib.sha1(secret + plain).digest()
    algorithm = bytes.fromhex("300e060a2b060104012a021101010500")
    protected = element(0x30, algorithm + element(0x04, octets))

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def certificate(pem: str) -> bytes:
        return text("X.509") + struct.pack(">I", len(der(pem))) + der(pem)

    body = struct.pack(">III", 0xFEEDFEED, 2, 2)
    body += struct.pack(">I", 1) + text("own") + bytes(8)
    body += struct.pack(">I", len(protected)) + protected
    body += struct.pack(">I", 2) + certificate(pair.certificate) + certificate(ca.certificate)
    body += struct.pack(">I", 2) + text("ca") + bytes(8) + certificate(ca.certificate)
    salted = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()


def p12(pair: Pair, ca: Pair) -> bytes:
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    own, other = (x509.load_pem_x509_certificate(p.certificate.encode()) for p in (pair, ca))
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    return pkcs12.serialize_key_and_certificates(b"own", key, own, [other], encryption)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["pem", "jks", "p12"])
def test_every_kind_of_store_serves_tls(kind: str, pair: Pair, ca: Pair) -> None:
    stores = {
        "pem": (pair.key + pair.certificate + ca.certificate).encode(),
        "jks": jks(pair, ca),
        "p12": p12(pair, ca),
    }
    values = {
        "ssl.keystore.location": "store",
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.location": "store",
        "ssl.truststore.password": PASSWORD,
        "ssl.client.auth": "required",
    }
    settings = read_tls(values.get, lambda _: stores[kind])
    assert [der(each) for each in settings.own.chain] == [
        der(pair.certificate),
        der(ca.certificate),
    ]
    assert [der(each) for each in settings.trusted] == [der(ca.certificate)]
    assert shakes_hands(server_context(settings, load_key), client_context(settings, load_key))


def test_inline_pem_serves_tls(pair: Pair, ca: Pair) -> None:
    values = {
        "ssl.keystore.key": pair.key.replace("\n", " "),
        "ssl.keystore.certificate.chain": pair.certificate.replace("\n", " "),
        "ssl.truststore.certificates": ca.certificate,
    }
    settings = read_tls(values.get, _no_file)
    assert shakes_hands(server_context(settings, load_key), client_context(settings, load_key))


def test_encrypted_key_needs_its_password(pair: Pair) -> None:
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hush"),
    ).decode()
    values = {"ssl.keystore.location": "k", "ssl.key.password": "hush"}
    read = lambda _: (text + pair.certificate).encode()  # noqa: E731
    server_context(read_tls(values.get, read), load_key)
    values["ssl.key.password"] = "loud"
    with pytest.raises(TlsError, match="cannot be used"):
        server_context(read_tls(values.get, read), load_key)


def test_key_that_openssl_rejects_as_weak_is_reported(pair: Pair) -> None:
    key = rsa.generate_private_key(65537, 1024)
    own = x509.load_pem_x509_certificate(pair.certificate.encode())
    certificate = x509.CertificateBuilder(
        own.issuer,
        own.subject,
        key.public_key(),
        own.serial_number,
        own.not_valid_before_utc,
        own.not_valid_after_utc,
    ).sign(key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    settings = read_tls({"ssl.keystore.location": "k"}.get, lambda _: text)
    with pytest.raises(TlsError, match=r"key too small\. Create .* at least 2048 bits"):
        server_context(settings, load_key)


def test_wrong_password_is_reported(pair: Pair, ca: Pair) -> None:
    for store in (jks(pair, ca), p12(pair, ca)):
        with pytest.raises(InvalidStore, match="password is wrong"):
            read_store(store, "other")
    with pytest.raises(InvalidStore, match="password of the key is wrong"):
        read_store(jks(pair, ca, "of the key"), PASSWORD)
    assert read_store(jks(pair, ca, "of the key"), PASSWORD, "of the key").key


def test_damaged_stores_are_rejected(pair: Pair, ca: Pair) -> None:
    whole = jks(pair, ca)
    for end in range(0, len(whole), 7):
        with pytest.raises(InvalidStore):
            read_store(whole[:end], PASSWORD)
    for data in (b"", b"\x30\x00", b"nonsense", b"-----BEGIN X-----"):
        with pytest.raises(InvalidStore):
            read_store(data, PASSWORD)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "not supported"),
        ({"ssl.client.auth": "perhaps"}, "required, requested or none"),
        ({"ssl.engine.factory.class": "x.Y"}, "not supported"),
        ({"ssl.keystore.key": "k"}, "or neither"),
        ({"ssl.keystore.location": "missing"}, "cannot be read"),
        ({"ssl.principal.mapping.rules": "RULE:"}, "is not a rule"),
        ({"ssl.truststore.location": "a", "ssl.truststore.certificates": "b"}, "both set"),
    ],
)
def test_settings_that_cannot_be_honoured_are_rejected(
    values: dict[str, str], message: str
) -> None:
    with pytest.raises(TlsError, match=message):
        read_tls(values.get, _no_file)


def test_some_suites_of_tls_1_3_are_rejected(pair: Pair) -> None:
    values = {"ssl.keystore.location": "k", "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}
    settings = read_tls(values.get, lambda _: (pair.key + pair.certificate).encode())
    with pytest.raises(TlsError, match="only some suites"):
        server_context(settings, load_key)


def test_suites_of_tls_1_2_exclude_tls_1_3(pair: Pair) -> None:
    values = {
        "ssl.keystore.location": "k",
        "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    }
    settings = read_tls(values.get, lambda _: (pair.key + pair.certificate).encode())
    context = server_context(settings, load_key)
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA", "DHE-RSA-AES128-SHA"),
    ],
)
def test_names_of_suites_are_translated(suite: str, expected: str) -> None:
    assert openssl_name(suite) == expected


def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(there, back, server_side=True),
        client.wrap_bio(back, there, server_hostname="localhost"),
    ]
    for _ in range(5):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return all(end.version() for end in ends)


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", path)
