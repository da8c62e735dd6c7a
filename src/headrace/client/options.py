"""The options of clients, producers, consumers and group members, with defaults."""

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypedDict

from headrace.client.assignors import ASSIGNORS, COOPERATIVE_STICKY, RANGE, ROUND_ROBIN

DEFAULT_PORT = 9092
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
    """Parse "host:port,host:port"; the port is optional, and an IPv6 address is in brackets."""
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
    """Options for all connections of a client."""

    bootstrap: tuple[Address, ...]
    client_id: str = "headrace"
    connect_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    operation_timeout_ms: float = 60_000
    """The time for which one call retries."""
    metadata_age_ms_max: float = 300_000
    retry_backoff_ms: float = 50
    retry_backoff_ms_max: float = 1_000
    topic_absent_ms: float = 1_000
    """The time for which a topic can be unknown before that is an error."""
    response_bytes_max: int = 1 << 30

    @property
    def bootstrap_text(self) -> str:
        return ",".join(map(str, self.bootstrap))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options of a producer: batching, acknowledgements and delivery."""

    acks: Acks = "all"
    idempotent: bool = True
    """Retries neither duplicate nor reorder records; requires acks="all"."""
    linger_ms: float = 5
    """The time that a batch waits for more records."""
    compression: Compression = "none"
    compression_level: int | None = None
    partitioner: Literal["sticky", "round_robin"] = "sticky"
    batch_bytes_max: int = 262_144
    request_bytes_max: int = 1_048_576
    buffer_bytes_max: int = 33_554_432
    in_flight_max: int = 5
    delivery_timeout_ms: float = 120_000
    create_topics: bool = True
    """Whether the broker may create an unknown topic, if its configuration allows that."""

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
    """Options of fetching."""

    isolation: Isolation = "read_uncommitted"
    wait_ms_max: int = 500
    """The time that a leader can delay a fetch while it has less than fetch_bytes_min."""
    fetch_bytes_min: int = 1
    fetch_bytes_max: int = 52_428_800
    partition_bytes_max: int = 1_048_576
    buffer_bytes_max: int = 67_108_864
    """The limit of fetched bytes that were not taken; above it, nothing is fetched."""
    out_of_range: Literal["earliest", "latest", "error"] = "error"
    """The action if an offset is before the log start or after the log end."""
    rack: str = ""
    check_crcs: bool = True

    def __post_init__(self) -> None:
        if self.isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"unknown isolation {self.isolation!r}")
        if self.out_of_range not in ("earliest", "latest", "error"):
            raise ValueError(
                f"out_of_range is {self.out_of_range!r}: use earliest, latest or error"
            )


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Options of a group member."""

    protocol: Literal["classic", "consumer"] = "classic"
    """With "consumer" (KIP-848), the broker assigns the partitions."""
    instance_id: str | None = None
    """A static member (KIP-345): a member that returns with this id gets its partitions back."""
    assignors: tuple[str, ...] = (RANGE, ROUND_ROBIN)
    """For the classic protocol, best first: all other clients support one of these two."""
    server_assignor: str | None = None
    """For the consumer protocol: "uniform" or "range"; None uses the broker's default."""
    session_timeout_ms: int = 45_000
    """Classic: the time without a heartbeat after which a member is removed."""
    heartbeat_interval_ms: int = 3_000
    """Classic: the interval of heartbeats."""
    max_poll_interval_ms: int = 300_000
    """A member that does not poll for this time leaves the group.

    A rebalance also waits this long for members to release partitions.
    """
    auto_commit: bool = True
    auto_commit_interval_ms: float = 5_000
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    """The start position if the group has no offset, or one that is not in the log."""
    close_timeout_ms: float = 5_000
    """The limit for the last commit and for leaving the group."""

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


class ClientSettings(TypedDict, total=False):
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
    """Split the settings; an offset out of range is reset like a missing one."""
    given: dict[str, Any] = dict(settings)
    names = {field.name for field in fields(GroupOptions)}
    options = GroupOptions(**{name: given.pop(name) for name in names & given.keys()})
    if options.auto_offset_reset != "none":
        given.setdefault("out_of_range", options.auto_offset_reset)
    return options, ConsumerOptions(**given)


def producer_options(settings: ProducerSettings) -> ProducerOptions:
    """An idempotent producer, unless it is disabled or acks is not "all"."""
    if settings.get("acks", "all") != "all":
        settings = {"idempotent": False, **settings}
    return ProducerOptions(**settings)
