"""Every advertised API at every version, from a random request to a response that kio reads."""

import asyncio
import inspect
import logging
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
from kio.serial import entity_reader

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.requests.token_requests import TOKEN_APIS
from headrace.wire.apis import (
    API_VERSIONS,
    APIS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
    OFFSET_COMMIT,
    Api,
)
from headrace.wire.codec import MalformedRequest, Message, decode_request, decode_response
from headrace.wire.header import read_header
from headrace.wire.schema import Shape, load_shape
from tests.unit.handlers.handler_scenario import Asker, asker
from tests.wire.messages import COLD_VERSIONS, kio_entity_type, random_message, versions_of

cold_versions = pytest.mark.parametrize(
    ("api", "version"), COLD_VERSIONS, ids=[f"{api.name}-{v}" for api, v in COLD_VERSIONS]
)
cold_apis = pytest.mark.parametrize(
    "api",
    {api.key: api for api, _ in COLD_VERSIONS if api.key != OFFSET_COMMIT}.values(),
    ids=lambda api: str(api.name),
)


def _aimed(rng: Random, request: Message, broker: Asker) -> Message:
    """The request with some of its names and partitions pointed at what exists."""
    known = [*broker.broker.image.topics, "no-such-topic"]
    for key, value in request.items():
        if isinstance(value, list):
            for position, item in enumerate(value):
                if isinstance(item, dict):
                    _aimed(rng, item, broker)
                elif isinstance(item, str) and rng.random() < 0.7:
                    value[position] = rng.choice(known)
        elif key in ("name", "topic", "resource_name") and rng.random() < 0.7:
            request[key] = rng.choice([*known, "", "1", "retention.ms", "cleanup.policy"])
        elif key in ("partition_index", "partition") and rng.random() < 0.7:
            request[key] = rng.randrange(3)
        elif key in ("resource_type", "config_operation") and rng.random() < 0.8:
            request[key] = rng.choice((0, 1, 2, 3, 4, 8))
        elif key == "topic_id" and rng.random() < 0.5:
            request[key] = rng.choice([None, *broker.broker.image.names_by_id])
        elif key == "timestamp" and rng.random() < 0.8:
            request[key] = rng.randrange(-7, 3)
    return request


def _a_broker() -> Asker:
    client = asker()
    client.add_topic("orders", partitions=3)
    client.add_topic("compacted", cleanup_policy="compact")
    return client


@cold_versions
def test_random_request_gets_a_response_that_kio_reads(
    api: Api, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = Random(f"requests of {api.key}/{version}")
    shape = load_shape(api.schema, version, "request")
    read = entity_reader(kio_entity_type(api.schema, version, "response"))
    client = _a_broker()
    for _ in range(12):
        body = _aimed(rng, random_message(rng, shape), client)
        answer = client.answer(client.frame(api.key, version, body))
        if api.key in TOKEN_APIS:
            # kio cannot read -1, the time in a response without a token.
            decode_response(api.key, version, answer)
            continue
        header_size = 5 if api.is_flexible(version) else 4
        _, size = read(answer, header_size)
        assert header_size + size == len(answer)
    assert not caplog.records


@cold_apis
def test_a_reply_has_no_field_that_no_version_knows(api: Api) -> None:
    known: dict[str, Any] = {}
    for version in versions_of(api):
        _merge(known, load_shape(api.schema, version, "response"))
    rng = Random(f"replies of {api.key}")
    client = _a_broker()
    handler = import_module(f"headrace.handlers.{api.schema}")
    for version in versions_of(api):
        shape = load_shape(api.schema, version, "request")
        for _ in range(6):
            body = _aimed(rng, random_message(rng, shape), client)
            context = RequestContext(api.key, version, 1, None, "peer", "PLAINTEXT")
            try:
                reply = handler.handle(client.broker, context, body)
                reply = asyncio.run(reply) if inspect.iscoroutine(reply) else reply
            except ApiError as error:
                reply = handler.error_response(body, error)
            _check_known(reply, known)


def _merge(known: dict[str, Any], shape: Shape) -> None:
    for field in shape.fields:
        below = known.setdefault(field.name, {})
        if field.struct is not None:
            _merge(below, field.struct)


def _check_known(reply: Message, known: dict[str, Any]) -> None:
    for name, value in reply.items():
        assert name in known
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, dict):
                _check_known(item, known[name])


@cold_apis
def test_internal_error_is_logged_with_the_api_and_returned(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Message:
        raise RuntimeError("a bug")

    monkeypatch.setattr(f"headrace.handlers.{api.schema}.handle", fail)
    # These requests need a login, which the client here has not.
    monkeypatch.setattr("headrace.requests.permissions.check_token_request", lambda *_: None)
    rng = Random(api.key)
    for version in versions_of(api):
        body = random_message(rng, load_shape(api.schema, version, "request"))
        if body.get("topics", True) in (None, []):
            continue
        caplog.clear()
        client = asker()
        reply = client.ask(api.key, version, body)
        (record,) = caplog.records
        assert api.name in record.getMessage()
        assert record.exc_info is not None
        codes = set(_error_codes(reply))
        assert codes <= {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert codes or not _has_items_throughout(reply)


def _error_codes(reply: Message) -> list[int]:
    codes = [reply["error_code"]] if "error_code" in reply else []
    for value in reply.values():
        if isinstance(value, list):
            codes += [
                code for item in value if isinstance(item, dict) for code in _error_codes(item)
            ]
    return codes


def _has_items_throughout(reply: Message) -> bool:
    lists = [value for value in reply.values() if isinstance(value, list)]
    return any(
        items and all(not isinstance(item, dict) or _has_items_throughout(item) for item in items)
        for items in lists
    )


def test_failure_of_a_waiting_request_is_returned(caplog: pytest.LogCaptureFixture) -> None:
    client = asker()
    client.controller.fail_with = RuntimeError("a bug")
    topics = [{"name": "new"}]
    reply = client.ask(METADATA, 9, {"topics": topics, "allow_auto_topic_creation": True})
    assert reply["topics"][0]["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "api=Metadata version=9 peer=127.0.0.1:1" in caplog.text


def test_api_versions_gets_a_response_without_a_handler() -> None:
    client = asker()
    body = {"client_software_name": "a", "client_software_version": "1"}
    reply = client.ask(API_VERSIONS, 4, body)
    advertised = [row["api_key"] for row in reply["api_keys"]]
    assert advertised == [api.key for api in APIS.values() if not api.is_internal]


def test_every_advertised_api_has_a_handler_named_after_it() -> None:
    for api in APIS.values():
        assert find_spec(f"headrace.handlers.{api.schema}") is not None


def test_requests_between_brokers_are_rejected_on_other_listeners() -> None:
    client = asker()
    between_brokers = [api for api in APIS.values() if api.is_internal]
    assert len(between_brokers) == 5
    for api in between_brokers:
        frame = client.frame(api.key, api.version_max, {})
        header = read_header(frame)
        context = RequestContext(*header[:4], peer="127.0.0.1:1", listener="PLAINTEXT")
        with pytest.raises(MalformedRequest, match="inter-broker"):
            handle_frame(client.broker, context, frame, header.body_at)
    assert client.controller.served == []


@cold_versions
def test_mutated_frame_gets_a_response_or_is_rejected(
    api: Api, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = Random(f"mutations for {api.key}/{version}")
    shape = load_shape(api.schema, version, "request")
    client = _a_broker()
    for _ in range(10):
        frame = client.frame(api.key, version, _aimed(rng, random_message(rng, shape), client))
        for _ in range(4):
            bad = bytearray(frame)
            for _ in range(rng.choice((1, 2, 4))):
                bad[rng.randrange(8, len(bad))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            if rng.random() < 0.3:
                del bad[rng.randrange(8, len(bad)) :]
            _survive(client, bytes(bad))
    assert not caplog.records


def _survive(client: Asker, frame: bytes) -> None:
    try:
        assert client.answer(frame)
    except MalformedRequest:
        return
    except ApiError:
        header = read_header(frame)
        body = decode_request(header.api_key, header.api_version, frame, header.body_at)
        assert (header.api_key, body["topics"]) == (DESCRIBE_TOPIC_PARTITIONS, [])


def test_dispatch_logs_nothing_for_a_frame_that_breaks_the_protocol(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    context = RequestContext(METADATA, 12, 1, None, "peer", "PLAINTEXT")
    with pytest.raises(MalformedRequest):
        handle_frame(asker().broker, context, b"\xff\xff\xff\xff\x0f", 0)
    assert not caplog.records
