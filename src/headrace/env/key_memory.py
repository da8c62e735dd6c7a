"""Passes private keys and certificates to OpenSSL in memory, and never through a disk."""

import os
import ssl


def load_key(context: ssl.SSLContext, text: str, password: str) -> None:
    """Load a key and its certificates in PEM. Raises ssl.SSLError if they cannot be used."""
    descriptor = _memory_file(text)
    try:
        # Without a function for the password, OpenSSL would request one from the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: password)
    finally:
        os.close(descriptor)


def alternative_names(certificate: str) -> frozenset[str]:
    """The alternative names of a certificate in PEM, such as DNS:localhost."""
    descriptor = _memory_file(certificate)
    try:
        # The only decoder of certificates in the standard library reads a file.
        decode = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
        decoded = decode(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError:
        return frozenset()
    finally:
        os.close(descriptor)
    return frozenset(f"{kind}:{value}" for kind, value in decoded.get("subjectAltName", ()))


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("headrace-key", os.MFD_CLOEXEC)
    os.write(descriptor, text.encode())
    return descriptor
