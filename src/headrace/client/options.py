"""How a client behaves, with defaults that suit one broker on this machine and a cluster alike."""

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
    """Reads "host:port,host:port"; the port may be left out, and an IPv6 address is bracketed."""
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
    """What holds for every connection of a client."""

    bootstrap: tuple[Address, ...]
    client_id: str = "headrace"
    connect_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    operation_timeout_ms: float = 60_000
    """How long one call goes on with retries before it gives up."""
    metadata_age_ms_max: float = 300_000
    retry_backoff_ms: float = 50
    retry_backoff_ms_max: float = 1_000
    topic_absent_ms: float = 1_000
    """For how long a topic may be unknown before that is taken for the truth."""
    response_bytes_max: int = 1 << 30

    @property
    def bootstrap_text(self) -> str:
        return ",".join(map(str, self.bootstrap))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer gathers records into batches, and what it promises of them."""

    acks: Acks = "all"
    idempotent: bool = True
    """Retries neither duplicate nor reorder; only with acks="all"."""
    linger_ms: float = 5
    """How long a batch waits for more records while there is nothing else to wait for."""
    compression: Compression = "none"
    compression_level: int | None = None
    partitioner: Literal["sticky", "round_robin"] = "sticky"
    batch_bytes_max: int = 262_144
    request_bytes_max: int = 1_048_576
    buffer_bytes_max: int = 33_554_432
    in_flight_max: int = 5
    delivery_timeout_ms: float = 120_000
    create_topics: bool = True
    """Whether an unknown topic may be created by the broker, if it does such things."""

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
    """How a consumer fetches."""

    isolation: Isolation = "read_uncommitted"
    wait_ms_max: int = 500
    """How long a leader may hold a fetch back while it has less than fetch_bytes_min."""
    fetch_bytes_min: int = 1
    fetch_bytes_max: int = 52_428_800
    partition_bytes_max: int = 1_048_576
    buffer_bytes_max: int = 67_108_864
    """Fetched and not yet taken; above it nothing more is asked for."""
    out_of_range: Literal["earliest", "latest", "error"] = "error"
    """What to do when an offset is no longer, or not yet, in the log."""
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
    """How a consumer takes part in a group."""

    protocol: Literal["classic", "consumer"] = "classic"
    """"consumer" is KIP-848: the broker decides who reads what."""
    instance_id: str | None = None
    """A static member (KIP-345): one that comes back under this name gets what it had."""
    assignors: tuple[str, ...] = (RANGE, ROUND_ROBIN)
    """Of the classic protocol, best first: every other client knows one of these two."""
    server_assignor: str | None = None
    """Of the consumer protocol: "uniform" or "range"; None leaves it to the broker."""
    session_timeout_ms: int = 45_000
    """Classic: a member that is silent for so long is taken for dead."""
    heartbeat_interval_ms: int = 3_000
    """Classic: how often a member says that it lives."""
    max_poll_interval_ms: int = 300_000
    """One that asks for nothing for so long leaves; others wait as long for it to give up
    partitions."""
    auto_commit: bool = True
    auto_commit_interval_ms: float = 5_000
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    """Where to begin when the group has no offset, or one that the log has no more."""
    close_timeout_ms: float = 5_000
    """How long the last commit, and leaving, may take."""

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
    """How to take part, and how to fetch; an offset that is gone is reset as a missing one."""
    given: dict[str, Any] = dict(settings)
    names = {field.name for field in fields(GroupOptions)}
    options = GroupOptions(**{name: given.pop(name) for name in names & given.keys()})
    if options.auto_offset_reset != "none":
        given.setdefault("out_of_range", options.auto_offset_reset)
    return options, ConsumerOptions(**given)


def producer_options(settings: ProducerSettings) -> ProducerOptions:
    """An idempotent producer unless that is refused, or acks other than all are asked for."""
    if settings.get("acks", "all") != "all":
        settings = {"idempotent": False, **settings}
    return ProducerOptions(**settings)
