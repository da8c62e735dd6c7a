"""The result of a sent record, for asyncio programs."""

from collections.abc import Generator

from headrace.client.aio.driver import Driver
from headrace.client.core.operation import Outcome
from headrace.client.core.values import RecordMetadata
from headrace.client.produce import batches
from headrace.client.produce.producer_machine import ProducerMachine


class Delivery:
    """A sent record. `await` it for its position, or call `flush` of the producer."""

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

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        return self.result().__await__()

    async def result(self) -> RecordMetadata:
        """Wait until the record is written, and return its position."""
        if not self._delivery.done:
            outcome: Outcome[None] = Outcome()
            self._delivery.on_done(lambda: outcome.succeed(None))
            self._machine.send_without_linger(self._delivery)
            await self._driver.wait(outcome)
        return self._delivery.result()
