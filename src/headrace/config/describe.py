"""Builds the rows of DescribeConfigs for topics, brokers and groups.

Pure: rows in, rows out. The handler selects the fields of its version.

1. All settings are listed, also those that are not set. Kafka's internal and removed settings are
   listed only if they are set.
2. The value of a password, or of an unknown name, is never returned.
3. The first synonym is the effective value, and its source is the source of the row.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace.config.broker import BrokerConfig
from headrace.config.group import BOUNDS, GROUP_SETTINGS
from headrace.config.setting import ConfigError, ConfigSource, ConfigType, Setting, Value, render
from headrace.config.table import BROKER_SYNONYMS, TOPIC_SETTINGS, broker_setting


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: int


class ConfigRow(NamedTuple):
    name: str
    value: str | None
    source: int
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    config_type: int
    documentation: str


def describe_topic(
    config: BrokerConfig, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The settings of a topic, or only those in ``names``. Unknown names are ignored."""
    return [
        _topic_row(config, row, overrides)
        for name, row in TOPIC_SETTINGS.items()
        if (names is None or name in names) and (not row.is_hidden or name in overrides)
    ]


def _topic_row(config: BrokerConfig, row: Setting, overrides: Mapping[str, str]) -> ConfigRow:
    synonyms = []
    value = config.topic_values()[row.name]
    own = overrides.get(row.name)
    if own is not None:
        value = _value(row, own, value)
        synonyms.append(Synonym(row.name, render(value), ConfigSource.TOPIC_CONFIG))
    if row.synonyms:
        synonyms += _synonyms_since(config, row.synonyms[0][0])
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return ConfigRow(
        row.name,
        render(value),
        source,
        False,
        row.is_sensitive,
        tuple(synonyms),
        row.kind,
        row.documentation,
    )


def describe_group(
    config: BrokerConfig, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The settings of a consumer group, which need not exist."""
    rows = []
    for name, row in GROUP_SETTINGS.items():
        if names is not None and name not in names:
            continue
        synonyms = _broker_synonyms(config, BOUNDS[name].default)
        value = render(config[BOUNDS[name].default])
        if name in overrides:
            value = overrides[name]
            synonyms.insert(0, Synonym(name, value, ConfigSource.GROUP_CONFIG))
        source = synonyms[0].source
        rows.append(
            ConfigRow(
                name, value, source, False, False, tuple(synonyms), row.kind, row.documentation
            )
        )
    return rows


def describe_broker(config: BrokerConfig, names: Collection[str] | None = None) -> list[ConfigRow]:
    """The settings of this broker, with unknown names last."""
    rows = [
        _broker_row(config, row)
        for name, row in config.settings().items()
        if (names is None or name in names) and (not row.is_hidden or config.is_set(name))
    ]
    return rows + [
        _unknown_row(name, source)
        for name, source in config.unknown_names.items()
        if names is None or name in names
    ]


def describe_broker_defaults(
    config: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The dynamic settings for all brokers: only those that are set, as in Kafka."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    rows = []
    for name, text in dict(config.levels())[source].items():
        row = broker_setting(name)
        if row is not None and (names is None or name in names):
            value = None if row.is_sensitive else render(_value(row, text, None))
            rows.append(
                ConfigRow(
                    name,
                    value,
                    source,
                    False,
                    row.is_sensitive,
                    (Synonym(name, value, source),),
                    row.kind,
                    row.documentation,
                )
            )
    return rows + [
        _unknown_row(name, source)
        for name, name_source in config.unknown_names.items()
        if name_source is source and (names is None or name in names)
    ]


def _broker_row(config: BrokerConfig, row: Setting) -> ConfigRow:
    synonyms = _synonyms_since(config, row.name)
    return ConfigRow(
        row.name,
        None if row.is_sensitive else render(config[row.name]),
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        not row.is_dynamic,
        row.is_sensitive,
        tuple(synonyms),
        row.kind,
        row.documentation,
    )


def _synonyms_since(config: BrokerConfig, name: str) -> list[Synonym]:
    """The synonyms from this name on, as in Kafka: stronger names have their own rows."""
    synonyms = _broker_synonyms(config, name)
    while synonyms and synonyms[0].name != name:
        synonyms.pop(0)
    return synonyms


def _broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """All values of a setting, under all its names, strongest first."""
    rows = [row for row in map(broker_setting, BROKER_SYNONYMS.get(name, (name,))) if row]
    configured = [
        _synonym(row, values[row.name], source)
        for source, values in config.levels()
        for row in rows
        if row.name in values
    ]
    defaults = [
        _synonym(row, row.default, ConfigSource.DEFAULT_CONFIG)
        for row in rows
        if row.default is not None
    ]
    return configured + defaults


def _synonym(row: Setting, text: str, source: ConfigSource) -> Synonym:
    return Synonym(row.name, None if row.is_sensitive else text.strip(), source)


def _unknown_row(name: str, source: ConfigSource) -> ConfigRow:
    # As in Kafka, the value is not returned, because it can be the secret of a plug-in.
    read_only = source is ConfigSource.STATIC_BROKER_CONFIG
    synonyms = (Synonym(name, None, source),)
    return ConfigRow(name, None, source, read_only, True, synonyms, ConfigType.UNKNOWN, "")


def _value(row: Setting, text: str, default: Value) -> Value:
    try:
        return row.parse(text)
    except ConfigError:
        return default
