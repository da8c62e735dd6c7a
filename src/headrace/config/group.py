"""The settings of a consumer group, and their limits.

If a group does not set a value, the broker's default applies. The limits are broker settings.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from headrace.config.setting import INT, ConfigError, Setting, shown

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"


class Bounds(NamedTuple):
    """The names of the broker's settings for one group setting."""

    default: str
    low: str
    high: str


BOUNDS = {
    SESSION_TIMEOUT: Bounds(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    HEARTBEAT_INTERVAL: Bounds(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
}

GROUP_SETTINGS = {
    SESSION_TIMEOUT: Setting(
        SESSION_TIMEOUT,
        INT,
        "45000",
        "The time in ms without a heartbeat after which a member is removed.",
        low=1,
    ),
    HEARTBEAT_INTERVAL: Setting(
        HEARTBEAT_INTERVAL, INT, "5000", "The heartbeat interval in ms of members.", low=1
    ),
}


class Integers(Protocol):
    """The integer settings of a broker."""

    def get_int(self, name: str) -> int: ...


def check_group_settings(config: Integers, own: Mapping[str, str]) -> None:
    """Raise ConfigError for invalid settings of a group, or for invalid defaults of the broker."""
    values: dict[str, int] = {}
    for name in own:
        if name not in GROUP_SETTINGS:
            known = " and ".join(GROUP_SETTINGS)
            raise ConfigError(f"A group has no setting {shown(name)}, only {known}.")
    for name, row in GROUP_SETTINGS.items():
        bounds = BOUNDS[name]
        value = row.parse(own[name]) if name in own else config.get_int(bounds.default)
        assert isinstance(value, int)
        low, high = config.get_int(bounds.low), config.get_int(bounds.high)
        if not low <= value <= high:
            raise ConfigError(
                f"{name if name in own else bounds.default} cannot be {value}: it must be between "
                f"{bounds.low} and {bounds.high}, which are {low} and {high}."
            )
        values[name] = value
    if values[HEARTBEAT_INTERVAL] >= values[SESSION_TIMEOUT]:
        raise ConfigError(
            f"{HEARTBEAT_INTERVAL} cannot be {values[HEARTBEAT_INTERVAL]}: it must be less than "
            f"{SESSION_TIMEOUT}, which is {values[SESSION_TIMEOUT]}."
        )
