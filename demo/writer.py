"""Writes the events with confluent-kafka, and notes which records are acknowledged."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

QUIET = {"log_level": 0, "error_cb": lambda error: None}
PAUSE_EVERY = 50


class Writer(threading.Thread):
    """Writes half of the messages immediately, and the others slowly after `resume` is set."""

    def __init__(self, address: str, messages: Sequence[Any], slow_seconds: float) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[tuple[int, int]] = set()
        """The partition and offset of each acknowledged record."""
        self.failures: list[str] = []
        self.resume = threading.Event()
        self._messages = messages
        self._pause_s = slow_seconds * PAUSE_EVERY * 2 / len(messages)
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(settings | QUIET)

    def run(self) -> None:
        half = len(self._messages) // 2
        for number, message in enumerate(self._messages):
            if number == half:
                self._producer.flush()
                self.resume.wait()
            self._producer.produce(
                "orders",
                key=message.key,
                value=message.value,
                timestamp=int(message.at.timestamp() * 1000),
                on_delivery=self._delivered,
            )
            if number % PAUSE_EVERY == 0:
                time.sleep(self._pause_s if number > half else 0)
                self._producer.poll(0)
        self._producer.flush()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.add((message.partition(), message.offset()))
