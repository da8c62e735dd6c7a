"""Options of the data source: those of the Kafka connector, and a few additional ones. Pure.

Owns the list of options, their use (batch, stream, write), and their effect on the client.
docs/SPARK.md has the same list, with the differences from the connector.

1. An option applies or is rejected by name; none is ignored.
2. Names are the connector's; upper and lower case are equal, because Spark changes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.client.core.options import CODECS, SecuritySettings, parse_addresses
from headrace.client.core.properties import (
    SECURITY_NAMES,
    InvalidProperties,
    read_file,
    security_settings,
)
from headrace.model.topics import TopicPartition
from headrace.spark import option_values as read
from headrace.spark.option_values import EARLIEST, LATEST, Bound, OptionError
from headrace.spark.versions import Version, shown

Use = Literal["batch", "stream", "write"]
BOOTSTRAP = "kafka.bootstrap.servers"
_DEFAULT_GROUP_PREFIX = "spark-kafka-source"
_POLL_TIMEOUT_MS = 120_000
_MAX_TRIGGER_DELAY_MS = 15 * 60_000
_IN_FLIGHT_MAX = 5
"""The number of batches of an idempotent producer that a broker remembers."""
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")

_BOTH = ("batch", "stream")
READING: dict[str, tuple[str, ...]] = {
    "subscribe": _BOTH,
    "subscribePattern": _BOTH,
    "assign": _BOTH,
    "startingOffsets": _BOTH,
    "startingTimestamp": _BOTH,
    "startingOffsetsByTimestamp": _BOTH,
    "startingOffsetsByTimestampStrategy": _BOTH,
    "endingOffsets": ("batch",),
    "endingTimestamp": ("batch",),
    "endingOffsetsByTimestamp": ("batch",),
    "failOnDataLoss": _BOTH,
    "minPartitions": _BOTH,
    "maxRecordsPerPartition": _BOTH,
    "maxOffsetsPerTrigger": ("stream",),
    "minOffsetsPerTrigger": ("stream",),
    "maxTriggerDelay": ("stream",),
    "includeHeaders": _BOTH,
    "groupIdPrefix": _BOTH,
    "kafkaConsumer.pollTimeoutMs": _BOTH,
    "fetchOffset.numRetries": _BOTH,
    "fetchOffset.retryIntervalMs": _BOTH,
    "pushFilters": ("batch",),
}
"""Options of reading, and whether each applies to batches, streams or both."""
WRITING = ("topic", "delivery")
_OF_SPARK = {"checkpointlocation", "queryname"}
"""Options of Spark itself, which it also passes to sources and sinks."""

Setting = tuple[str, Callable[[str, str], Any]]


def _number(name: str, text: str) -> int:
    return read.whole_number(name, text, 0)


def _positive(name: str, text: str) -> int:
    return read.whole_number(name, text, 1)


def _isolation(name: str, text: str) -> str:
    return read.one_of(name, text, ("read_uncommitted", "read_committed"))


def _text(_name: str, text: str) -> str:
    return text.strip()


CLIENT_PROPERTIES: dict[str, Setting] = {
    "client.id": ("client_id", _text),
    "request.timeout.ms": ("request_timeout_ms", _positive),
    "default.api.timeout.ms": ("operation_timeout_ms", _positive),
    "metadata.max.age.ms": ("metadata_age_ms_max", _number),
    "retry.backoff.ms": ("retry_backoff_ms", _number),
    "retry.backoff.max.ms": ("retry_backoff_ms_max", _number),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", _positive),
}
"""Kafka's client properties that apply, and the client's own names for them."""
SECURITY_PROPERTIES: dict[str, Setting] = {name: (name, _text) for name in SECURITY_NAMES}
"""Kafka's names; the client reads them on the driver and on each executor."""
CONFIG = "headrace.config"
"""A file with such properties, which the driver reads."""
CONSUMER_PROPERTIES: dict[str, Setting] = {
    "isolation.level": ("isolation", _isolation),
    "fetch.max.wait.ms": ("wait_ms_max", _number),
    "fetch.min.bytes": ("fetch_bytes_min", _number),
    "fetch.max.bytes": ("fetch_bytes_max", _positive),
    "max.partition.fetch.bytes": ("partition_bytes_max", _positive),
    "client.rack": ("rack", _text),
    "check.crcs": ("check_crcs", read.yes_or_no),
}


def _acks(name: str, text: str) -> str | int:
    value = read.one_of(name, text, ("all", "-1", "1", "0"))
    return "all" if value in ("all", "-1") else int(value)


def _codec(name: str, text: str) -> str:
    return read.one_of(name, text, tuple(CODECS))


PRODUCER_PROPERTIES: dict[str, Setting] = {
    "acks": ("acks", _acks),
    "enable.idempotence": ("idempotent", read.yes_or_no),
    "compression.type": ("compression", _codec),
    "batch.size": ("batch_bytes_max", _positive),
    "buffer.memory": ("buffer_bytes_max", _positive),
    "max.request.size": ("request_bytes_max", _positive),
    "max.in.flight.requests.per.connection": ("in_flight_max", _positive),
    "delivery.timeout.ms": ("delivery_timeout_ms", _positive),
    "linger.ms": ("linger_ms", _number),
}
_REASONS = {
    "kafka.auto.offset.reset": "use 'startingOffsets' instead",
    "kafka.key.deserializer": "keys are bytes; decode the column 'key' instead",
    "kafka.value.deserializer": "values are bytes; decode the column 'value' instead",
    "kafka.key.serializer": "keys are written as bytes; encode the column 'key' instead",
    "kafka.value.serializer": "values are written as bytes; encode the column 'value' instead",
    "kafka.enable.auto.commit": "a stream commits each finished micro-batch",
    "kafka.interceptor.classes": "the client has no interceptors",
    "kafka.transactional.id": "transactions are not supported yet",
    "path": "set the topic with 'subscribe' or 'topic', not with load(...) or save(...)",
}


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the cluster; the same for the driver and for every executor."""

    bootstrap: str
    settings: tuple[tuple[str, Any], ...]
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Kafka's client properties; they can contain a password."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    connection: Connection
    consumer: tuple[tuple[str, Any], ...]
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    starting: Bound
    ending: Bound
    unmatched_start: str
    """If no record is at or after a starting time: "error" or "latest"."""
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    include_headers: bool
    group_id: str | None
    group_prefix: str
    poll_timeout_ms: int
    fetch_attempts: int
    retry_interval_ms: int
    push_filters: bool
    columns: tuple[str, ...] = ()
    """The columns that the reader returns, in this order."""

    @property
    def read_committed(self) -> bool:
        return dict(self.consumer).get("isolation") == "read_committed"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: Connection
    producer: tuple[tuple[str, Any], ...]
    topic: str | None


class _Given:
    """The options that were given, under the names of the list."""

    def __init__(self, options: Mapping[str, str], names: Mapping[str, tuple[str, ...]]) -> None:
        self._given = {name.lower(): text for name, text in options.items()}
        self._spelled = {name.lower(): name for name in options}
        self._names = {name.lower(): name for name in names}

    def get(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def parsed(self, name: str, parse: Callable[[str, str], Any], default: Any = None) -> Any:
        text = self.get(name)
        return default if text is None else parse(name, text)

    def properties(self, *tables: Mapping[str, Setting]) -> list[tuple[tuple[str, Any], ...]]:
        """The kafka.* options of each table, by the client's names for them."""
        return [
            tuple(
                (name, parse(f"kafka.{key}", text))
                for key, (name, parse) in table.items()
                if (text := self.get(f"kafka.{key}")) is not None
            )
            for table in tables
        ]

    def refuse_others(self, use: Use | None, *tables: Mapping[str, Setting]) -> None:
        known = {f"kafka.{key}" for table in tables for key in table}
        known |= {f"kafka.{name}" for name in SECURITY_PROPERTIES}
        known |= {*self._names, BOOTSTRAP, CONFIG, *_OF_SPARK}
        if use != "write":
            known.add("kafka.group.id")
        for name in self._given:
            if name not in known:
                raise OptionError(_unknown(self._spelled[name], use == "write", self._known(known)))

    def _known(self, names: set[str]) -> list[str]:
        """The names of options in the spelling of docs/SPARK.md."""
        return [self._names.get(name, name) for name in names - _OF_SPARK]


def _unknown(name: str, writes: bool, known: list[str]) -> str:
    """Why an option is rejected. PySpark passes its name in lower case."""
    reason = _REASONS.get(name.lower())
    if reason is not None:
        return f"option {name!r} does not apply: {reason}"
    elsewhere = [*READING, "kafka.group.id"] if writes else WRITING
    properties = CONSUMER_PROPERTIES if writes else PRODUCER_PROPERTIES
    for other in [*elsewhere, *(f"kafka.{key}" for key in properties)]:
        if name.lower() == other.lower():
            return f"option {other!r} applies to {'reads' if writes else 'writes'} only. Remove it."
    hint = read.suggestion(name, known)
    return f"unknown option {name!r}.{hint} docs/SPARK.md lists all options."


def _connection(given: _Given) -> Connection:
    bootstrap = given.get(BOOTSTRAP)
    if bootstrap is None:
        raise OptionError(f"option {BOOTSTRAP!r} is missing: give host:port of a broker")
    try:
        parse_addresses(bootstrap)
    except ValueError as error:
        raise OptionError(f"option {BOOTSTRAP!r}: {error}") from None
    settings, security = given.properties(CLIENT_PROPERTIES, SECURITY_PROPERTIES)
    return Connection(bootstrap, settings, _security(given.get(CONFIG), dict(security)))


def _security(path: str | None, given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The properties of the file, overridden by options."""
    try:
        found = read_file(path) if path else {}
        properties = {name: text for name, text in found.items() if name in SECURITY_PROPERTIES}
        properties.update(given)
        security_settings(properties)
    except InvalidProperties as error:
        raise OptionError(f"invalid security options of kafka.*: {error}") from None
    return tuple(properties.items())


def security_of(options: Mapping[str, str]) -> SecuritySettings:
    """The client's security settings in the options of a read or a write."""
    given = _Given(options, {})
    return security_settings(dict(_connection(given).security))


def read_options(options: Mapping[str, str], use: Use | None) -> ReadOptions:
    """The options of a read; `use` is None while it is not yet known whether it is a stream."""
    given = _Given(options, READING)
    given.refuse_others(use, CLIENT_PROPERTIES, CONSUMER_PROPERTIES)
    for name, uses in READING.items():
        if use is not None and given.get(name) is not None and use not in uses:
            other = "spark.read" if use == "stream" else "spark.readStream"
            raise OptionError(f"option {name!r} applies to {other} only. Remove it.")
    topics, pattern, assigned = _subscription(given)
    starting = _bound(given, "starting", "latest" if use == "stream" else "earliest")
    ending = _bound(given, "ending", "latest")
    if use == "batch":
        _check_batch_bounds(starting, ending)
    consumer = given.properties(CONSUMER_PROPERTIES)[0]
    offsets_min = given.parsed("minOffsetsPerTrigger", _positive)
    offsets_max = given.parsed("maxOffsetsPerTrigger", _positive)
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise OptionError("option 'minOffsetsPerTrigger' is larger than 'maxOffsetsPerTrigger'")
    unmatched = given.parsed(
        "startingOffsetsByTimestampStrategy",
        lambda name, text: read.one_of(name, text, ("error", "latest")),
        "error",
    )
    return ReadOptions(
        connection=_connection(given),
        consumer=consumer,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        unmatched_start=unmatched,
        fail_on_data_loss=given.parsed("failOnDataLoss", read.yes_or_no, True),
        min_partitions=given.parsed("minPartitions", _positive, 0),
        max_records_per_partition=given.parsed("maxRecordsPerPartition", _positive),
        max_offsets_per_trigger=offsets_max,
        min_offsets_per_trigger=offsets_min,
        max_trigger_delay_ms=given.parsed(
            "maxTriggerDelay", read.duration_ms, _MAX_TRIGGER_DELAY_MS
        ),
        include_headers=given.parsed("includeHeaders", read.yes_or_no, False),
        group_id=given.parsed("kafka.group.id", read.some_text),
        group_prefix=given.parsed("groupIdPrefix", read.some_text, _DEFAULT_GROUP_PREFIX),
        poll_timeout_ms=given.parsed("kafkaConsumer.pollTimeoutMs", _positive, _POLL_TIMEOUT_MS),
        fetch_attempts=max(given.parsed("fetchOffset.numRetries", _number, 3), 1),
        retry_interval_ms=given.parsed("fetchOffset.retryIntervalMs", _number, 10),
        push_filters=given.parsed("pushFilters", read.yes_or_no, False),
    )


def check_versions(
    options: Mapping[str, str], since: Mapping[str, Version], version: Version
) -> None:
    """Reject options that this version of Spark cannot apply."""
    given = {name.lower() for name in options}
    for name, first in since.items():
        if name.lower() in given and version < first:
            raise OptionError(
                f"option {name!r} requires PySpark {shown(first)}, but this is PySpark "
                f"{shown(version)}. Remove the option, or install 'pyspark>={shown(first)}'."
            )


def _subscription(
    given: _Given,
) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    chosen = [name for name in _SUBSCRIPTIONS if given.get(name) is not None]
    if len(chosen) != 1:
        given_names = " and ".join(map(repr, chosen)) or "none"
        names = ", ".join(_SUBSCRIPTIONS)
        raise OptionError(f"exactly one of {names} is required, but {given_names} given")
    return (
        given.parsed("subscribe", read.topic_names, ()),
        given.parsed("subscribePattern", read.pattern),
        given.parsed("assign", read.partitions, ()),
    )


def _bound(given: _Given, side: str, default: str) -> Bound:
    """One time for all partitions has priority over times by partition, and those over offsets."""
    if (text := given.get(f"{side}Timestamp")) is not None:
        name = f"{side}Timestamp"
        return Bound("time", name, time_ms=read.whole_number(name, text, 0))
    if (text := given.get(f"{side}OffsetsByTimestamp")) is not None:
        name = f"{side}OffsetsByTimestamp"
        return Bound("times", name, read.places(name, text, 0))
    name = f"{side}Offsets"
    text = given.parsed(name, _text, default)
    if text.lower() == "earliest":
        return Bound("earliest", name)
    if text.lower() == "latest":
        return Bound("latest", name)
    if not text.lstrip().startswith("{"):
        raise OptionError(
            f"option {name!r} is {text!r}: use earliest, latest or JSON such as "
            f'{{"topicA": {{"0": 23}}}}.{read.suggestion(text, ("earliest", "latest"))}'
        )
    return Bound("offsets", name, read.places(name, text, EARLIEST))


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    if starting.kind == "latest" or LATEST in starting.places.values():
        raise OptionError("option 'startingOffsets' cannot be latest (-1) in a batch")
    if ending.kind == "earliest" or EARLIEST in ending.places.values():
        raise OptionError("option 'endingOffsets' cannot be earliest (-2) in a batch")
    if starting.kind != ending.kind or not starting.places:
        return
    if set(starting.places) != set(ending.places):
        raise OptionError(
            f"options {starting.option!r} and {ending.option!r} have different partitions"
        )
    for partition, start in starting.places.items():
        end = ending.places[partition]
        if 0 <= end < start:
            raise OptionError(
                f"{partition}: {starting.option!r} {start} is after {ending.option!r} {end}"
            )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    given = _Given(options, dict.fromkeys(WRITING, ("write",)))
    given.refuse_others("write", CLIENT_PROPERTIES, PRODUCER_PROPERTIES)
    delivery = given.get("delivery") or "at_least_once"
    if delivery.lower() == "exactly_once":
        raise OptionError(
            "option 'delivery' cannot be exactly_once: transactions are not supported yet. Omit "
            "it, or use at_least_once"
        )
    given.parsed("delivery", lambda name, text: read.one_of(name, text, ("at_least_once",)))
    producer = given.properties(PRODUCER_PROPERTIES)[0]
    _check_producer(dict(producer))
    return WriteOptions(_connection(given), producer, given.parsed("topic", read.topic_name))


def _check_producer(settings: Mapping[str, Any]) -> None:
    """Reject properties that exclude each other."""
    acks, wanted = settings.get("acks", "all"), settings.get("idempotent")
    if wanted and acks != "all":
        raise OptionError("option 'kafka.enable.idempotence' requires 'kafka.acks' = all")
    if settings.get("in_flight_max", 1) > _IN_FLIGHT_MAX and acks == "all" and wanted is not False:
        raise OptionError(
            "option 'kafka.max.in.flight.requests.per.connection' must be at most "
            f"{_IN_FLIGHT_MAX}, unless 'kafka.enable.idempotence' is false"
        )
