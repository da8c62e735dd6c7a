"""A producer machine, and a scripted broker's log that it writes to."""

from collections.abc import Callable
from typing import Any

from headrace.client.core import lookups
from headrace.client.core.options import ProducerOptions
from headrace.client.produce.batches import Delivery
from headrace.client.produce.producer_machine import ProducerMachine
from headrace.record.batch import Batch, read_batch
from headrace.record.decode import read_records
from headrace.wire.apis import INIT_PRODUCER_ID, PRODUCE
from tests.unit.client.engine_scenario import Drop, Silence, World


class Log:
    """A broker's partitions: it appends, checks sequences, and remembers five batches."""

    def __init__(self, world: World) -> None:
        self.values: dict[int, list[bytes]] = {}
        self.batches: list[Batch] = []
        self.faults: list[Callable[[], int]] = []
        """What to do with the next batches instead: return a code, or raise Drop or Silence."""
        self.after_append: list[Callable[[], int]] = []
        """The same, once the batch has been appended."""
        self.size_max = 1_000_000
        self._producers: dict[tuple[int, int], tuple[int, list[tuple[int, int]]]] = {}
        self._expected: dict[tuple[int, int], int] = {}
        self._next_id = 100
        world.answers[PRODUCE] = self.produce
        world.answers[INIT_PRODUCER_ID] = self.init

    def init(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        self._next_id += 1
        return {"error_code": 0, "producer_id": self._next_id, "producer_epoch": 0}

    def produce(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        topics = [
            {
                "name": topic.get("name"),
                "topic_id": topic.get("topic_id"),
                "partition_responses": [self._append(part) for part in topic["partition_data"]],
            }
            for topic in request["topic_data"]
        ]
        return {"responses": topics}

    def _append(self, part: dict[str, Any]) -> dict[str, Any]:
        data: bytes = part["records"]
        batch = read_batch(data, 0, len(data))
        self.batches.append(batch)
        offset, code = -1, 0
        if self.faults:
            code = self.faults.pop(0)()
        if len(data) > self.size_max:
            code = 10
        if code == 0:
            offset, code = self._store(part["index"], batch)
        if self.after_append:
            code = self.after_append.pop(0)() or code
        return {"index": part["index"], "error_code": code, "base_offset": offset}

    def _store(self, index: int, batch: Batch) -> tuple[int, int]:
        values = self.values.setdefault(index, [])
        if batch.producer_id >= 0:
            key = (index, int(batch.producer_id))
            epoch, recent = self._producers.get(key, (int(batch.producer_epoch), []))
            if batch.producer_epoch < epoch:
                return -1, 47
            if batch.producer_epoch > epoch:
                if batch.base_sequence != 0:
                    return -1, 45
                recent = []
            for sequence, offset in recent:
                if sequence == batch.base_sequence:
                    return offset, 0
            expected = self._expected.get(key, 0) if recent else batch.base_sequence
            if batch.base_sequence != expected:
                return -1, 45
            recent = [*recent, (int(batch.base_sequence), len(values))][-5:]
            self._producers[key] = (int(batch.producer_epoch), recent)
            self._expected[key] = int(batch.base_sequence + batch.record_count)
        offset = len(values)
        values += [record.value or b"" for record in read_records(batch)]
        return offset, 0


class Scene:
    def __init__(self, world: World | None = None, **settings: Any) -> None:
        self.world = world or World()
        self.log = Log(self.world)
        settings.setdefault("linger_ms", 0)
        self.machine = ProducerMachine(self.world.engine, ProducerOptions(**settings))
        self.world.engine.attach(self.machine)
        engine = self.world.engine
        self.world.run(engine.start(lookups.ensure_topics(engine, ["t"], create=False)))

    def append(self, value: bytes = b"v", **arguments: Any) -> Delivery:
        arguments.setdefault("timestamp_ms", 5)
        return self.machine.append("t", value, now_ms=self.world.now_ms, **arguments)

    def flush(self) -> None:
        self.world.run(self.machine.flush())

    def sequences(self) -> list[int]:
        return [int(batch.base_sequence) for batch in self.log.batches]


def fault(code: int) -> Callable[[], int]:
    return lambda: code


def drop() -> int:
    raise Drop


def silence() -> int:
    raise Silence
