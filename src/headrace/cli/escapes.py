"""Escape sequences in arguments, such as \\t and \\n."""

import re

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PATTERN = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)


def unescape(text: str) -> str:
    r"""Reads \n, \t, \r, \0, \\ and \xNN; any other escape stays unchanged."""

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] == "x" and len(escape) == 3:
            return chr(int(escape[1:], 16))
        return _ESCAPES.get(escape, match[0])

    return _PATTERN.sub(replace, text)
