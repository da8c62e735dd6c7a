"""Reads keys and certificates from PEM, PKCS12 and JKS stores, and converts them to PEM.

Reads bytes, not files. Detects the type of a store by its first bytes, because keytool writes
PKCS12 into files that are called .jks. For PKCS12, the package `cryptography` is imported.
"""

import base64
import hashlib
import hmac
import re
from struct import Struct
from typing import NamedTuple

PEM = "PEM"
PKCS12 = "PKCS12"
JKS = "JKS"
TYPES = (PEM, PKCS12, JKS)
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE = 0x30
_DIGEST_BYTES = 20
_PRIVATE_KEY_ENTRY = 1
_INT = Struct(">I")
_SHORT = Struct(">H")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


class InvalidStore(ValueError):
    """The store cannot be read. The message is the reason, without secrets."""


class Store(NamedTuple):
    key: str = ""
    """A private key in PEM, possibly encrypted; empty if the store has none."""
    chain: tuple[str, ...] = ()
    """The certificates of the key, beginning with its own."""
    trusted: tuple[str, ...] = ()
    """All other certificates."""


def type_of(data: bytes) -> str:
    if data.startswith(_JKS_MAGIC):
        return JKS
    if data[:1] == bytes([_DER_SEQUENCE]):
        return PKCS12
    if b"-----BEGIN " in data:
        return PEM
    raise InvalidStore("it is neither PEM nor PKCS12 nor JKS")


def read_store(data: bytes, password: str | None, key_password: str | None = None) -> Store:
    """Read a store of any type. Raises InvalidStore.

    `key_password` is that of the key in a JKS store; the default is the password of the store.
    """
    kind = type_of(data)
    if kind == PEM:
        return read_pem(data.decode("utf-8", "replace"))
    if password is None and kind == PKCS12:
        raise InvalidStore("it needs a password")
    if kind == PKCS12:
        return _read_pkcs12(data, password or "")
    return _read_jks(data, password, key_password or password)


def read_pem(text: str) -> Store:
    """Read PEM blocks. With a key, the certificates are its chain; without one, all are trusted."""
    key = ""
    certificates = []
    for block in _BLOCK.finditer(text):
        if block.group(1).endswith("PRIVATE KEY"):
            key = block.group(0) + "\n"
        elif block.group(1) in ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"):
            certificates.append(block.group(0) + "\n")
    if not key and not certificates:
        raise InvalidStore("it contains no PEM key and no PEM certificate")
    if key:
        return Store(key, tuple(certificates), tuple(certificates[1:]))
    return Store("", tuple(certificates), tuple(certificates))


def pem(kind: str, der: bytes) -> str:
    text = base64.encodebytes(der).decode().replace("\n", "")
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""))


def _read_pkcs12(data: bytes, password: str) -> Store:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise InvalidStore(
            "PKCS12 requires cryptography, which is not installed. Use PEM, or run: pip install "
            "cryptography"
        ) from None
    try:
        found = pkcs12.load_pkcs12(data, password.encode())
    except ValueError:
        raise InvalidStore("the password is wrong, or the PKCS12 file is damaged") from None
    encoding = serialization.Encoding.PEM
    others = tuple(
        each.certificate.public_bytes(encoding).decode() for each in found.additional_certs
    )
    if found.key is None or found.cert is None:
        own = () if found.cert is None else (found.cert.certificate,)
        return Store("", (), (*(c.public_bytes(encoding).decode() for c in own), *others))
    key = found.key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Store(
        key.decode(), (found.cert.certificate.public_bytes(encoding).decode(), *others), others
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise InvalidStore("the JKS file is truncated")
        self._at += size
        return self._data[self._at - size : self._at]

    def int(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def text(self) -> bytes:
        return self.take(_SHORT.unpack(self.take(2))[0])

    def certificate(self) -> str:
        self.text()
        return pem("CERTIFICATE", self.take(self.int()))


def _read_jks(data: bytes, password: str | None, key_password: str | None) -> Store:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        # JKS files end with this digest. It detects damage and wrong passwords.
        salted = password.encode("utf-16-be") + b"Mighty Aphrodite" + body
        expected = hashlib.sha1(salted, usedforsecurity=False).digest()
        if not hmac.compare_digest(expected, digest):
            raise InvalidStore("the password is wrong, or the JKS file is damaged")
    reader = _Reader(body)
    reader.take(8)
    key = ""
    chain: tuple[str, ...] = ()
    trusted = []
    for _ in range(reader.int()):
        tag = reader.int()
        reader.text()
        reader.take(8)
        if tag == _PRIVATE_KEY_ENTRY:
            protected = reader.take(reader.int())
            certificates = tuple(reader.certificate() for _ in range(reader.int()))
            if not key and key_password is not None:
                key = pem("PRIVATE KEY", _jks_key(protected, key_password))
                chain = certificates
        else:
            trusted.append(reader.certificate())
    return Store(key, chain, tuple(trusted))


def _jks_key(protected: bytes, password: str) -> bytes:
    """Decrypt a key with a key stream of SHA-1 digests, as Sun's KeyProtector does."""
    encrypted = _encrypted_key(protected)
    salt, check = encrypted[:_DIGEST_BYTES], encrypted[-_DIGEST_BYTES:]
    hidden = encrypted[_DIGEST_BYTES:-_DIGEST_BYTES]
    secret = password.encode("utf-16-be")
    stream = b""
    block = salt
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    expected = hashlib.sha1(secret + key, usedforsecurity=False).digest()
    if not hmac.compare_digest(expected, check):
        raise InvalidStore("the password of the key is wrong, or the JKS file is damaged")
    return key


def _encrypted_key(protected: bytes) -> bytes:
    """The encrypted key in an EncryptedPrivateKeyInfo, which follows the algorithm."""
    at = _header_end(protected, 0)[0]
    start, size = _header_end(protected, at)
    start, size = _header_end(protected, start + size)
    return protected[start : start + size]


def _header_end(data: bytes, at: int) -> tuple[int, int]:
    """The position of the content of a DER element, and its size."""
    if at + 2 > len(data):
        raise InvalidStore("the JKS file is damaged")
    size = data[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[at : at + count], "big")
        at += count
    return at, size
