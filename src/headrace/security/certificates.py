"""Creates and describes certificates, with the package `cryptography`.

Pure, except for the random numbers of keys. Keys are ECDSA P-256, or RSA with 2048 bits for clients
that need RSA.
"""

import ipaddress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

EC, RSA = "ec", "rsa"
CA_DAYS = 3650
LEAF_DAYS = 365
_CLOCK_SKEW = timedelta(hours=1)


class Pair(NamedTuple):
    """A private key and its certificate, in PEM."""

    key: str
    certificate: str


class CertificateInfo(NamedTuple):
    subject: str
    issuer: str
    names: tuple[str, ...]
    """The alternative names, such as DNS:localhost."""
    not_before: datetime
    not_after: datetime
    is_ca: bool
    serial: str
    key: str


def create_ca(name: str, now: datetime, *, days: int = CA_DAYS, kind: str = EC) -> Pair:
    key = _new_key(kind)
    subject = _subject(name, None)
    builder = _builder(subject, subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(is_ca=True), critical=True)
    return _signed(builder, key, key)


def create_certificate(
    ca: Pair,
    name: str,
    now: datetime,
    hosts: tuple[str, ...] = (),
    *,
    organisation: str | None = None,
    days: int = LEAF_DAYS,
    kind: str = EC,
) -> Pair:
    """Create a certificate for a broker, if `hosts` are given, or for a client."""
    ca_key, ca_certificate = _load_pair(ca)
    key = _new_key(kind)
    builder = _builder(_subject(name, organisation), ca_certificate.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(is_ca=False), critical=True)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        # A broker is a client of the other brokers.
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return _signed(builder, key, ca_key, ca_certificate)


def describe(certificate: str) -> CertificateInfo:
    from headrace.security.distinguished_name import subject_of

    found = x509.load_pem_x509_certificate(certificate.encode())
    names: list[str] = []
    is_ca = False
    for extension in found.extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            names += [f"DNS:{each}" for each in value.get_values_for_type(x509.DNSName)]
            names += [f"IP:{each}" for each in value.get_values_for_type(x509.IPAddress)]
        elif isinstance(value, x509.BasicConstraints):
            is_ca = value.ca
    key = found.public_key()
    described = type(key).__name__.removesuffix("PublicKey")
    if isinstance(key, ec.EllipticCurvePublicKey):
        described = f"ECDSA {key.curve.name}"
    elif isinstance(key, rsa.RSAPublicKey):
        described = f"RSA {key.key_size}"
    return CertificateInfo(
        subject_of(found.public_bytes(serialization.Encoding.DER)),
        found.issuer.rfc4514_string(),
        tuple(names),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        is_ca,
        f"{found.serial_number:x}",
        described,
    )


def is_issued_by(certificate: str, issuer: str) -> bool:
    """Whether a certificate is signed with the key of another certificate."""
    from cryptography.exceptions import InvalidSignature

    loaded = x509.load_pem_x509_certificate(certificate.encode())
    try:
        loaded.verify_directly_issued_by(x509.load_pem_x509_certificate(issuer.encode()))
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _new_key(kind: str) -> "PrivateKey":
    if kind == RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str, organisation: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organisation:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: "PrivateKey", now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: "PrivateKey",
    ca_key: "PrivateKey",
    ca: x509.Certificate | None = None,
) -> Pair:
    if ca is not None:
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    certificate = builder.sign(ca_key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Pair(text.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode())


def _load_pair(pair: Pair) -> "tuple[PrivateKey, x509.Certificate]":
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    assert isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey))
    return key, x509.load_pem_x509_certificate(pair.certificate.encode())
