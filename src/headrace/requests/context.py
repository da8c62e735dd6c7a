"""The arguments of every handler: the broker, and the header of the request."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.audit import Audit
from headrace.config.setting import LONG_MAX
from headrace.env.clock import SystemClock
from headrace.model.sasl import ANONYMOUS
from headrace.runtime.quota import QuotaTable
from headrace.security.authorizer import AllowAll

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig
    from headrace.controller.service import Controller
    from headrace.env.clock import Clock
    from headrace.group.service import GroupService
    from headrace.log.directory.log_directory import LogDirectory
    from headrace.model.cluster import BrokerInfo, ClusterImage
    from headrace.model.topics import TopicPartition
    from headrace.replication.partition import Partition
    from headrace.runtime.tls_listeners import TlsListeners
    from headrace.runtime.worker import Worker
    from headrace.security.authorizer import Authorizer


@dataclass(slots=True)
class RequestContext:
    """The header of one request, and its connection."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    peer: str
    listener: str
    is_internal: bool = False
    """Whether another broker sent it, on the inter-broker listener."""
    is_forwarded: bool = False
    """Whether it is a client's request that another broker forwarded in an Envelope."""
    has_own_login: bool = False
    """Whether the client has logged in, and not with a delegation token."""
    principal: str = ANONYMOUS
    """The user of the connection; of a forwarded request, the user of its client."""
    throttle_ms: int = 0
    """How long the client must wait because of its changes of topics."""
    apply_quota: Callable[[int], int] | None = None
    """Counts the request of a limited client. Takes `throttle_ms`, returns the throttle time."""

    @property
    def host(self) -> str:
        """The address of the client, without the port."""
        return self.peer if self.is_forwarded else self.peer.rpartition(":")[0].strip("[]")


async def _is_open(_topic: str) -> None:
    pass


def _hold_nothing(_partitions: "Iterable[TopicPartition]", _names: int) -> None:
    return None


def _system_audit() -> Audit:
    clock = SystemClock()
    return Audit(clock.wall_ms, clock.monotonic)


def _never() -> bool:
    return False


@dataclass(slots=True)
class BrokerContext:
    node_id: int
    image: "ClusterImage"
    config: "BrokerConfig"
    controller: "Controller"
    logs: "LogDirectory"
    partitions: "dict[str, dict[int, Partition]]"
    clock: "Clock"
    worker: "Worker"
    groups: "Callable[[], GroupService]"
    """The group coordinator; its modules are loaded with the first call."""
    opened: "Callable[[str], Awaitable[None]]" = field(default=_is_open)
    """Waits until this broker has opened its logs of a new topic."""
    start_job: "Callable[[Partition], None]" = field(default=lambda _: None)
    """Starts the next job of a partition's log on a worker thread."""
    wait_for_election: "Callable[[Iterable[TopicPartition], int], Awaitable[None] | None]" = field(
        default=_hold_nothing
    )
    """An awaitable if the leader of one of these partitions was just lost: see HeldResponses."""
    brokers_to_list: "Callable[[str, Callable[[], set[int]]], dict[int, BrokerInfo]] | None" = None
    """Returns the brokers that a Metadata response lists: see HeldResponses.brokers_to_list.

    None: all registered ones.
    """
    was_lost_lately: "Callable[[int], bool]" = field(default=lambda _: False)
    """Whether the connection to a broker was just lost: see HeldResponses.was_lost_lately."""
    has_isolated_leaders: "Callable[[], bool]" = field(default=_never)
    """Whether it is isolated, so that another broker is probably the leader of its partitions."""
    authorizer: "Authorizer" = field(default_factory=AllowAll)
    audit: Audit = field(default_factory=_system_audit)
    tls: "TlsListeners | None" = None
    """The contexts of listeners with TLS; None if no listener uses it."""
    quotas: QuotaTable = field(init=False)
    """The quotas that this broker applies; the server updates it."""

    def __post_init__(self) -> None:
        default = self.config.get_int("quota.producer.default")
        self.quotas = QuotaTable(
            self.clock.monotonic,
            0.0 if default == LONG_MAX else float(default),
            self.config.get_int("controller.quota.window.num")
            * self.config.get_int("controller.quota.window.size.seconds"),
        )
