"""Parses Java's .properties files, the format of Kafka's server.properties.

It does not interpret the names and does not read the file. Continued lines, the three separators,
both comment characters and escapes are as in Java.
"""

from collections.abc import Iterator

from headrace.config.setting import ConfigError, shown

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """Names and values; the last value of a repeated name applies, as in Java."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        name, value = _split(line)
        if not name and not value:
            continue
        properties[_unescape(name, number)] = _unescape(value, number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its continuation lines, and the number of the first."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    pieces: list[str] = []
    start = 0
    for number, raw in enumerate(lines, start=1):
        line = raw.lstrip(_BLANKS)
        if not pieces:
            if not line or line[0] in "#!":
                continue
            start = number
        if _is_continued(line):
            pieces.append(line[:-1])
            continue
        yield start, "".join(pieces) + line
        pieces.clear()
    if pieces:
        yield start, "".join(pieces)


def _is_continued(line: str) -> bool:
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """The name ends at the first blank, '=' or ':' without a backslash before it."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:at], rest


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    pieces = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\" and at < len(text):
            character = text[at]
            at += 1
            if character == "u":
                pieces.append(_code_point(text[at : at + 4], line_number))
                at += 4
                continue
            character = _ESCAPES.get(character, character)
        pieces.append(character)
    # Java writes characters beyond 16 bits as a pair of escapes.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _code_point(digits: str, line_number: int) -> str:
    try:
        if len(digits) != 4 or not (digits.isascii() and digits.isalnum()):
            raise ValueError(digits)
        return chr(int(digits, 16))
    except ValueError:
        raise ConfigError(
            f"Line {line_number} has {shown(digits)} after \\u: it must be four hexadecimal digits."
        ) from None
