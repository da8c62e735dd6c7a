"""Settings of clients, producers, consumers and group members, with their defaults."""

from dataclasses import dataclass, field, fields
from ssl import SSLContext
from typing import Any, Literal, NamedTuple, TypedDict

from headrace.client.member.assignors import ASSIGNORS, COOPERATIVE_STICKY, RANGE, ROUND_ROBIN
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256

DEFAULT_PORT = 9092
POLL_RECORDS_MAX = 1_000
"""The default limit for the records that one `poll` returns."""
Acks = Literal["all", 0, 1]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Isolation = Literal["read_uncommitted", "read_committed"]
CODECS: dict[str, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Read "host:port,host:port"; the port is optional, and an IPv6 address is in brackets."""
    addresses = tuple(_parse_address(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("no broker address: use host:port, for example localhost:9092")
    return addresses


def _parse_address(text: str) -> Address:
    _, _, rest = text.rpartition("://")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = rest, str(DEFAULT_PORT)
    if not host.strip("[]") or not port.isascii() or not port.isdigit():
        raise ValueError(f"{text!r} is not a broker address: use host:port")
    number = int(port)
    if not 0 < number < 65536:
        raise ValueError(f"{text!r} is not a broker address: the port must be 1 to 65535")
    return Address(host.removeprefix("[").removesuffix("]"), number)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Settings of all connections of a client. docs/CLIENT.md has these rows."""

    bootstrap: tuple[Address, ...]
    client_id: str = "headrace"
    """Name of the client, for quotas and in descriptions of groups."""
    connect_timeout_ms: float = 10_000
    """Limit for one attempt to connect, including TLS and the login."""
    request_timeout_ms: float = 30_000
    """Limit for one response; after it, the client disconnects and retries."""
    operation_timeout_ms: float = 60_000
    """Limit for one call, including its retries."""
    metadata_age_ms_max: float = 300_000
    """Age at which metadata is refreshed."""
    retry_backoff_ms: float = 50
    """Pause before the first retry. It doubles with each further retry."""
    retry_backoff_ms_max: float = 1_000
    """Longest pause before a retry."""
    topic_absent_ms: float = 1_000
    """Time that a topic must be missing from metadata before a call raises UnknownTopic."""
    response_bytes_max: int = 1 << 30
    """Largest accepted response."""
    sasl_username: str = ""
    """User to log in as. Without one, the client does not log in."""
    sasl_password: str = field(default="", repr=False)
    """Password of the user."""
    sasl_mechanism: str = SCRAM_SHA_256
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    sasl_token: bool = False
    """Log in with a delegation token: its id is the user, its password the password."""
    ssl: SSLContext | None = None
    """Encrypt connections: `ssl.create_default_context(cafile="ca.pem")`, or `load_properties`."""

    def __post_init__(self) -> None:
        if self.sasl_token and self.sasl_mechanism == PLAIN:
            raise ValueError("sasl_token needs SCRAM-SHA-256 or SCRAM-SHA-512, not PLAIN")
        if self.sasl_mechanism not in MECHANISMS:
            raise ValueError(
                f"sasl_mechanism is {self.sasl_mechanism!r}: use {', '.join(MECHANISMS)}"
            )

    @property
    def bootstrap_text(self) -> str:
        return ",".join(map(str, self.bootstrap))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Settings of a producer. docs/CLIENT.md has these rows."""

    acks: Acks = "all"
    """Required acknowledgements: "all" in-sync replicas, 1 (the leader) or 0 (none)."""
    idempotent: bool = True
    """Retries neither duplicate nor reorder records. Requires acks="all"; else it is False."""
    linger_ms: float = 5
    """Time that a batch waits for records. Full or awaited batches are sent immediately."""
    compression: Compression = "none"
    """none, gzip, snappy, lz4 or zstd."""
    compression_level: int | None = None
    """Level of gzip, lz4 or zstd; None is the codec's default."""
    partitioner: Literal["sticky", "round_robin"] = "sticky"
    """Partition of records without a key: sticky uses one per batch, round_robin one per record."""
    batch_bytes_max: int = 262_144
    """Largest batch, before compression."""
    request_bytes_max: int = 1_048_576
    """Largest request."""
    buffer_bytes_max: int = 33_554_432
    """Limit for records that are not yet acknowledged; then `send` waits."""
    in_flight_max: int = 5
    """Requests per broker without a response: 1 to 5 if idempotent, else up to 1,000."""
    delivery_timeout_ms: float = 120_000
    """Limit for one record, from `send` to its acknowledgement."""
    create_topics: bool = True
    """Allow the broker to create an unknown topic (auto.create.topics.enable)."""

    def __post_init__(self) -> None:
        if self.acks not in ("all", 0, 1):
            raise ValueError(f"acks is {self.acks!r}: use 'all', 1 or 0")
        if self.idempotent and self.acks != "all":
            raise ValueError(
                "an idempotent producer needs acks='all'; set idempotent=False for other values"
            )
        if self.compression not in CODECS:
            raise ValueError(f"unknown compression {self.compression!r}: use {', '.join(CODECS)}")
        if not 1 <= self.in_flight_max <= (5 if self.idempotent else 1_000):
            raise ValueError(
                "in_flight_max must be 1 to 5, the number of batches that a broker remembers"
            )

    @property
    def acks_number(self) -> int:
        return -1 if self.acks == "all" else self.acks

    @property
    def codec(self) -> int:
        return CODECS[self.compression]


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Settings of a consumer. docs/CLIENT.md has these rows."""

    isolation: Isolation = "read_uncommitted"
    """read_committed omits records of aborted transactions."""
    wait_ms_max: int = 500
    """Time that a leader waits for fetch_bytes_min before it responds."""
    fetch_bytes_min: int = 1
    """Bytes for which a leader waits, for at most wait_ms_max."""
    fetch_bytes_max: int = 52_428_800
    """Largest fetch response; its first batch can be larger."""
    partition_bytes_max: int = 1_048_576
    """Largest part of one partition in a response; its first batch can be larger."""
    buffer_bytes_max: int = 67_108_864
    """Limit for fetched bytes that `poll` has not returned; then fetching pauses."""
    out_of_range: Literal["earliest", "latest", "error"] = "error"
    """Where to continue if the log lacks the next offset; error raises OffsetOutOfRange."""
    rack: str = ""
    """Rack of the client, to read from a follower in it (replica.selector.class of the broker)."""
    check_crcs: bool = True
    """Check the CRC-32C of each batch."""

    def __post_init__(self) -> None:
        if self.isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"unknown isolation {self.isolation!r}")
        if self.out_of_range not in ("earliest", "latest", "error"):
            raise ValueError(
                f"out_of_range is {self.out_of_range!r}: use earliest, latest or error"
            )


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Settings of a group member. docs/CLIENT.md has these rows."""

    protocol: Literal["classic", "consumer"] = "classic"
    """With "consumer" (KIP-848), the broker assigns the partitions."""
    instance_id: str | None = None
    """Id of a static member (KIP-345), which keeps its partitions through a restart."""
    assignors: tuple[str, ...] = (RANGE, ROUND_ROBIN)
    """Classic protocol: assignors in order of preference. cooperative-sticky cannot be combined."""
    server_assignor: str | None = None
    """Consumer protocol: uniform or range; None is the broker's default."""
    session_timeout_ms: int = 45_000
    """Classic protocol: a member without heartbeats is removed after this time."""
    heartbeat_interval_ms: int = 3_000
    """Classic protocol: interval of heartbeats."""
    max_poll_interval_ms: int = 300_000
    """Longest time between two polls, and to release partitions in a rebalance."""
    auto_commit: bool = True
    """Commit offsets of returned records automatically."""
    auto_commit_interval_ms: float = 5_000
    """Interval of automatic commits."""
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    """Start if the group has no valid offset; none raises NoOffset."""
    close_timeout_ms: float = 5_000
    """Limit for the last commit and for leaving the group."""

    def __post_init__(self) -> None:
        if self.protocol not in ("classic", "consumer"):
            raise ValueError(f"protocol is {self.protocol!r}: use classic or consumer")
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ValueError(
                f"auto_offset_reset is {self.auto_offset_reset!r}: use earliest, latest or none"
            )
        unknown = [name for name in self.assignors if name not in ASSIGNORS]
        if unknown or not self.assignors:
            raise ValueError(f"assignors are {self.assignors!r}: use {', '.join(ASSIGNORS)}")
        if COOPERATIVE_STICKY in self.assignors and len(self.assignors) > 1:
            raise ValueError(f"{COOPERATIVE_STICKY} cannot be combined with eager assignors")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be less than session_timeout_ms")

    @property
    def is_cooperative(self) -> bool:
        return self.assignors == (COOPERATIVE_STICKY,)


class SecuritySettings(TypedDict, total=False):
    """The security fields of ClientOptions, as keyword arguments."""

    sasl_username: str
    sasl_password: str
    sasl_mechanism: str
    sasl_token: bool
    ssl: SSLContext | None


class ClientSettings(SecuritySettings, total=False):
    """The fields of ClientOptions, as keyword arguments."""

    client_id: str
    connect_timeout_ms: float
    request_timeout_ms: float
    operation_timeout_ms: float
    metadata_age_ms_max: float
    retry_backoff_ms: float
    retry_backoff_ms_max: float
    topic_absent_ms: float
    response_bytes_max: int


class ProducerSettings(TypedDict, total=False):
    """The fields of ProducerOptions, as keyword arguments."""

    acks: Acks
    idempotent: bool
    linger_ms: float
    compression: Compression
    compression_level: int | None
    partitioner: Literal["sticky", "round_robin"]
    batch_bytes_max: int
    request_bytes_max: int
    buffer_bytes_max: int
    in_flight_max: int
    delivery_timeout_ms: float
    create_topics: bool


class ConsumerSettings(TypedDict, total=False):
    """The fields of ConsumerOptions, as keyword arguments."""

    isolation: Isolation
    wait_ms_max: int
    fetch_bytes_min: int
    fetch_bytes_max: int
    partition_bytes_max: int
    buffer_bytes_max: int
    out_of_range: Literal["earliest", "latest", "error"]
    rack: str
    check_crcs: bool


class GroupSettings(ConsumerSettings, total=False):
    """The fields of GroupOptions, and those of ConsumerOptions, as keyword arguments."""

    protocol: Literal["classic", "consumer"]
    instance_id: str | None
    assignors: tuple[str, ...]
    server_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    auto_commit: bool
    auto_commit_interval_ms: float
    auto_offset_reset: Literal["earliest", "latest", "none"]
    close_timeout_ms: float


def group_options(settings: GroupSettings) -> tuple[GroupOptions, ConsumerOptions]:
    """Split the settings of a member and of its fetches.

    By default, an offset that is out of range is reset like a missing one (auto_offset_reset).
    """
    given: dict[str, Any] = dict(settings)
    names = {each.name for each in fields(GroupOptions)}
    options = GroupOptions(**{name: given.pop(name) for name in names & given.keys()})
    if options.auto_offset_reset != "none":
        given.setdefault("out_of_range", options.auto_offset_reset)
    return options, ConsumerOptions(**given)


def producer_options(settings: ProducerSettings) -> ProducerOptions:
    """Convert settings of a producer. By default, it is idempotent if acks is "all"."""
    if settings.get("acks", "all") != "all":
        settings = {"idempotent": False, **settings}
    return ProducerOptions(**settings)
