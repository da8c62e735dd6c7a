"""The settings of one broker: from its file, its command line, and dynamic changes.

Determines the effective value of each setting and its source. It logs nothing and reads no file:
the caller logs ``notes`` once.

1. The levels are, strongest first: dynamic for this broker, dynamic for all brokers, static,
   default. Within a level, the stronger name of a setting applies: log.retention.ms, then .minutes,
   then .hours.
2. A broker starts only if its static values are valid. A dynamic value from the store that is not
   valid is ignored, because another version of Headrace can have written it.
3. ``version`` increases with each change of dynamic settings.
"""

from collections.abc import Mapping
from copy import copy

from headrace.config.group import check_group_settings
from headrace.config.listeners import (
    SASL_PROTOCOLS,
    SASL_SSL,
    TLS_PROTOCOLS,
    advertise,
    check_advertised,
    check_internal,
    check_listeners,
    check_mechanisms,
    check_tls,
    internal_protocol,
    parse_listeners,
    parse_protocol_map,
)
from headrace.config.rejected import (
    check_inter_broker,
    check_prefixes,
    check_unknown,
    check_values,
)
from headrace.config.setting import ConfigError, ConfigSource, Setting, Value
from headrace.config.table import TOPIC_SETTINGS, broker_setting, broker_settings, unknown_name
from headrace.config.tls_rows import TLS_NAMES
from headrace.config.topic import TopicConfig
from headrace.model.cluster import Endpoint
from headrace.model.sasl import MECHANISMS, SCRAM_SHA_256

COMMAND_LINE = "--set"
INTERNAL = "INTERNAL"
"""The default listener for other brokers."""
_NOTHING: Mapping[str, str] = {}
_TOPIC_CONFIGS_MAX = 4096


class BrokerConfig:
    def __init__(self) -> None:
        """Create a configuration with default values only. Use ``load`` for others."""
        self.version = 0
        self.listeners: tuple[Endpoint, ...] = ()
        self.advertised: tuple[Endpoint, ...] = ()
        self.internal_listener = ""
        """The listener for other brokers; empty without a cluster."""
        self.mechanisms: dict[str, tuple[str, ...]] = {}
        """The SASL mechanisms of each listener that requires a login."""
        self.tls_listeners: tuple[str, ...] = ()
        """The listeners that use TLS."""
        self._static: dict[str, str] = {}
        self._dynamic: dict[str, str] = {}
        self._dynamic_defaults: dict[str, str] = {}
        self._values: dict[str, Value] = {}
        self._topic_values: dict[str, Value] = {}
        self._topic_configs: dict[frozenset[tuple[str, str]], TopicConfig] = {}
        self._unknown: list[str] = []
        self._unknown_dynamic: dict[str, ConfigSource] = {}
        self._controller_listeners: list[str] = []

    @classmethod
    def load(
        cls,
        properties: Mapping[str, str] = _NOTHING,
        overrides: Mapping[str, str] = _NOTHING,
        *,
        origin: str = "server.properties",
    ) -> "BrokerConfig":
        """Load the properties of a file, and those of the command line.

        Raises ConfigError. An unknown name in the file only causes a note. On the command line, it
        is an error.
        """
        config = cls()
        config._add_static(properties, origin)
        config._add_static(overrides, COMMAND_LINE)
        config._check_together()
        config._read_listeners()
        return config

    def _add_static(self, properties: Mapping[str, str], origin: str) -> None:
        for name, text in properties.items():
            row = broker_setting(name)
            if row is None:
                if origin == COMMAND_LINE:
                    raise ConfigError(f"{origin}: {unknown_name(name, of_topic=False)}")
                self._unknown.append(name)
            else:
                try:
                    row.parse(text)
                except ConfigError as error:
                    raise ConfigError(f"{origin}: {error.message}") from None
            self._static[name] = text
        self._join_ids(properties, origin)

    def _join_ids(self, properties: Mapping[str, str], origin: str) -> None:
        """Treat node.id and broker.id as one setting."""
        given = {
            properties[name].strip() for name in ("node.id", "broker.id") if name in properties
        }
        if len(given) > 1:
            raise ConfigError(f"{origin}: node.id and broker.id must be the same number.")
        for text in given:
            self._static["node.id"] = self._static["broker.id"] = text

    def _check_together(self) -> None:
        """Check rules between settings."""
        for name in ("log.dirs", "log.dir"):
            if name in self._static and not self.get_list(name):
                raise ConfigError(f"{name} is empty. Set it to a directory, or remove it.")
        if len(self.get_list("log.dirs")) > 1 or len(self.get_list("log.dir")) > 1:
            raise ConfigError(
                "log.dirs contains several directories, but a broker uses one. Remove the others."
            )
        if self.is_set("process.roles") and "broker" not in self.get_list("process.roles"):
            raise ConfigError("process.roles must contain broker: Headrace has no other role.")
        self._check_order("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
        # Above this limit, the broker could create neither __consumer_offsets nor other topics.
        self._check_order("num.partitions", "headrace.partitions.max")
        self._check_order("offsets.topic.num.partitions", "headrace.partitions.max")
        self._check_order("group.min.session.timeout.ms", "group.max.session.timeout.ms")
        check_group_settings(self, {})
        request_bytes_max = self.get_int("socket.request.max.bytes")
        queued_bytes_max = self.get_int("queued.max.request.bytes")
        if 0 < queued_bytes_max < request_bytes_max:
            if "queued.max.request.bytes" in self._static:
                raise ConfigError(
                    f"queued.max.request.bytes cannot be {queued_bytes_max}: it must be at least "
                    f"socket.request.max.bytes, which is {request_bytes_max}."
                )
            # Kafka has no default limit, so Kafka's files often raise only the other setting.
            self._values["queued.max.request.bytes"] = request_bytes_max

    def _check_order(self, low_name: str, high_name: str) -> None:
        low, high = self.get_int(low_name), self.get_int(high_name)
        if low > high:
            raise ConfigError(
                f"{low_name} cannot be {low}: it must be at most {high_name}, which is {high}."
            )

    def _read_listeners(self) -> None:
        protocols = parse_protocol_map(self.get_str("listener.security.protocol.map"))
        controllers: set[str] = set()
        if self.is_set("controller.listener.names"):
            controllers.update(map(str.upper, self.get_list("controller.listener.names")))
        # Kafka's example file has a listener for the Raft quorum, which Headrace does not have.
        protocols |= dict.fromkeys(controllers, "PLAINTEXT")
        listeners = parse_listeners("listeners", self.get_list("listeners"), protocols)
        advertised = parse_listeners(
            "advertised.listeners", self.get_list("advertised.listeners"), protocols
        )
        self._controller_listeners = [e.listener for e in listeners if e.listener in controllers]
        self.listeners = tuple(e for e in listeners if e.listener not in controllers)
        self.advertised = tuple(e for e in advertised if e.listener not in controllers)
        check_listeners(self.listeners)
        check_advertised(self.listeners, self.advertised)
        name = self.get_optional_str("inter.broker.listener.name")
        if name is not None and name.upper() not in [e.listener for e in self.listeners]:
            raise ConfigError(f"inter.broker.listener.name is {name}, which is not in listeners.")
        if self.is_clustered:
            self._add_internal_listener(name)
        self.mechanisms = {
            endpoint.listener: self._mechanisms_of(endpoint.listener)
            for endpoint in self.listeners
            if endpoint.protocol in SASL_PROTOCOLS
        }
        check_tls(self._has_tls_setting, self.listeners)
        check_values(self._static)
        check_unknown(self._unknown)
        check_prefixes(self._static, {e.listener for e in self.listeners} | controllers)
        if self.is_clustered and name is None and self.is_set("security.inter.broker.protocol"):
            check_inter_broker(
                self.get_str("security.inter.broker.protocol"),
                next(e.protocol for e in self.listeners if e.listener == self.internal_listener),
            )
        self.tls_listeners = tuple(
            endpoint.listener for endpoint in self.listeners if endpoint.protocol in TLS_PROTOCOLS
        )

    def _has_tls_setting(self, name: str) -> bool:
        """Whether a TLS setting has a value other than an empty one or none."""
        return (self._text(name) or "").strip().lower() not in ("", "none")

    def tls_values(self, listener: str) -> dict[str, str | None]:
        """The TLS settings of a listener, as text: its own, else those for all listeners."""
        prefix = f"listener.name.{listener.lower()}."
        protocols = {endpoint.listener: endpoint.protocol for endpoint in self.listeners}
        values: dict[str, str | None] = {}
        for name in TLS_NAMES:
            text = self._text(prefix + name)
            # As in Kafka, ssl.client.auth without a prefix does not apply to SASL_SSL listeners.
            if text is None and not (
                name == "ssl.client.auth" and protocols.get(listener) == SASL_SSL
            ):
                text = self._text(name)
            values[name] = text
        return values

    def _mechanisms_of(self, listener: str) -> tuple[str, ...]:
        if listener == self.internal_listener:
            return (SCRAM_SHA_256,)
        setting = "sasl.enabled.mechanisms"
        of_listener = f"listener.name.{listener.lower()}.{setting}"
        setting = of_listener if self.is_set(of_listener) else setting
        mechanisms = tuple(dict.fromkeys(self.get_list(setting)))
        check_mechanisms(setting, mechanisms)
        return mechanisms

    @property
    def offers_passwords(self) -> bool:
        """Whether clients can log in with a user name and a password."""
        return any(
            mechanism in MECHANISMS
            for listener, mechanisms in self.mechanisms.items()
            if listener != self.internal_listener
            for mechanism in mechanisms
        )

    def session_seconds(self, listener: str, mechanism: str) -> float:
        """The lifetime of a session after a login; 0 if it does not end."""
        setting = "connections.max.reauth.ms"
        of_listener = f"listener.name.{listener.lower()}"
        for name in (f"{of_listener}.{mechanism.lower()}.{setting}", f"{of_listener}.{setting}"):
            if self.is_set(name):
                setting = name
                break
        return max(self.get_int(setting), 0) / 1000

    def _add_internal_listener(self, name: str | None) -> None:
        """Set the listener for other brokers, which serves no clients."""
        if name is None:
            first = self.listeners[0]
            self.internal_listener = INTERNAL
            protocol = internal_protocol(self.listeners)
            self.listeners += (Endpoint(INTERNAL, first.host, 0, protocol),)
        elif len(self.listeners) == 1:
            raise ConfigError(
                f"inter.broker.listener.name is {name}, the only listener, so no listener "
                "serves clients. Add another to listeners, or remove this setting."
            )
        else:
            self.internal_listener = name.upper()
            internal = next(e for e in self.listeners if e.listener == self.internal_listener)
            check_internal(internal, self.listeners)

    def __getitem__(self, name: str) -> Value:
        """The effective value, typed; KeyError for an unknown name."""
        if name not in self._values:
            row = _row(name)
            text = self._text(name)
            self._values[name] = row.default_value if text is None else row.parse(text)
        return self._values[name]

    def get_int(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int)
        return value

    def get_float(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, float)
        return value

    def get_bool(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool)
        return value

    def get_str(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str)
        return value

    def get_optional_str(self, name: str) -> str | None:
        """The value; None if it is not set, or empty."""
        value = self[name]
        assert value is None or isinstance(value, str)
        return value or None

    def get_optional_int(self, name: str) -> int | None:
        value = self[name]
        assert value is None or isinstance(value, int)
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        """The members of a list; empty if it is not set."""
        value = self[name]
        assert value is None or isinstance(value, tuple)
        return value or ()

    @property
    def node_id(self) -> int:
        return self.get_int("node.id")

    @property
    def rack(self) -> str | None:
        return self.get_optional_str("broker.rack")

    @property
    def has_authorizer(self) -> bool:
        return bool(self.get_str("authorizer.class.name"))

    @property
    def data_directory(self) -> str:
        return (self.get_list("log.dirs") or self.get_list("log.dir"))[0]

    @property
    def is_clustered(self) -> bool:
        return bool(self.get_optional_str("zookeeper.connect"))

    def advertise(self, ports: Mapping[str, int], host: str) -> tuple[Endpoint, ...]:
        """The addresses for clients, from the bound port of each listener and the host name."""
        return advertise(self.listeners, self.advertised, ports, host)

    def levels(self) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        """The configured values, strongest level first."""
        return (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self._dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self._dynamic_defaults),
            (ConfigSource.STATIC_BROKER_CONFIG, self._static),
        )

    def source(self, name: str) -> ConfigSource:
        for source, values in self.levels():
            if name in values:
                return source
        return ConfigSource.DEFAULT_CONFIG

    def is_set(self, name: str) -> bool:
        return self.source(name) is not ConfigSource.DEFAULT_CONFIG

    def _text(self, name: str) -> str | None:
        for _, values in self.levels():
            if name in values:
                return values[name]
        return None

    def notes(self) -> list[str]:
        """Notes about settings that probably do not have the intended effect, one line each."""
        lines = [f"{unknown_name(name, of_topic=False)} It is ignored." for name in self._unknown]
        rows = [row for row in map(broker_setting, sorted(self._static)) if row is not None]
        idle = [row.name for row in rows if not row.has_effect]
        if idle:
            lines.append(f"Accepted without effect: {', '.join(idle)}.")
        if self._controller_listeners:
            names = ", ".join(self._controller_listeners)
            lines.append(f"Listeners not opened: {names}. Headrace has no Raft quorum.")
        if self.has_authorizer and not self.get_str("super.users"):
            lines.append("super.users is empty: only users with ACLs have access.")
        if self.has_authorizer and self.is_clustered and not self.mechanisms:
            lines.append(
                f"ACLs do not protect the listener {self.internal_listener}, which requires no "
                "login: restrict access to it, or use SASL listeners."
            )
        if self.get_str("super.users") and not self.has_authorizer:
            lines.append(
                "super.users has no effect without authorizer.class.name: every client can do "
                "everything."
            )
        return lines

    def topic_values(self) -> Mapping[str, Value]:
        """The typed defaults for topics on this broker, by the names of topic settings."""
        if not self._topic_values:
            self._topic_values = {
                name: self._topic_default(row) for name, row in TOPIC_SETTINGS.items()
            }
        return self._topic_values

    def _topic_default(self, row: Setting) -> Value:
        for _, values in self.levels():
            for synonym, factor in row.synonyms:
                if synonym in values:
                    return _in_unit(row, _row(synonym).parse(values[synonym]), factor)
        return row.default_value

    def topic_config(self, overrides: Mapping[str, str] = _NOTHING) -> TopicConfig:
        """The settings of a topic. Unknown names and invalid values are ignored.

        Topics with the same settings share one object, until the broker's settings change.
        """
        key = frozenset(overrides.items())
        config = self._topic_configs.get(key)
        if config is None:
            if len(self._topic_configs) >= _TOPIC_CONFIGS_MAX:
                self._topic_configs.clear()
            config = self._topic_configs[key] = self._make_topic_config(overrides)
        return config

    def _make_topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        values = dict(self.topic_values())
        for name, text in overrides.items():
            row = TOPIC_SETTINGS.get(name)
            if row is not None:
                try:
                    values[name] = row.parse(text)
                except ConfigError:
                    continue
        return TopicConfig(values)

    def update_dynamic(
        self, broker: Mapping[str, str], defaults: Mapping[str, str] = _NOTHING
    ) -> frozenset[str]:
        """Set the dynamic settings of this broker, and those for all brokers.

        Returns the names of the settings whose effective value has changed.
        """
        new = {name: text for name, text in broker.items() if _is_valid_dynamic(name, text)}
        new_defaults = {
            name: text for name, text in defaults.items() if _is_valid_dynamic(name, text)
        }
        touched = {*self._dynamic, *self._dynamic_defaults, *new, *new_defaults}
        old = {name: self[name] for name in touched}
        self._dynamic = new
        self._dynamic_defaults = new_defaults
        levels = (
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, defaults),
            (ConfigSource.DYNAMIC_BROKER_CONFIG, broker),
        )
        self._unknown_dynamic = {
            name: source for source, names in levels for name in names if not broker_setting(name)
        }
        for name in touched:
            self._values.pop(name, None)
        self._topic_values = {}
        self._topic_configs = {}
        self.version += 1
        return frozenset(name for name in touched if self[name] != old[name])

    def with_dynamic(
        self, broker: Mapping[str, str], defaults: Mapping[str, str]
    ) -> "BrokerConfig":
        """A copy with these dynamic settings."""
        changed = copy(self)
        changed._values = dict(self._values)
        changed.update_dynamic(broker, defaults)
        return changed

    def settings(self) -> Mapping[str, Setting]:
        """All rows for this broker: those of the table, and prefixed names that are set."""
        rows = dict(broker_settings())
        for _, values in self.levels():
            for name in values:
                row = broker_setting(name)
                if row is not None:
                    rows[name] = row
        return rows

    @property
    def unknown_names(self) -> Mapping[str, ConfigSource]:
        """Unknown names that were set, with their source."""
        static = dict.fromkeys(self._unknown, ConfigSource.STATIC_BROKER_CONFIG)
        return static | self._unknown_dynamic


def _row(name: str) -> Setting:
    row = broker_setting(name)
    if row is None:
        raise KeyError(name)
    return row


def _in_unit(row: Setting, value: Value, factor: int) -> Value:
    if factor == 1 or not isinstance(value, int):
        return value
    # A negative number of hours means no limit, which is -1 for topics.
    return max(value * factor, int(row.low or 0))


def _is_valid_dynamic(name: str, text: str) -> bool:
    row = broker_setting(name)
    if row is None or not row.is_dynamic:
        return False
    try:
        row.parse(text)
    except ConfigError:
        return False
    return True
