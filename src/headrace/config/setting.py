"""One row of the settings table: name, type, default, limits and documentation.

Converts text to a typed value, and describes the allowed values in errors. The rows are in
``*_rows.py``. It does no I/O.

1. ``parse`` returns a value of the row's type within its limits, or raises ConfigError.
2. An error shows at most 100 characters of the value, escaped, and no password.
3. A value has at most VALUE_BYTES_MAX bytes: older versions of DescribeConfigs cannot return more.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from headrace.config.features import MISSING

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

VALUE_BYTES_MAX = 32_767
SHOWN_LENGTH_MAX = 100

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigError(Exception):
    """An invalid setting; ``message`` is one sentence for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigType(IntEnum):
    """Types, with the numbers of DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Sources of a value, with the numbers of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD

_INTEGER_MAX = {INT: INT_MAX, SHORT: 2**15 - 1, LONG: LONG_MAX}
_NUMBER_CHARACTERS = frozenset("0123456789+-.eE")


class Setting:
    """One row. It is not a data class, because the broker creates hundreds of rows at its start."""

    __slots__ = (
        "allowed_text",
        "check",
        "choices",
        "default",
        "doc",
        "high",
        "is_dynamic",
        "is_hidden",
        "is_per_broker",
        "kafka_default",
        "kind",
        "low",
        "name",
        "needs",
        "synonyms",
    )

    def __init__(
        self,
        name: str,
        kind: ConfigType,
        default: str | None,
        doc: str,
        *,
        low: float | None = None,
        high: float | None = None,
        choices: tuple[str, ...] = (),
        check: Callable[[Value], bool] | None = None,
        allowed: str = "",
        needs: str = "",
        synonyms: tuple[tuple[str, int], ...] = (),
        is_dynamic: bool = False,
        is_per_broker: bool = False,
        is_hidden: bool = False,
        kafka_default: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.doc = doc
        self.low = low
        self.high = high
        self.choices = choices
        self.check = check
        self.allowed_text = allowed
        self.needs = needs
        """The missing feature without which the row has no effect: a key of features.MISSING."""
        self.synonyms = synonyms
        """The broker's names for the default of a topic row, with factors to the topic's unit."""
        self.is_dynamic = is_dynamic
        self.is_per_broker = is_per_broker
        """Whether it is dynamic, but cannot be set for all brokers."""
        self.is_hidden = is_hidden
        """Whether it is listed only if it is set: an internal or removed setting of Kafka."""
        self.kafka_default = kafka_default
        """Apache Kafka's default, if it differs."""

    @property
    def has_effect(self) -> bool:
        return not self.needs

    @property
    def documentation(self) -> str:
        if self.has_effect:
            return self.doc
        return f"{self.doc} Accepted without effect: {MISSING[self.needs]}.".lstrip()

    @property
    def is_sensitive(self) -> bool:
        return self.kind is PASSWORD

    @property
    def default_value(self) -> Value:
        return None if self.default is None else self.parse(self.default)

    def parse(self, text: str) -> Value:
        """The typed value of a text. Raises ConfigError with the allowed values."""
        if len(text.encode("utf-8", "surrogatepass")) > VALUE_BYTES_MAX:
            raise self._error(text)
        try:
            value = _read(self.kind, text.strip())
        except ValueError:
            raise self._error(text) from None
        if not self._is_allowed(value):
            raise self._error(text)
        return value

    def _is_allowed(self, value: Value) -> bool:
        if self.check is not None:
            return self.check(value)
        if self.choices:
            if isinstance(value, tuple):
                return all(member in self.choices for member in value)
            return value in self.choices
        if isinstance(value, (int, float)):
            low_enough = self.high is None or value <= self.high
            return low_enough and (self.low is None or value >= self.low)
        return True

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.name} cannot be {self._shown(text)}: it must be {self.allowed}.")

    def _shown(self, text: str) -> str:
        if self.is_sensitive:
            return "the given value"
        return shown(text)

    @property
    def allowed(self) -> str:
        """The allowed values, as the end of a sentence."""
        if self.allowed_text:
            return self.allowed_text
        if self.choices:
            choices = ", ".join(self.choices)
            if self.kind is LIST:
                return f"a list, separated by commas, of {choices}"
            return f"one of {choices}"
        if self.kind is BOOLEAN:
            return "true or false"
        if self.kind in _INTEGER_MAX:
            largest = _INTEGER_MAX[self.kind]
            low = -largest - 1 if self.low is None else self.low
            high = largest if self.high is None else self.high
            return f"a whole number from {low} to {high}"
        if self.kind is DOUBLE:
            if self.low is None or self.high is None:
                return "a number"
            return f"a number from {self.low} to {self.high}"
        if self.kind is LIST:
            return "a list, separated by commas, without empty members"
        return f"text of at most {VALUE_BYTES_MAX} bytes"


def _read(kind: ConfigType, text: str) -> Value:
    """Read a value as Java does; ValueError if Java would reject it."""
    if kind in _INTEGER_MAX:
        return _read_integer(text, _INTEGER_MAX[kind])
    if kind is BOOLEAN:
        return _read_boolean(text)
    if kind is LIST:
        return _read_list(text)
    if kind is DOUBLE:
        # float() also accepts underscores, infinity and not-a-number.
        if not _NUMBER_CHARACTERS.issuperset(text):
            raise ValueError(text)
        return float(text)
    return text


def _read_integer(text: str, largest: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # int() also accepts underscores, and the digits of all scripts.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 40:
        raise ValueError(text)
    number = int(text)
    if not -largest - 1 <= number <= largest:
        raise ValueError(text)
    return number


def _read_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _read_list(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    members = tuple(member.strip() for member in text.split(","))
    if not all(members):
        raise ValueError(text)
    return members


def render(value: Value) -> str | None:
    """The text of a value, as Kafka's tools print it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).replace("e+", "E").replace("e-", "E-")
    return str(value)


def shown(text: str) -> str:
    """A value for a message: shortened, and escaped so that it cannot forge a log line."""
    if len(text) <= SHOWN_LENGTH_MAX:
        return repr(text)
    return f"{text[:SHOWN_LENGTH_MAX]!r}... ({len(text)} characters)"
