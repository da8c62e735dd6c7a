"""The subject of a certificate as Java writes it: X500Principal.getName, RFC 2253.

Pure. Kafka's principals and mapping rules depend on this text, which no Python library produces.

1. The attributes are in the reverse order of the certificate. Those of RFC 2253 have keywords.
   Others have dotted numbers, and values as hexadecimal DER.
2. A name with control characters is rejected, because it could forge log lines or another
   principal.
"""

from collections.abc import Iterator

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.6": "C",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_STRING_TAGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
"""UTF8, Printable, T61, IA5, General, Universal and BMP strings."""
_ESCAPED = frozenset(',=+<>#;"\\')
_VERSION_TAG = 0xA0
_FIELDS_BEFORE_SUBJECT = 4
"""Serial number, signature algorithm, issuer, validity."""


class InvalidCertificate(ValueError):
    """The certificate has no subject that can be a principal."""


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER."""
    try:
        fields = list(_elements(_elements_of(_elements_of(certificate)[0][2])[0][2]))
        if fields[0][0] == _VERSION_TAG:
            del fields[0]
        return _name(fields[_FIELDS_BEFORE_SUBJECT][2])
    except (IndexError, UnicodeDecodeError) as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from None


def _elements_of(data: bytes) -> list[tuple[int, bytes, bytes]]:
    return list(_elements(data))


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the DER elements of a sequence: tag, complete encoding, content."""
    at = 0
    while at < len(data):
        start, tag, size = at, data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            raise IndexError("it is truncated")
        yield tag, data[start : at + size], data[at : at + size]
        at += size


def _name(data: bytes) -> str:
    parts = [
        "+".join(_attribute(pair) for _, _, pair in _elements(group))
        for _, _, group in _elements(data)
    ]
    return ",".join(reversed(parts))


def _attribute(pair: bytes) -> str:
    (_, _, number), (tag, encoded, value) = _elements_of(pair)
    dotted = _dotted(number)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or tag not in _STRING_TAGS:
        return f"{keyword or dotted}=#{encoded.hex()}"
    # Java decodes every kind of string as UTF-8.
    text = value.decode(errors="replace")
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in text):
        raise InvalidCertificate("the subject of the certificate contains control characters")
    return f"{keyword}={_escaped(text)}"


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    escaped = "".join(f"\\{letter}" if letter in _ESCAPED else letter for letter in inner)
    if not inner:
        return "\\ " * len(text)
    return "\\ " * lead + escaped + "\\ " * (len(text) - lead - len(inner))


def _dotted(number: bytes) -> str:
    """The text of an object identifier."""
    values = []
    value = 0
    for byte in number:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            values.append(value)
            value = 0
    first = min(values[0] // 40, 2)
    return ".".join(map(str, (first, values[0] - 40 * first, *values[1:])))
