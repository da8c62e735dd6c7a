"""Detects clients that send HTTP, or that use TLS on the wrong listener."""

_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"PRI ")


def reason_to_reject(data: bytes, at: int, size: int) -> str:
    """The reason to close a connection whose next four bytes are not a valid request size."""
    start = data[at : at + 4]
    # A TLS record: type 22 (handshake), then the version, 3.x.
    if start[:2] == b"\x16\x03":
        return "client sent a TLS handshake to a plaintext listener"
    if start in _HTTP_METHODS:
        return "client sent an HTTP request to a Kafka listener"
    return f"invalid request size: {size} bytes"


def reason_to_reject_tls(data: bytes) -> str:
    """The reason to close a connection that does not begin with a TLS handshake; "" if it does."""
    if data[0] == 0x16:
        return ""
    if data[:4] in _HTTP_METHODS:
        return "client sent an HTTP request to a Kafka listener"
    if data[0] == 0:
        return "client sent a plaintext request to a TLS listener; set security.protocol"
    return "client did not send a TLS handshake to a TLS listener"
