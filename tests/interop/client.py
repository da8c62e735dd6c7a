"""What the tests ask of every real client, in one vocabulary.

Each adapter puts a client's own API under these few verbs and adds nothing to it: no retries, no
defaults but the client's, and errors by their Kafka number.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.model.errors import ErrorCode

TIMEOUT_S = 30.0
# Recent, because a log deletes records with timestamps older than a week.
BASE_MS = int(time.time() * 1000) - 3_600_000


@dataclass(frozen=True)
class Record:
    """One record that is passed to a producer or returned by a consumer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Stored:
    """One record that a consumer returned."""

    offset: int
    record: Record


class Refused(Exception):
    """The broker returned an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class Client(Protocol):
    """A real client at one address. Partition 0 is meant where no partition is named."""

    def __init__(self, address: str) -> None: ...

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Sends the records and returns their offsets (which mean nothing with acks 0)."""

    def consume(
        self, topic: str, count: int, *, offset: int = 0, partition: int = 0
    ) -> list[Stored]:
        """Reads `count` records from `offset` on, by assignment."""

    def read_at(self, topic: str, offsets: Sequence[int]) -> list[Stored]:
        """With one consumer: seeks to each offset in turn and reads one record there."""

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The log start offset and the high watermark."""

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not lower, or None past the end."""

    def partitions(self, topic: str) -> dict[int, int]:
        """From metadata: each partition with its leader."""

    def brokers(self) -> dict[int, str]:
        """From metadata: each broker's address."""

    def topics(self) -> set[str]: ...

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def create_partitions(self, topic: str, total: int) -> None: ...

    def topic_configs(self, topic: str) -> dict[str, str | None]: ...

    def broker_configs(self, node: int) -> dict[str, str | None]: ...

    def alter_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None: ...

    def delete_records(self, topic: str, before: int) -> int:
        """Deletes the records before an offset and returns the new log start offset."""


def wait_for_topic(client: Client, topic: str, partitions: int = 1) -> None:
    """Until metadata shows the topic: in a cluster that may be later than its creation."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            found = client.partitions(topic)
        except Refused as refused:
            if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            found = {}
        if len(found) == partitions and min(found.values()) >= 0:
            return
        assert time.monotonic() < deadline, f"metadata shows {found} of {topic}"
