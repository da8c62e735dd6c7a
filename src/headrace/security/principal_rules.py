"""ssl.principal.mapping.rules: maps the subject of a client's certificate to a user name.

Pure. Patterns are RE2 instead of Java's regular expressions. RE2 takes linear time.

1. The first rule whose pattern matches the complete subject applies. If none does, the client is
   not authenticated.
"""

import re
from collections.abc import Callable

_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\Z", re.DOTALL)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)
_DEFAULT = "DEFAULT"

Rule = Callable[[str], str | None]
"""The user name for a subject; None if the rule does not match."""


class InvalidRules(ValueError):
    """The rules cannot be parsed. The message is the reason."""


def parse_rules(text: str) -> list[Rule]:
    """Parse the value of the setting. Raises InvalidRules."""
    rules = [_parse(part) for part in _split(text)]
    return rules or [_unchanged]


def user_of(subject: str, rules: list[Rule]) -> str | None:
    """The user name from the first rule that matches the subject; None if none does."""
    for rule in rules:
        user = rule(subject)
        if user is not None:
            return user
    return None


def _unchanged(subject: str) -> str | None:
    return subject


def _split(text: str) -> list[str]:
    """Split at commas and line breaks, but not inside a pattern or replacement."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in ", \t\n":
            at += 1
            continue
        start, slashes = at, 2 if text.startswith("RULE:", at) else 0
        while at < len(text) and (slashes or text[at] not in ",\n"):
            if text[at] == "\\":
                at += 1
            elif text[at] == "/":
                slashes -= 1
            at += 1
        parts.append(text[start:at].rstrip())
    return parts


def _parse(text: str) -> Rule:
    if text == _DEFAULT:
        return _unchanged
    match = _RULE.match(text)
    if match is None:
        raise InvalidRules(
            f"{text!r} is not a rule. Use DEFAULT or RULE:pattern/replacement/, with L or U at the "
            "end for lower or upper case"
        )
    pattern, replacement, case = match.groups()
    return _regex_rule(pattern, replacement, case)


def _regex_rule(pattern: str, replacement: str, case: str) -> Rule:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidRules(f"{pattern!r} is not a valid RE2 pattern: {error}") from None

    def rule(subject: str) -> str | None:
        match = compiled.fullmatch(subject)
        if match is None:
            return None
        groups = (match.group(0), *match.groups())

        def piece(found: "re.Match[str]") -> str:
            if found.group(1) is not None:
                return found.group(1)
            number = int(found.group(2))
            return (groups[number] or "") if number < len(groups) else found.group(0)

        user = _REFERENCE.sub(piece, replacement)
        return {"L": user.lower(), "U": user.upper()}.get(case, user)

    return rule
