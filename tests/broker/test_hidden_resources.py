"""No response reveals that a topic or a group exists, to a user who cannot describe it.

Each API gets random requests in pairs. One is about a topic and a group that exist, the other about
names that do not. Apart from the names, both responses must have the same bytes.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.client import GroupOffset, connect
from headrace.model.topics import TopicPartition
from headrace.wire import apis
from headrace.wire.apis import APIS, Api
from headrace.wire.codec import encode_request
from headrace.wire.schema import load_shape
from tests.broker.raw import RawConnection, framed
from tests.broker.test_acls import Controlled
from tests.wire.messages import random_message

HIDDEN, ABSENT = "resource-hidden", "resource-absent"
PAIRS = 8
LOGIN = {apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE}


@pytest.fixture(scope="module")
def controlled() -> Iterator[Controlled]:
    controlled = Controlled()
    controlled.create("bob")
    controlled.create_topic(HIDDEN)
    with connect(f"127.0.0.1:{controlled.open_port}") as admin:
        admin.produce(HIDDEN, "value")
        admin.commit_group_offsets(HIDDEN, {TopicPartition(HIDDEN, 0): GroupOffset(1)})
    yield controlled
    controlled.broker.stop()
    log = controlled.broker.log()
    controlled.broker.close()
    assert "internal error" not in log


def about(value: Any, name: str, rng: Random, field: str = "") -> Any:
    """The same request with this name in all fields for names, and one element per list."""
    if isinstance(value, dict):
        return {key: about(each, name, rng, key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [about(each, name, rng, field) for each in value[:1]]
    if isinstance(value, str):
        return name
    return value


def response(connection: RawConnection, api: Api, version: int, request: Any) -> bytes:
    connection.send(framed(encode_request(api.key, version, 7, "raw", request)))
    return connection.read_frame()


@pytest.mark.parametrize(
    "api",
    [api for api in APIS.values() if not api.is_internal and api.key not in LOGIN],
    ids=lambda api: api.name,
)
def test_response_does_not_reveal_what_exists(controlled: Controlled, api: Api) -> None:
    rng = Random(f"hidden {api.name}")
    for _ in range(PAIRS):
        # Requests of Produce before version 3 are rejected, whatever they contain.
        oldest = 3 if api.key == apis.PRODUCE else api.version_min
        version = rng.randint(oldest, api.version_max)
        message = about(random_message(rng, load_shape(api.schema, version, "request")), "?", rng)
        for name in ("timeout_ms", "max_wait_ms"):
            if name in message:
                message[name] = 100
        if api.key == apis.FETCH:
            # The id of a session is random.
            message.update(session_id=0, session_epoch=-1)
        found: list[bytes | str] = []
        for name in (HIDDEN, ABSENT):
            with controlled.connect("bob") as bob:
                try:
                    data = response(bob, api, version, about(message, name, rng))
                except ConnectionError:
                    found.append("closed")
                else:
                    found.append(data.replace(name.encode(), b"?"))
        assert found[0] == found[1], (version, message)
