"""Names the protocol of a client that does not speak Kafka's."""

_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"PRI ")


def reason_to_reject(data: bytes, at: int, size: int) -> str:
    """Why a connection is closed whose next four bytes are not the size of a request."""
    start = data[at : at + 4]
    # A TLS record: type 22 (handshake), then the version, 3.x.
    if start[:2] == b"\x16\x03":
        return "client sent a TLS handshake to a plaintext listener"
    if start in _HTTP_METHODS:
        return "client sent an HTTP request to a Kafka listener"
    return f"the size of a request, {size} bytes, is not valid"
