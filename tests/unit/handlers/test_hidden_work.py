"""The work for a request does not reveal that a topic or group exists, to users who cannot see it.

Each request is sent twice: about names that exist, and about names that do not. The broker must
call the same Python functions, as often. Otherwise, the time of the response would differ.
"""

import gc
import sys
from collections import Counter
from collections.abc import Iterable
from random import Random
from types import FrameType
from typing import Any

import pytest

from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition
from headrace.wire import apis
from headrace.wire.apis import Api
from headrace.wire.schema import load_shape
from tests.broker.test_hidden_resources import about
from tests.unit.handlers.authorization_scenario import Rules
from tests.unit.handlers.handler_scenario import Asker, asker
from tests.wire.messages import COLD_VERSIONS, random_message

HIDDEN, ABSENT = "hidden", "absent"
ROUNDS = 30


class DenyAll(Rules):
    def allows(self, *question: Any) -> bool:
        self.questions.append(question)
        return False


def consume(partitions: Iterable[TopicPartition], _: int) -> None:
    """In place of a broker that checks whether each partition has a leader."""
    list(partitions)


@pytest.fixture
def client() -> Asker:
    client = asker()
    client.add_topic(HIDDEN)
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": HIDDEN, "partitions": [partition]}]
    member = {"generation_id_or_member_epoch": -1, "member_id": ""}
    client.ask(apis.OFFSET_COMMIT, 8, {"group_id": HIDDEN, **member, "topics": topics})
    client.broker.authorizer = DenyAll()
    client.broker.wait_for_election = consume
    return client


def calls(client: Asker, frame: bytes) -> Counter[str]:
    found: Counter[str] = Counter()

    def count(running: FrameType, event: str, _: object) -> None:
        if event == "call" and "/headrace/" in running.f_code.co_filename:
            found[running.f_code.co_qualname] += 1

    # A collection would count the finalizers of other tests.
    gc.disable()
    sys.setprofile(count)
    try:
        client.answer(frame)
    except ApiError as error:
        found[str(error)] += 1
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


@pytest.mark.parametrize(
    "api",
    {api.key: api for api, _ in COLD_VERSIONS if not api.is_internal}.values(),
    ids=lambda api: str(api.name),
)
def test_work_does_not_reveal_what_exists(client: Asker, api: Api) -> None:
    rng = Random(f"hidden {api.name}")
    for _ in range(ROUNDS):
        version = rng.randint(api.version_min, api.version_max)
        message = about(random_message(rng, load_shape(api.schema, version, "request")), "?", rng)
        frames = [
            client.frame(api.key, version, about(message, name, rng)) for name in (HIDDEN, ABSENT)
        ]
        # The first requests of an API import its handler, and fill caches.
        for frame in frames:
            calls(client, frame)
        found = [calls(client, frame) for frame in frames]
        assert found[0] == found[1], (version, message, found[0] - found[1], found[1] - found[0])
