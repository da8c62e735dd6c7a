"""Conditions on rows, as in SQL, for `show TABLE --where`.

Pure: a text and a schema in, an expression of PyArrow out. Supported: comparisons of a column with
a value, IN, LIKE, BETWEEN, IS NULL, AND, OR, NOT, parentheses, fields of structs as `a.b`.
"""

import re
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>(?:[^\W\d]\w*|`[^`]+`)(?:\.(?:[^\W\d]\w*|`[^`]+`))*)
    |(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_PART = re.compile(r"`([^`]+)`|([^.`]+)")
_WORDS = {"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE"}
_COMPARISONS = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<>": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}


class InvalidCondition(Exception):
    """The text of a condition is invalid; the message says why."""


class _Token(NamedTuple):
    kind: str
    text: str


class _Column(NamedTuple):
    name: str
    field: Any
    type: Any


def condition(text: str, schema: Any) -> Any:
    """The expression for PyArrow; raises InvalidCondition."""
    parser = _Parser(_tokens(text), schema)
    found = parser.any_of()
    if parser.at_end:
        return found
    raise InvalidCondition(f"unexpected {parser.next().text!r} after a complete condition")


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidCondition(f"unexpected {text[at:].strip()[:20]!r}")
        kind = str(match.lastgroup)
        word = match[kind]
        is_word = kind == "name" and word.upper() in _WORDS
        found.append(_Token("word", word.upper()) if is_word else _Token(kind, word))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[_Token], schema: Any) -> None:
        self._tokens = tokens
        self._schema = schema

    @property
    def at_end(self) -> bool:
        return not self._tokens

    def next(self) -> _Token:
        if not self._tokens:
            raise InvalidCondition("it ends too early")
        return self._tokens.pop(0)

    def _took(self, *texts: str) -> bool:
        """Consume these words or signs if they are next."""
        ahead = [each.text for each in self._tokens[: len(texts)] if each.kind in ("word", "sign")]
        if ahead != list(texts):
            return False
        del self._tokens[: len(texts)]
        return True

    def _expect(self, text: str) -> None:
        if not self._took(text):
            found = repr(self._tokens[0].text) if self._tokens else "the end"
            raise InvalidCondition(f"expected {text}, found {found}")

    def any_of(self) -> Any:
        found = self._all_of()
        while self._took("OR"):
            found = found | self._all_of()
        return found

    def _all_of(self) -> Any:
        found = self._one()
        while self._took("AND"):
            found = found & self._one()
        return found

    def _one(self) -> Any:
        if self._took("NOT"):
            return ~self._one()
        if self._took("("):
            found = self.any_of()
            self._expect(")")
            return found
        return self._predicate(self._column())

    def _predicate(self, column: _Column) -> Any:
        if self._took("IS", "NULL"):
            return column.field.is_null()
        if self._took("IS", "NOT", "NULL"):
            return column.field.is_valid()
        if self._took("NOT"):
            return ~self._membership(column) & column.field.is_valid()
        if self._tokens and self._tokens[0].text in ("IN", "LIKE", "BETWEEN"):
            return self._membership(column)
        ends = not self._tokens or self._tokens[0].text in ("AND", "OR", ")")
        if ends and pa.types.is_boolean(column.type):
            return column.field
        sign = self.next().text
        if sign not in _COMPARISONS:
            raise InvalidCondition(f"expected a comparison after {column.name}, found {sign!r}")
        return _COMPARISONS[sign](column.field, self._value(column))

    def _membership(self, column: _Column) -> Any:
        if self._took("LIKE"):
            if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
                raise InvalidCondition(f"LIKE needs text, but {column.name} is {column.type}")
            return pc.match_like(column.field, str(self._value(column)))
        if self._took("BETWEEN"):
            low = self._value(column)
            self._expect("AND")
            return (column.field >= low) & (column.field <= self._value(column))
        self._expect("IN")
        self._expect("(")
        values = [self._value(column)]
        while self._took(","):
            values.append(self._value(column))
        self._expect(")")
        found = column.field == values[0]
        for value in values[1:]:
            found = found | (column.field == value)
        return found

    def _column(self) -> _Column:
        token = self.next()
        if token.kind != "name":
            raise InvalidCondition(f"expected a column, found {token.text!r}")
        parts = [quoted or plain for quoted, plain in _PART.findall(token.text)]
        names = list(self._schema.names)
        kind: Any = None
        for depth, part in enumerate(parts):
            if part not in names:
                near = get_close_matches(part, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
                raise InvalidCondition(f"unknown column {part!r}; {hint}")
            owner = self._schema if depth == 0 else kind
            kind = owner.field(part).type
            names = [each.name for each in kind] if pa.types.is_struct(kind) else []
        return _Column(token.text, pc.field(*parts) if len(parts) > 1 else pc.field(parts[0]), kind)

    def _value(self, column: _Column) -> Any:
        token = self.next()
        if token.kind == "number":
            return _number(token.text, column)
        if token.kind == "text":
            return _typed(token.text[1:-1].replace("''", "'"), column)
        if token.text in ("TRUE", "FALSE") and pa.types.is_boolean(column.type):
            return token.text == "TRUE"
        hint = ". Put text in single quotes" if token.kind == "name" else ""
        raise InvalidCondition(f"expected a value for {column.name}, found {token.text!r}{hint}")


def _number(text: str, column: _Column) -> Any:
    kind = column.type
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(text))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    raise InvalidCondition(f"{column.name} is {kind}, but {text} is a number")


def _typed(text: str, column: _Column) -> Any:
    kind = column.type
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return text
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.scalar(text.encode(), kind)
        if pa.types.is_date(kind):
            return pa.scalar(date.fromisoformat(text), kind)
        if pa.types.is_decimal(kind):
            return pa.scalar(Decimal(text))
        if pa.types.is_timestamp(kind):
            time = datetime.fromisoformat(text)
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            return pa.scalar(time if kind.tz else time.astimezone(UTC).replace(tzinfo=None), kind)
    except (ValueError, InvalidOperation, pa.ArrowException):
        pass
    raise InvalidCondition(f"{column.name} is {kind}, but '{text}' is not a value of this type")
