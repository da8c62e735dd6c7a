"""Quotas on a running broker: each kind of limit, and `headrace quotas`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

import headrace.client
from headrace.model.errors import ErrorCode
from headrace.model.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONSUMER_RECORD_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from headrace.record.decode import read_batches
from headrace.testing import RunningBroker
from headrace.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from headrace.wire.codec import Message
from tests.broker.raw import (
    FETCH,
    FETCH_VERSION,
    METADATA,
    PRODUCE,
    PRODUCE_VERSION,
    RawConnection,
    eventually,
    one_batch,
    values_of,
)

RAW: Mapping[str, str | None] = {CLIENT_ID: "raw"}
"""The client id of RawConnection."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker.start() as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[headrace.client.Client]:
    """An administrator whose client id has no quota. Removes all quotas at the end."""
    with headrace.client.connect(broker.address, client_id="admin") as admin:
        yield admin
        for each in admin.list_quotas():
            admin.alter_quotas(each.entity, dict.fromkeys(each.limits))


@pytest.mark.parametrize(
    ("kind", "limit"), [(PRODUCER_BYTE_RATE, 1.0), (PRODUCER_RECORD_RATE, 1.0)]
)
def test_throttled_producer_is_read_again_when_its_quota_is_deleted(
    broker: RunningBroker, client: headrace.client.Client, kind: str, limit: float
) -> None:
    """The throttle time is longer than this test can take."""
    with RawConnection(broker.port) as connection:
        connection.create_topic(f"throttled-{kind}")
        client.alter_quotas(RAW, {kind: limit})
        records = one_batch(*[b"x" * 10] * 2000)
        connection.send(connection.produce_frame(f"throttled-{kind}", records))
        reply = connection.read_answer(PRODUCE, PRODUCE_VERSION)
        assert reply["responses"][0]["partition_responses"][0]["error_code"] == 0
        assert reply["throttle_time_ms"] > 1_000_000
        connection.send(connection.produce_frame(f"throttled-{kind}", records))
        client.alter_quotas(RAW, {kind: None})
        assert connection.read_answer(PRODUCE, PRODUCE_VERSION)["throttle_time_ms"] == 0


def test_producer_with_acks_0_is_not_read_either(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    with RawConnection(broker.port) as connection, RawConnection(broker.port) as other:
        connection.create_topic("unacknowledged")
        client.alter_quotas(RAW, {PRODUCER_RECORD_RATE: 1.0})
        frame = connection.produce_frame("unacknowledged", one_batch(*[b"x"] * 2000), acks=0)
        connection.send(frame + frame)
        eventually("the first request", lambda: other.end_offset("unacknowledged") >= 2000)
        assert other.end_offset("unacknowledged") == 2000
        client.alter_quotas(RAW, {PRODUCER_RECORD_RATE: None})
        eventually("the second request", lambda: other.end_offset("unacknowledged") == 4000)


def fetch(connection: RawConnection, topic: str, offset: int) -> tuple[list[Message], int, bytes]:
    connection.send(connection.fetch_frame(topic, offset))
    reply = connection.read_answer(FETCH, FETCH_VERSION)
    part = reply["responses"][0]["partitions"][0]
    assert part["error_code"] == 0
    records: bytes = part["records"]
    return values_of(records), reply["throttle_time_ms"], records  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "limit", "records_max"),
    [(CONSUMER_BYTE_RATE, 100_000.0, 120), (CONSUMER_RECORD_RATE, 100.0, 120)],
)
def test_throttled_consumer_gets_small_responses_and_none_is_empty(
    broker: RunningBroker,
    client: headrace.client.Client,
    kind: str,
    limit: float,
    records_max: int,
) -> None:
    topic = f"fetched-{kind}"
    with RawConnection(broker.port) as connection:
        connection.create_topic(topic)
        for first in range(0, 300, 10):
            values = [b"%05d" % number + b"x" * 995 for number in range(first, first + 10)]
            assert connection.produce(topic, one_batch(*values))["error_code"] == 0
        client.alter_quotas(RAW, {kind: limit})
        offset, throttled = 0, 0
        while offset < 300:
            values_found, throttle_ms, records = fetch(connection, topic, offset)
            assert 10 <= len(values_found) <= records_max
            # Complete batches only: a client would pay for the rest, and not use it.
            batches = list(read_batches(records, 0, len(records)))
            assert sum(batch.size() for batch in batches) == len(records)
            assert values_found[0][:5] == b"%05d" % offset  # type: ignore[index]
            offset += len(values_found)
            throttled += throttle_ms > 0
        assert throttled > 3


@pytest.mark.parametrize("kind", [CONSUMER_BYTE_RATE, CONSUMER_RECORD_RATE])
def test_consumer_does_not_evade_its_quota_with_a_connection_per_fetch(
    broker: RunningBroker, client: headrace.client.Client, kind: str
) -> None:
    topic = f"reconnected-{kind}"
    with RawConnection(broker.port) as first:
        first.create_topic(topic)
        assert first.produce(topic, one_batch(*[b"x" * 100] * 1000))["error_code"] == 0
        client.alter_quotas(RAW, {kind: 10.0})
        found, throttle_ms, _ = fetch(first, topic, 0)
        assert len(found) == 1000
        assert throttle_ms > 60_000
        for session_epoch in (-1, 0):
            with RawConnection(broker.port) as other:
                other.send(other.fetch_frame(topic, 0, session_epoch=session_epoch))
                reply = other.read_answer(FETCH, FETCH_VERSION)
                assert (reply["error_code"], reply["session_id"]) == (0, 0)
                assert reply["responses"] == []
                assert reply["throttle_time_ms"] > 60_000
                # A change of the rate does not change what was counted.
                client.alter_quotas(RAW, {kind: 12.0 + session_epoch})
                other.send(other.fetch_frame(topic, 0))
                assert other.read_answer(FETCH, FETCH_VERSION)["responses"] == []


def test_producer_does_not_evade_its_quota_with_a_connection_per_request(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    """The wait is too long to hold the request: its client must send it again."""
    with RawConnection(broker.port) as first:
        first.create_topic("reconnected")
        client.alter_quotas(RAW, {PRODUCER_BYTE_RATE: 10.0})
        assert first.produce("reconnected", one_batch(b"x" * 5000))["error_code"] == 0
        for acks in (1, -1):
            with RawConnection(broker.port) as other:
                other.send(other.produce_frame("reconnected", one_batch(b"x"), acks=acks))
                reply = other.read_answer(PRODUCE, PRODUCE_VERSION)
                part = reply["responses"][0]["partition_responses"][0]
                assert part["error_code"] == ErrorCode.REQUEST_TIMED_OUT
                assert reply["throttle_time_ms"] > 60_000
        with RawConnection(broker.port) as other:
            other.send(other.produce_frame("reconnected", one_batch(b"x"), acks=0))
            with pytest.raises(ConnectionError):
                other.read_frame()
    with RawConnection(broker.port) as reader:
        assert reader.end_offset("reconnected") == 1


def test_request_percentage_is_not_evaded_with_a_connection_per_request(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    body = {"topics": None, "allow_auto_topic_creation": False}
    with RawConnection(broker.port) as first, RawConnection(broker.port) as second:
        client.alter_quotas(RAW, {REQUEST_PERCENTAGE: 1e-7})
        assert first.ask(METADATA, 8, body)["throttle_time_ms"] > 100_000
        second.send(second.frame(METADATA, 8, body))
        second.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            second.read_frame()
        second.sock.settimeout(60)
        client.alter_quotas(RAW, {REQUEST_PERCENTAGE: None})
        assert second.read_answer(METADATA, 8)["throttle_time_ms"] == 0


def test_request_percentage_throttles_requests_of_other_apis(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    with RawConnection(broker.port) as connection:
        client.alter_quotas(RAW, {REQUEST_PERCENTAGE: 1e-7})
        body = {"topics": None, "allow_auto_topic_creation": False}
        reply = connection.ask(METADATA, 8, body)
        assert reply["throttle_time_ms"] > 100_000
        connection.send(connection.frame(METADATA, 8, body))
        client.alter_quotas(RAW, {REQUEST_PERCENTAGE: None})
        assert connection.read_answer(METADATA, 8)["throttle_time_ms"] == 0


def test_request_percentage_throttles_produce_and_fetch(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    with RawConnection(broker.port) as connection:
        connection.create_topic("timed")
        for frame, api_key, version in (
            (connection.produce_frame("timed", one_batch(b"x")), PRODUCE, PRODUCE_VERSION),
            (connection.fetch_frame("timed", 0), FETCH, FETCH_VERSION),
        ):
            client.alter_quotas(RAW, {REQUEST_PERCENTAGE: 1e-7})
            connection.send(frame)
            assert connection.read_answer(api_key, version)["throttle_time_ms"] > 1000
            client.alter_quotas(RAW, {REQUEST_PERCENTAGE: None})


def create(connection: RawConnection, name: str, partitions: int, version: int) -> Message:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    return connection.ask(CREATE_TOPICS, version, {"topics": [topic], "timeout_ms": 30_000})


def test_changes_of_topics_beyond_the_quota_are_rejected_or_delayed(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    """A tenth of a partition per second, saved for 11 seconds: one partition is free."""
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED

    def spend(connection: RawConnection, name: str) -> None:
        client.alter_quotas(RAW, {CONTROLLER_MUTATION_RATE: 0.1})
        reply = create(connection, name, 500, 7)
        assert (reply["topics"][0]["error_code"], reply["throttle_time_ms"]) == (0, 0)

    def released() -> None:
        """The connection is not read for the throttle time: end it."""
        client.alter_quotas(RAW, {CONTROLLER_MUTATION_RATE: 0.101})
        client.alter_quotas(RAW, {CONTROLLER_MUTATION_RATE: 0.1})

    with RawConnection(broker.port) as connection:
        spend(connection, "large")
        reply = create(connection, "rejected", 1, 7)
        assert reply["topics"][0]["error_code"] == exceeded
        assert reply["topics"][0]["error_message"] == "The throttling quota has been exceeded."
        assert reply["throttle_time_ms"] > 100_000
        released()
        deletion = {"topics": [{"name": "large", "topic_id": None}], "timeout_ms": 30_000}
        reply = connection.ask(DELETE_TOPICS, 6, deletion)
        assert reply["responses"][0]["error_code"] == exceeded
        released()
        more = {"topics": [{"name": "large", "count": 501, "assignments": None}]}
        body = {**more, "timeout_ms": 30_000, "validate_only": False}
        reply = connection.ask(CREATE_PARTITIONS, 3, body)
        assert reply["results"][0]["error_code"] == exceeded
        released()
        reply = create(connection, "delayed", 1, 5)
        assert reply["topics"][0]["error_code"] == 0
        assert reply["throttle_time_ms"] > 100_000
    names = set(client.list_topics())
    assert {"large", "delayed"} <= names
    assert "rejected" not in names


def test_failed_change_of_a_topic_is_not_counted(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    client.alter_quotas(RAW, {CONTROLLER_MUTATION_RATE: 0.001})
    with RawConnection(broker.port) as connection:
        for _ in range(3):
            reply = create(connection, "not a name", 500, 7)
            assert reply["topics"][0]["error_code"] == ErrorCode.INVALID_TOPIC


def test_connections_of_an_address_beyond_its_rate_are_closed(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    client.alter_quotas({IP: "127.0.0.9"}, {CONNECTION_CREATION_RATE: 1.0})
    crowd = [RawConnection(broker.port, source="127.0.0.9") for _ in range(30)]
    closed = 0
    for connection in crowd:
        with connection:
            connection.send(connection.frame(METADATA, 8, {"topics": []}))
            try:
                connection.read_frame()
            except ConnectionError:
                closed += 1
    assert 0 < closed < 30
    # Another address has no limit.
    for _ in range(30):
        with RawConnection(broker.port) as other:
            other.ask(METADATA, 8, {"topics": []})
    client.alter_quotas({IP: "127.0.0.9"}, {CONNECTION_CREATION_RATE: None})
    with RawConnection(broker.port, source="127.0.0.9") as free:
        free.ask(METADATA, 8, {"topics": []})


def test_stop_closes_connections_that_are_beyond_their_rate() -> None:
    with RunningBroker.start() as running:
        with headrace.client.connect(running.address) as admin:
            admin.alter_quotas({IP: "127.0.0.9"}, {CONNECTION_CREATION_RATE: 1.0})
        crowd = [RawConnection(running.port, source="127.0.0.9") for _ in range(10)]
        running.stop()
        assert "Traceback" not in running.log()
        for connection in crowd:
            connection.sock.close()


def run(broker: RunningBroker, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            *(sys.executable, "-m", "headrace", "quotas", arguments[0]),
            *("--bootstrap-server", broker.address),
            *arguments[1:],
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_command_sets_lists_and_deletes_quotas(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    assert run(broker, "list").stdout == "No quotas.\n"
    done = run(broker, "set", "--user", "alice", "producer_byte_rate=1048576")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "Limits are per broker: each broker allows this rate.\n",
        "",
    )
    run(broker, "set", "--user", "alice", "--client-id-default", "consumer_record_rate=50")
    run(broker, "set", "--ip-default", "connection_creation_rate=10")
    assert run(broker, "list").stdout.splitlines() == [
        "user   client id  ip         kind                      limit",
        "alice  <default>  -          consumer_record_rate      50",
        "-      -          <default>  connection_creation_rate  10",
        "alice  -          -          producer_byte_rate        1048576",
        "Limits are per broker: each broker allows this rate.",
    ]
    assert {"entity": {"user": "alice"}, "limits": {PRODUCER_BYTE_RATE: 1048576.0}} in json.loads(
        run(broker, "list", "--json").stdout
    )
    done = run(broker, "delete", "--user", "alice")
    assert (done.returncode, done.stdout) == (0, "Deleted 1 limit of user alice.\n")
    assert not any(each.entity == {USER: "alice"} for each in client.list_quotas())
    assert len(client.list_quotas()) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["set", "producer_byte_rate=1"], "Name the entity: --user, --client-id or --ip"),
        (["set", "--user", "a", "bogus=1"], "Unknown kind of limit 'bogus'"),
        (["set", "--user", "a", "producer_byte_rate=x"], "producer_byte_rate is 'x'"),
        (["set", "--user", "a", "producer_byte_rate=0"], "must be greater than 0"),
        (["set", "--user", "a", "request_percentage=nan"], "must be a finite number"),
        (["set", "--ip", "here", "connection_creation_rate=1"], "not a valid IP address"),
        (["delete", "--user", "zoe"], "user zoe has no limits"),
        (["set", "--user", "a", "--user-default", "producer_byte_rate=1"], "not allowed with"),
    ],
)
def test_command_reports_mistakes(broker: RunningBroker, arguments: list[str], text: str) -> None:
    done = run(broker, *arguments)
    assert done.returncode != 0
    assert text.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_librdkafka_reports_the_throttle_time_and_loses_nothing(
    broker: RunningBroker, client: headrace.client.Client
) -> None:
    client.alter_quotas(
        {CLIENT_ID: "rdkafka"}, {PRODUCER_BYTE_RATE: 200_000.0, CONSUMER_RECORD_RATE: 200.0}
    )
    throttled: dict[str, float] = {}

    def note(event: ThrottleEvent) -> None:
        throttled[event.broker_name] = max(
            event.throttle_time, throttled.get(event.broker_name, 0.0)
        )

    settings = {
        "bootstrap.servers": broker.address,
        "client.id": "rdkafka",
        "throttle_cb": note,
    }
    # Small batches: a batch is never divided.
    producer = Producer({**settings, "batch.size": 10_000})
    for number in range(600):
        producer.produce("rdkafka", b"%04d" % number + b"x" * 996, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert max(throttled.values()) > 0
    throttled.clear()
    consumer = Consumer({**settings, "group.id": "rdkafka", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("rdkafka", 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < 600 and time.monotonic() < deadline:
        found += [message.value()[:4] for message in consumer.consume(100, 1.0)]
    consumer.close()
    assert found == [b"%04d" % number for number in range(600)]
    assert max(throttled.values()) > 0
