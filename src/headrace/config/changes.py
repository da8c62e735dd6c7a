"""Applies and checks changes of settings that clients request.

Implements the operations of IncrementalAlterConfigs and the checks of CreateTopics, AlterConfigs
and IncrementalAlterConfigs. Pure: it returns the settings to store, or raises ApiError.

1. All changes of a resource are applied, or none.
2. An unknown name of a topic or group, or an invalid value, is INVALID_CONFIG. A setting that
   cannot change while the broker runs, or a contradictory request, is INVALID_REQUEST. This is as
   in Kafka, except that Kafka rejects invalid values of a broker with INVALID_REQUEST.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.config.broker import BrokerConfig
from headrace.config.group import GROUP_SETTINGS, check_group_settings
from headrace.config.setting import ConfigError, ConfigType, Setting, Value, render, shown
from headrace.config.table import (
    NAME_LENGTH_MAX,
    TOPIC_SETTINGS,
    broker_setting,
    topic_setting,
    unknown_name,
)
from headrace.model.errors import ApiError, ErrorCode

_UNSUPPORTED_THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
_LAGS = frozenset({"min.compaction.lag.ms", "max.compaction.lag.ms"})


class Operation(IntEnum):
    """The operations of IncrementalAlterConfigs, with their numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: int
    value: str | None = None


def apply_topic_changes(
    config: BrokerConfig, current: Mapping[str, str], changes: Iterable[Change]
) -> dict[str, str]:
    """The settings of a topic after the changes, checked as a whole."""
    inherited = config.topic_values()
    after = apply_changes(current, changes, topic_setting, lambda row: inherited[row.name])
    check_topic_config(config, after)
    return after


def apply_broker_changes(
    config: BrokerConfig,
    current: Mapping[str, str],
    changes: Iterable[Change],
    *,
    for_all_brokers: bool,
) -> dict[str, str]:
    """The dynamic settings after the changes, checked as a whole: of this broker, or of all."""
    after = apply_changes(current, changes, broker_setting, lambda row: config[row.name])
    check_broker_config(after, for_all_brokers=for_all_brokers)
    return after


def apply_group_changes(
    config: BrokerConfig, current: Mapping[str, str], changes: Iterable[Change]
) -> dict[str, str]:
    """The settings of a group after the changes, checked as a whole."""
    after = apply_changes(current, changes, GROUP_SETTINGS.get, lambda row: row.default_value)
    check_group_config(config, after)
    return after


def apply_changes(
    current: Mapping[str, str],
    changes: Iterable[Change],
    find: Callable[[str], Setting | None],
    inherited: Callable[[Setting], Value],
) -> dict[str, str]:
    """The settings after the changes; the values are not checked.

    ``inherited`` returns the list that a change appends to or subtracts from, if the resource does
    not set its own.
    """
    after = dict(current)
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise _twice(change.name)
        seen.add(change.name)
        if change.operation == Operation.DELETE:
            after.pop(change.name, None)
            continue
        if change.value is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{shown(change.name)} cannot be set to null."
            )
        if change.operation == Operation.SET:
            after[change.name] = change.value
        elif change.operation in (Operation.APPEND, Operation.SUBTRACT):
            after[change.name] = _combine(after, change, change.value, find, inherited)
        else:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{change.operation} is not an operation on a setting: it must be 0 (set), "
                "1 (delete), 2 (append) or 3 (subtract).",
            )
    return after


def _combine(
    current: Mapping[str, str],
    change: Change,
    value: str,
    find: Callable[[str], Setting | None],
    inherited: Callable[[Setting], Value],
) -> str:
    row = find(change.name)
    if row is None or row.kind is not ConfigType.LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{shown(change.name)} is not a list: values cannot be appended or subtracted.",
        )
    old = current.get(change.name)
    if old is None:
        old = render(inherited(row)) or ""
    members = [member.strip() for member in old.split(",") if member.strip()]
    given = [member.strip() for member in value.split(",") if member.strip()]
    if change.operation == Operation.APPEND:
        members += [member for member in dict.fromkeys(given) if member not in members]
    else:
        members = [member for member in members if member not in given]
    return ",".join(members)


def collect(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The settings of a CreateTopics or AlterConfigs request, which replace all others."""
    settings: dict[str, str] = {}
    for name, value in pairs:
        if name in settings:
            raise _twice(name)
        if value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{shown(name)} cannot be set to null.")
        settings[name] = value
    return settings


def check_topic_config(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Raise ApiError for settings that a topic cannot have on this broker."""
    values = dict(config.topic_values())
    for name, text in settings.items():
        row = TOPIC_SETTINGS.get(name)
        if row is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, unknown_name(name, of_topic=True))
        values[name] = _parse(row, text)
    # A topic that sets neither lag is valid, even if the broker's defaults contradict each other.
    if not _LAGS.isdisjoint(settings):
        _check_lags("", values)
    if values["remote.storage.enable"]:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "remote.storage.enable cannot be true: tiered storage is not supported.",
        )


def _check_lags(prefix: str, values: Mapping[str, Value]) -> None:
    """Check that the minimum lag is at most the maximum. A broker's names have a prefix."""
    low_name, high_name = f"{prefix}min.compaction.lag.ms", f"{prefix}max.compaction.lag.ms"
    low, high = values.get(low_name), values.get(high_name)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{low_name} cannot be {low}: it must be at most {high_name}, which is {high}.",
        )


def check_broker_config(settings: Mapping[str, str], *, for_all_brokers: bool) -> None:
    """Raise ApiError for dynamic settings that a broker, or all brokers, cannot have."""
    values: dict[str, Value] = {}
    for name, text in settings.items():
        row = broker_setting(name)
        if row is None:
            if len(name) > NAME_LENGTH_MAX:
                raise ApiError(ErrorCode.INVALID_CONFIG, unknown_name(name, of_topic=False))
            # Kafka accepts such names for its plug-ins, and the tests of kafkajs rely on it.
            continue
        if name == _UNSUPPORTED_THROTTLE:
            # A user who sets this limit before a reassignment would rely on it.
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{name} cannot be set: a broker has one directory.",
            )
        if not row.is_dynamic:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{name} cannot be changed while the broker runs. Set it in its properties file, "
                "and restart it.",
            )
        if for_all_brokers and row.is_per_broker:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{name} cannot be set for all brokers: send it for one broker.",
            )
        values[name] = _parse(row, text)
    _check_lags("log.cleaner.", values)


def check_group_config(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Raise ApiError for settings that a consumer group cannot have on this broker."""
    try:
        check_group_settings(config, settings)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, error.message) from None


def _parse(row: Setting, text: str) -> Value:
    try:
        return row.parse(text)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, error.message) from None


def _twice(name: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"{shown(name)} occurs twice in the request.")
