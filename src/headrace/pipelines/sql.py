"""SQL files of a project: their statements, with the datasets that each defines and reads.

Pure. Spark parses the SQL; this module finds only the lines of a statement, the name that it
defines, and the names after FROM and JOIN.
"""

import re
from dataclasses import dataclass

_NAME = r"(`[^`]+`|[\w]+)(?:\s*\.\s*(`[^`]+`|[\w]+))*"
# Strings, quoted names and comments: a semicolon in them does not end a statement.
_OPAQUE = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
_DEFINITION = re.compile(
    r"\s*CREATE\s+(?:OR\s+REFRESH\s+)?"
    r"(?P<kind>STREAMING\s+TABLE|MATERIALIZED\s+VIEW|TEMPORARY\s+VIEW|VIEW|FLOW)\s+"
    rf"(?:IF\s+NOT\s+EXISTS\s+)?(?P<name>{_NAME})",
    re.IGNORECASE,
)
_TARGET = re.compile(rf"\bINTO\s+(?P<name>{_NAME})", re.IGNORECASE)
_READ = re.compile(rf"\b(?:FROM|JOIN)\s+(?:STREAM\b\s*\(?\s*)?(?P<name>{_NAME})", re.IGNORECASE)
_HAS_QUERY = re.compile(r"\bAS\b", re.IGNORECASE)
_PROPERTIES = re.compile(r"\bTBLPROPERTIES\s*\(", re.IGNORECASE)
_FORMAT = re.compile(r"\bUSING\s+(?P<name>\w+)", re.IGNORECASE)
_PROPERTY = re.compile(r"""(['"])(?P<name>[^'"]+)\1\s*=\s*(['"])(?P<value>[^'"]*)\3""")
KINDS = {
    "STREAMING TABLE": "table",
    "MATERIALIZED VIEW": "view",
    "TEMPORARY VIEW": "temporary view",
    "VIEW": "temporary view",
}


@dataclass(frozen=True)
class Statement:
    start: int
    end: int
    """The range of the statement in the text, with preceding comments, without the semicolon."""
    first_line: int
    """The line from which Spark counts the lines of this statement."""
    line: int
    """The line of the first word of the statement."""
    kind: str | None
    """The kind of dataset that the statement defines: table, view, temporary view; None if none."""
    flow: str | None
    target: str | None
    reads: tuple[str, ...]
    query_start: int | None = None
    """The position at which the dataset's query begins; None if the statement has no query."""


def statements(text: str) -> list[Statement]:
    """The statements of a file, in order."""
    plain = _OPAQUE.sub(_blank, text)
    found = []
    start = 0
    for end in [*(at for at, sign in enumerate(plain) if sign == ";"), len(plain)]:
        part = plain[start:end]
        if part.strip():
            found.append(_statement(text, part, start, end))
        start = end + 1
    return found


def _statement(text: str, part: str, start: int, end: int) -> Statement:
    first_line = text.count("\n", 0, start) + 1
    line = first_line + part[: len(part) - len(part.lstrip())].count("\n")
    definition = _DEFINITION.match(part)
    if definition is None:
        return Statement(start, end, first_line, line, None, None, None, ())
    name = plain_name(definition["name"])
    word = " ".join(definition["kind"].upper().split())
    reads = reads_of(part[definition.end() :])
    if word == "FLOW":
        into = _TARGET.search(part)
        target = plain_name(into["name"]) if into else None
        return Statement(start, end, first_line, line, None, name, target, reads)
    query = _HAS_QUERY.search(part, definition.end())
    flow = name if query else None
    query_start = start + query.end() if query else None
    return Statement(start, end, first_line, line, KINDS[word], flow, name, reads, query_start)


def properties(text: str, statement: Statement) -> dict[str, str]:
    """The table properties of a dataset."""
    head = slice(statement.start, statement.query_start or statement.end)
    begin = _PROPERTIES.search(_OPAQUE.sub(_blank, text[head]))
    found = _PROPERTY.finditer(text[head], begin.end()) if begin else ()
    return {each["name"]: each["value"] for each in found}


def format_of(text: str, statement: Statement) -> str | None:
    """The format of a dataset; None if its statement names none."""
    head = slice(statement.start, statement.query_start or statement.end)
    found = _FORMAT.search(_OPAQUE.sub(_blank, text[head]))
    return found["name"].lower() if found else None


def reads_of(query: str) -> tuple[str, ...]:
    """Names after FROM and JOIN in a query, including its own CTEs."""
    found = _READ.finditer(_OPAQUE.sub(_blank, query))
    return tuple(dict.fromkeys(plain_name(each["name"]) for each in found))


def without(text: str, flows: set[str]) -> str:
    """The text without the statements of these flows. Blanks replace them, so lines do not move."""
    for statement in statements(text):
        if statement.flow in flows:
            hidden = re.sub(r"[^\n]", " ", text[statement.start : statement.end])
            text = text[: statement.start] + hidden + text[statement.end :]
    return text


def plain_name(name: str) -> str:
    return re.sub(r"\s*\.\s*", ".", name.replace("`", ""))


def _blank(found: re.Match[str]) -> str:
    """Replace a match with spaces of the same length, and keep its line breaks."""
    if found[0][0] == "`":
        return found[0].replace(";", "_")
    return re.sub(r"[^\n]", " ", found[0])
