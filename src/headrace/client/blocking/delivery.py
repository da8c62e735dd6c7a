"""The result of a sent record, for programs without an event loop."""

from headrace.client.blocking.driver import Driver
from headrace.client.core.errors import TimedOut
from headrace.client.core.values import RecordMetadata
from headrace.client.produce import batches
from headrace.client.produce.producer_machine import ProducerMachine


class Delivery:
    """A sent record. Call `result` for its position, or `flush` of the producer."""

    __slots__ = ("_delivery", "_driver", "_machine")

    def __init__(
        self, driver: Driver, machine: ProducerMachine, delivery: batches.Delivery
    ) -> None:
        self._driver = driver
        self._machine = machine
        self._delivery = delivery

    @property
    def done(self) -> bool:
        return self._delivery.done

    def result(self, timeout_ms: float | None = None) -> RecordMetadata:
        """Wait until the record is written, and return its position."""
        if not self._delivery.done:
            self._machine.send_without_linger(self._delivery)
            deadline_ms = None if timeout_ms is None else self._driver.now_ms() + timeout_ms
            if not self._driver.do_io_until(self._delivery, deadline_ms):
                raise TimedOut(
                    f"the record was not acknowledged in {timeout_ms} ms; it can still be written"
                )
        return self._delivery.result()
