"""The handlers of topics, settings and producer ids over the real controller and its store."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.coordination.embedded import EmbeddedStore
from headrace.env.clock import SystemClock
from headrace.model.cluster import Endpoint
from headrace.model.errors import ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.wire.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
)
from headrace.wire.codec import Message, decode_response, encode_request
from headrace.wire.header import read_header

Ask = Callable[[int, int, Mapping[str, Any]], Awaitable[Message]]


def _with_a_controller(
    path: Path,
    scene: Callable[[Ask, Controller], Awaitable[None]],
    config: BrokerConfig | None = None,
) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(str(path / "store.db"))
        controller = Controller(store, 1)
        await controller.start([Endpoint("PLAINTEXT", "localhost", 9092)], cluster_id="one")
        broker = BrokerContext(
            node_id=1,
            image=controller.image,
            config=config or BrokerConfig.load(),
            controller=controller,
            logs=cast(Any, None),
            partitions={},
            clock=SystemClock(),
            worker=cast(Any, None),
            groups=cast(Any, None),
        )

        async def ask(api_key: int, version: int, body: Mapping[str, Any]) -> Message:
            frame = encode_request(api_key, version, 1, "test", body)
            header = read_header(frame)
            context = RequestContext(*header[:4], peer="test", listener="PLAINTEXT")
            answer = handle_frame(broker, context, frame, header.body_at)
            answer = await answer if inspect.isawaitable(answer) else answer
            return decode_response(api_key, version, answer)[1]

        try:
            await scene(ask, controller)
        finally:
            await controller.stop()
            await store.close()

    asyncio.run(run())


def _codes(slots: list[Message]) -> list[int]:
    return [slot["error_code"] for slot in slots]


def test_a_topic_lives_from_its_creation_to_its_deletion(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        new = {"name": "t", "num_partitions": 2, "replication_factor": -1}
        made = await ask(CREATE_TOPICS, 7, {"topics": [new], "timeout_ms": 5000})
        assert _codes(made["topics"]) == [0]
        topic_id = made["topics"][0]["topic_id"]
        change = {"name": "retention.ms", "config_operation": 0, "value": "7"}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [change]}
        reply = await ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert _codes(reply["responses"]) == [0]
        more = {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout_ms": 5000}
        assert _codes((await ask(CREATE_PARTITIONS, 3, more))["results"]) == [0]
        topic = controller.image.topics["t"]
        assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "7"})
        gone = {"topics": [{"name": None, "topic_id": topic_id}], "timeout_ms": 5000}
        assert _codes((await ask(DELETE_TOPICS, 6, gone))["responses"]) == [0]
        assert controller.image.topics == {}

    _with_a_controller(tmp_path, scene)


def test_invalid_topics_are_rejected_each_with_its_code(tmp_path: Path) -> None:
    def new(name: str, **said: Any) -> Message:
        return {"name": name, "num_partitions": -1, "replication_factor": -1, **said}

    async def scene(ask: Ask, controller: Controller) -> None:
        unknown_broker = [{"partition_index": 0, "broker_ids": [9]}]
        topics = [
            new("many", num_partitions=1_000_000),
            new("none", num_partitions=0),
            new("wide", replication_factor=100),
            new("far", assignments=unknown_broker),
            new("__consumer_offsets"),
            new("../../etc/x"),
            new("good"),
        ]
        reply = await ask(CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 5000})
        assert _codes(reply["topics"]) == [
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_TOPIC,
            ErrorCode.INVALID_TOPIC,
            0,
        ]
        assert list(controller.image.topics) == ["good"]

    _with_a_controller(tmp_path, scene)


def test_two_clients_that_want_a_missing_topic_get_the_same_one(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        replies = await asyncio.gather(*(ask(METADATA, 12, asked) for _ in range(5)))
        ids = {reply["topics"][0]["topic_id"] for reply in replies}
        assert [_codes(reply["topics"]) for reply in replies] == [[0]] * 5
        assert ids == {controller.image.topics["new"].topic_id}

    _with_a_controller(tmp_path, scene)


def test_simultaneous_requests_get_different_producer_ids(tmp_path: Path) -> None:
    async def scene(ask: Ask, _: Controller) -> None:
        body = {"transactional_id": None, "transaction_timeout_ms": 1}
        replies = await asyncio.gather(*(ask(INIT_PRODUCER_ID, 4, body) for _ in range(1500)))
        assert len({reply["producer_id"] for reply in replies}) == 1500

    _with_a_controller(tmp_path, scene)
