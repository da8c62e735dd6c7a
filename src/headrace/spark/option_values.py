"""Reads the values of options: numbers, durations, partitions and offsets as JSON. Pure.

Each function takes the name and the text of an option, and returns its value or raises
`OptionError`, which contains the option and the expected format.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition, check_topic_name

EARLIEST = -2
LATEST = -1
_UNITS_MS = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_LIKENESS_MIN = 0.75
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)


class OptionError(ValueError):
    """An option is missing, unknown or invalid; the message has the option and the next step."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A start or end position from an option, before it is resolved to offsets."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    option: str
    places: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets, -1 for latest and -2 for earliest; or milliseconds."""
    time_ms: int = 0


def whole_number(name: str, text: str, at_least: int) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = at_least - 1
    if number < at_least:
        raise OptionError(f"option {name!r} is {text!r}: give a whole number, at least {at_least}")
    return number


def yes_or_no(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"option {name!r} is {text!r}: give true or false")
    return value == "true"


def one_of(name: str, text: str, choices: tuple[str, ...]) -> str:
    value = text.strip().lower()
    if value not in choices:
        hint = suggestion(text, choices)
        raise OptionError(f"option {name!r} is {text!r}: use {' or '.join(choices)}.{hint}")
    return value


def suggestion(text: str, choices: Iterable[str]) -> str:
    """A sentence that names the choice with the most similar spelling; empty if there is none."""
    import difflib  # Imported here, because executors do not need it.

    spelled = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(text.strip().lower(), spelled, 1, _LIKENESS_MIN)
    return f" Did you mean {spelled[near[0]]!r}?" if near else ""


def some_text(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"option {name!r} is empty: give a name, or omit the option")
    return text.strip()


def duration_ms(name: str, text: str) -> int:
    """A duration in Spark's format: 500ms, 10s, 15m, 2h.

    A number without a unit is milliseconds.
    """
    found = _DURATION.fullmatch(text)
    unit = found.group(2).lower() or "ms" if found else ""
    if found is None or unit not in _UNITS_MS:
        raise OptionError(f"option {name!r} is {text!r}: give a duration such as 10s or 15m")
    return int(int(found.group(1)) * _UNITS_MS[unit])


def topic_names(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise OptionError(
            f"option {name!r} is {text!r}: give a topic, or several separated by commas"
        )
    return tuple(topic_name(name, topic) for topic in topics)


def topic_name(name: str, text: str) -> str:
    topic = some_text(name, text)
    try:
        check_topic_name(topic)
    except ApiError as error:
        raise OptionError(f"option {name!r}: {error.message}") from None
    return topic


def pattern(name: str, text: str) -> str:
    try:
        re.compile(text.strip())
    except re.error as error:
        raise OptionError(f"option {name!r} is not a regular expression: {error}") from None
    if not text.strip():
        raise OptionError(f"option {name!r} is empty: give a regular expression for topic names")
    return text.strip()


def partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    example = '{"topicA": [0, 1]}'
    named = _json(name, text, example)
    found: list[TopicPartition] = []
    for topic, indexes in named.items():
        if not isinstance(indexes, list) or not all(_is_whole(index, 0) for index in indexes):
            raise OptionError(
                f"option {name!r}: {topic!r} requires a list of partitions, for example {example}"
            )
        found += [TopicPartition(topic_name(name, topic), index) for index in indexes]
    if not found:
        raise OptionError(f"option {name!r} contains no partition: use JSON, for example {example}")
    return tuple(dict.fromkeys(found))


def places(name: str, text: str, at_least: int) -> dict[TopicPartition, int]:
    """Offsets or timestamps by topic and partition."""
    example = '{"topicA": {"0": 23, "1": 42}}'
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json(name, text, example).items():
        if not isinstance(numbers, dict):
            raise OptionError(
                f"option {name!r}: {topic!r} requires partitions, for example {example}"
            )
        for index, number in numbers.items():
            if not (index.isdecimal() and _is_whole(number, at_least)):
                raise OptionError(
                    f"option {name!r}: topic {topic!r} has {index!r}: {number!r}, which is not a "
                    f"partition and a number, for example {example}"
                )
            found[TopicPartition(topic, int(index))] = number
    return found


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"option {name!r} is {text!r}: use JSON, for example {example}")
    return found


def _is_whole(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
