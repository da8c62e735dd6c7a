"""The shop's events, written by a real client: confluent-kafka, with acknowledgements counted."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

QUIET = {"log_level": 0, "error_cb": lambda error: None}
AT_ONCE = 50


class Writer(threading.Thread):
    """Writes half of the messages at once, and the others slowly, when it may go on."""

    def __init__(self, address: str, messages: Sequence[Any], slow_seconds: float) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[tuple[int, int]] = set()
        """Partition and offset of each."""
        self.failures: list[str] = []
        self.may_go_on = threading.Event()
        self._messages = messages
        self._pause_s = slow_seconds * AT_ONCE * 2 / len(messages)
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(settings | QUIET)

    def run(self) -> None:
        half = len(self._messages) // 2
        for number, message in enumerate(self._messages):
            if number == half:
                self._producer.flush()
                self.may_go_on.wait()
            self._producer.produce(
                "orders",
                key=message.key,
                value=message.value,
                timestamp=int(message.at.timestamp() * 1000),
                on_delivery=self._delivered,
            )
            if number % AT_ONCE == 0:
                time.sleep(self._pause_s if number > half else 0)
                self._producer.poll(0)
        self._producer.flush()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.add((message.partition(), message.offset()))
