"""What administrators and consumer groups do while things break, and what they were promised."""

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from tests.simulation.clients import RETRIED, Client
from tests.simulation.history import FAR, Violation
from tests.simulation.topics import Topic

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
DELETE_TOPICS, DELETE_RECORDS, INCREMENTAL_ALTER_CONFIGS = 20, 21, 44
BROKER_RESOURCE = 4
SET, DELETE = 0, 1
HIGH_WATERMARK = -1
LOG_END_SLACK = 50


class Trimmer(Client):
    """Deletes records from the start of a partition now and then."""

    def __init__(
        self,
        *args: Any,
        topic: Topic,
        log_end: Callable[[TopicPartition], int],
        out_of_sync: Callable[[TopicPartition], set[int]],
    ) -> None:
        super().__init__(*args)
        self.topic = topic.name
        self.is_stopping = False
        self.is_done = False
        self._spec = topic
        self._log_end = log_end
        """The greatest log end offset of all replicas."""
        self._out_of_sync = out_of_sync

    async def run(self) -> None:
        generator = self.world.random
        while not self.is_stopping:
            await asyncio.sleep(generator.uniform(0.5, 4.0))
            await self.trim(generator.randrange(self._spec.partitions))
        self.is_done = True

    async def trim(self, index: int) -> None:
        """Delete records of a partition, once."""
        if index not in self.leaders:
            await self.refresh()
        if index not in self.leaders:
            return
        history, partition = self.history, TopicPartition(self.topic, index)
        host, epoch = self.leaders[index]
        ends = history.ends(partition, epoch)
        offset = HIGH_WATERMARK
        if self.world.random.random() < 0.7:
            offset = self.world.random.randint(ends.log_start_offset, ends.high_watermark)
        before = history.removed_to[partition]
        history.removed_to[partition] = FAR if offset == HIGH_WATERMARK else max(before, offset)
        asked = {"partition_index": index, "offset": offset}
        request = {"topics": [{"name": self.topic, "partitions": [asked]}], "timeout_ms": 1500}
        answer = await self.ask_once(host, DELETE_RECORDS, 2, request)
        if offset == HIGH_WATERMARK:
            # The leader might be dead, with records that no other client has read.
            slack = LOG_END_SLACK if answer is None else 0
            history.removed_to[partition] = max(before, self._log_end(partition) + slack)
        if answer is None:
            self.leaders.pop(index, None)
            return
        response = answer["topics"][0]["partitions"][0]
        code, start = response["error_code"], response["low_watermark"]
        if code == ErrorCode.NONE:
            if start < offset:
                raise Violation(f"records of {partition} below {offset} are deleted: from {start}")
            history.deleted_to[partition] = max(history.deleted_to[partition], offset, start)
            history.deleted_without[partition] |= self._out_of_sync(partition)
        elif code in RETRIED:
            self.leaders.pop(index, None)
        elif code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation(f"DeleteRecords of {partition} received {ErrorCode(code)!r}")


class Recreator(Client):
    """Deletes a topic and creates it again."""

    def __init__(self, *args: Any, topic: Topic, replicas: int) -> None:
        super().__init__(*args)
        self.is_stopping = False
        self.is_done = False
        self._spec = topic
        self._replicas = replicas

    async def run(self) -> None:
        generator = self.world.random
        while not self.is_stopping:
            await asyncio.sleep(generator.uniform(1.0, 6.0))
            if not self.is_stopping:
                await self._delete()
                await asyncio.sleep(generator.choice((0.0, 0.1, 1.5)))
                await self._create()
        # A request that a broker forwarded late may have deleted it once more.
        await self._create()
        self.is_done = True

    async def _delete(self) -> None:
        self._spec.incarnation = None
        request = {"topic_names": [self._spec.name], "timeout_ms": 2000}
        while True:
            host = self.world.random.choice(self._hosts)
            answer = await self.ask_once(host, DELETE_TOPICS, 5, request)
            if answer is not None:
                code = answer["responses"][0]["error_code"]
                if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    return
            await self.pause()

    async def _create(self) -> None:
        topic_id = await self.create_topic(self._spec, self._replicas)
        if topic_id is not None:
            self._spec.incarnations += 1
            self._spec.incarnation = topic_id


class Committer(Client):
    """Commits rising offsets for a group, and fetches them: an acknowledged one is never lost."""

    def __init__(self, *args: Any, topic: Topic, group: str) -> None:
        super().__init__(*args)
        self.topic = topic.name
        self.is_stopping = False
        self.is_done = False
        self._spec = topic
        self._group = group
        self._coordinator = ""
        self._committed: dict[int, int] = {}
        self._in_doubt: dict[int, list[int]] = {}
        """Later commits without a response."""

    async def run(self) -> None:
        generator, number = self.world.random, 0
        while not self.is_stopping:
            number += 1
            if generator.random() < 0.7:
                await self._commit(generator.randrange(self._spec.partitions), number)
            else:
                await self._fetch()
            await asyncio.sleep(generator.uniform(0.01, 0.5))
        while not await self._fetch():
            await self.pause()
        self.is_done = True

    async def _ask_coordinator(self, key: int, version: int, request: dict[str, Any]) -> Any:
        if not self._coordinator:
            found = await self.ask_any(FIND_COORDINATOR, 3, {"key": self._group, "key_type": 0})
            if found["error_code"] != ErrorCode.NONE:
                await self.pause()
                return None
            self._coordinator = found["host"]
        answer = await self.ask_once(self._coordinator, key, version, request)
        if answer is None:
            self._coordinator = ""
        return answer

    async def _commit(self, index: int, number: int) -> None:
        partition = {"partition_index": index, "committed_offset": number}
        request = {
            "group_id": self._group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": self.topic, "partitions": [partition]}],
        }
        self._in_doubt.setdefault(index, []).append(number)
        answer = await self._ask_coordinator(OFFSET_COMMIT, 8, request)
        if answer is None:
            return
        code = answer["topics"][0]["partitions"][0]["error_code"]
        if code == ErrorCode.NONE:
            self._committed[index] = number
            self._in_doubt[index].clear()
        else:
            self._check_retried(code)

    async def _fetch(self) -> bool:
        indexes = list(range(self._spec.partitions))
        topics = [{"name": self.topic, "partition_indexes": indexes}]
        request = {"group_id": self._group, "topics": topics, "require_stable": True}
        answer = await self._ask_coordinator(OFFSET_FETCH, 7, request)
        if answer is None:
            return False
        partitions = answer["topics"][0]["partitions"] if answer["topics"] else []
        for code in (answer["error_code"], *(each["error_code"] for each in partitions)):
            if code != ErrorCode.NONE:
                self._check_retried(code)
                return False
        for each in partitions:
            self._check_committed(each["partition_index"], each["committed_offset"])
        return True

    def _check_committed(self, index: int, offset: int) -> None:
        committed = self._committed.get(index, -1)
        in_doubt = self._in_doubt.get(index, [])
        if offset in in_doubt:
            # It is committed: neither it nor those before it are in doubt.
            self._committed[index] = offset
            del in_doubt[: in_doubt.index(offset) + 1]
        elif offset != committed:
            raise Violation(
                f"I21: {self._group} committed {committed} for {self.topic}-{index} "
                f"(in doubt: {in_doubt}), and fetched {offset}"
            )

    def _check_retried(self, code: int) -> None:
        if code not in RETRIED and code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            raise Violation(f"group {self._group} received {ErrorCode(code)!r}")
        self._coordinator = ""


class Throttler(Client):
    """Limits how fast replicas that are behind are copied, on all brokers."""

    _RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.wanted: int | None = None
        """Bytes per second; None for no limit."""
        self.is_done = True
        self._is_running = False

    def limit(self, rate: int | None) -> None:
        self.wanted = rate
        self.is_done = False
        if not self._is_running:
            self._is_running = True
            self.process.spawn(self._run())

    async def _run(self) -> None:
        while not self.is_done:
            rate = self.wanted
            operation = DELETE if rate is None else SET
            configs = [
                {"name": name, "config_operation": operation, "value": rate and str(rate)}
                for name in self._RATES
            ]
            resource = {"resource_type": BROKER_RESOURCE, "resource_name": "", "configs": configs}
            request = {"resources": [resource], "validate_only": False}
            answer = await self.ask_any(INCREMENTAL_ALTER_CONFIGS, 1, request)
            code = answer["responses"][0]["error_code"]
            self.is_done = code == ErrorCode.NONE and rate == self.wanted
            if code != ErrorCode.NONE:
                await self.pause()
        self._is_running = False
