"""What producers and consumers are to the engine, and the engine to them."""

from random import Random
from typing import Protocol, TypeVar

from headrace.client.connection import Request
from headrace.client.errors import ClientError
from headrace.client.metadata import Cluster
from headrace.client.operation import Operation, Outcome
from headrace.client.options import ClientOptions

T = TypeVar("T")


class Machine(Protocol):
    """A producer or consumer, as the engine drives it."""

    def poll(self, now_ms: float) -> None:
        """Do what is due."""

    def next_wakeup_ms(self) -> float | None: ...
    def close(self, error: ClientError, now_ms: float) -> None: ...


class Port(Protocol):
    """What a machine needs of the engine."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def options(self) -> ClientOptions: ...
    @property
    def random(self) -> Random: ...
    @property
    def now_ms(self) -> float: ...
    def send(self, node: int, request: Request) -> None: ...
    def want_metadata(self) -> None: ...
    def start(self, operation: Operation[T]) -> Outcome[T]: ...
    def unreachable(self) -> ClientError | None: ...
    def forget_topic(self, topic: str) -> None: ...
