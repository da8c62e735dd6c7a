"""The options of the data source, and the errors of unsupported ones."""

import json
import re
from pathlib import Path

import pytest

from headrace.client.core.options import ClientOptions, ConsumerOptions, ProducerOptions
from headrace.client.core.properties import security_settings
from headrace.model.topics import TopicPartition
from headrace.spark.option_values import Bound, OptionError, duration_ms
from headrace.spark.options import (
    CLIENT_PROPERTIES,
    CONSUMER_PROPERTIES,
    PRODUCER_PROPERTIES,
    READING,
    WRITING,
    Use,
    check_versions,
    read_options,
    security_of,
    write_options,
)

SERVER = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**SERVER, "subscribe": "a, b"}
ROOT = Path(__file__).resolve().parents[3]


def test_defaults_are_the_connectors() -> None:
    batch, stream = read_options(READ, "batch"), read_options(READ, "stream")
    assert batch.topics == ("a", "b")
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert stream.starting.kind == "latest"
    assert batch.fail_on_data_loss
    assert (batch.fetch_attempts, batch.retry_interval_ms) == (3, 10)
    assert (batch.poll_timeout_ms, batch.max_trigger_delay_ms) == (120_000, 900_000)
    assert (batch.include_headers, batch.group_prefix) == (False, "spark-kafka-source")


def test_option_names_ignore_case() -> None:
    options = read_options({**SERVER, "SUBSCRIBE": "a", "startingoffsets": "Earliest"}, "stream")
    assert options.topics == ("a",)
    assert options.starting == Bound("earliest", "startingOffsets")


def test_starting_timestamp_overrides_timestamps_and_those_override_offsets() -> None:
    given = {
        **READ,
        "startingOffsets": json.dumps({"a": {"0": 1}}),
        "startingOffsetsByTimestamp": json.dumps({"a": {"0": 7}}),
    }
    assert read_options(given, "batch").starting.places == {TopicPartition("a", 0): 7}
    assert read_options({**given, "startingTimestamp": "9"}, "batch").starting.time_ms == 9


def test_client_properties_go_to_the_client() -> None:
    given = {**READ, "kafka.isolation.level": "read_committed", "kafka.client.id": "me"}
    options = read_options(given, "batch")
    assert options.read_committed
    assert options.connection.settings == (("client_id", "me"),)
    written = write_options({**SERVER, "kafka.acks": "1", "kafka.compression.type": "lz4"})
    assert dict(written.producer) == {"acks": 1, "compression": "lz4"}


@pytest.mark.parametrize(
    ("use", "options", "said"),
    [
        (
            "batch",
            SERVER,
            "exactly one of subscribe, subscribePattern, assign is required, but none given",
        ),
        ("batch", {**READ, "assign": '{"a": [0]}'}, "'subscribe' and 'assign'"),
        ("batch", {"subscribe": "a"}, "'kafka.bootstrap.servers' is missing"),
        ("batch", {**READ, "kafka.bootstrap.servers": "a:b"}, "is not a broker address"),
        ("batch", {**READ, "startingOffsets": "latest"}, "cannot be latest"),
        ("batch", {**READ, "endingOffsets": "earliest"}, "cannot be earliest"),
        ("batch", {**READ, "startingOffsets": "7"}, "use earliest, latest or JSON"),
        (
            "batch",
            {**READ, "startingOffsets": '{"a": {"0": -3}}'},
            "is not a partition and a number",
        ),
        (
            "batch",
            {**READ, "endingOffsets": '{"a": {"0": true}}'},
            "is not a partition and a number",
        ),
        ("batch", {**READ, "startingOffsets": ""}, "use earliest, latest or JSON"),
        ("stream", {**READ, "kafka.group.id": " "}, "'kafka.group.id' is empty"),
        ("stream", {**READ, "groupIdPrefix": ""}, "'groupIdPrefix' is empty"),
        ("batch", {**READ, "minPartitions": "0"}, "at least 1"),
        ("batch", {**READ, "failOnDataLoss": "maybe"}, "give true or false"),
        ("batch", {**READ, "maxTriggerDelay": "1m"}, "applies to spark.readStream only"),
        ("stream", {**READ, "endingTimestamp": "1"}, "applies to spark.read only"),
        ("stream", {**READ, "pushFilters": "true"}, "applies to spark.read only"),
        ("stream", {**READ, "maxTriggerDelay": "soon"}, "give a duration"),
        (
            "stream",
            {**READ, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "larger than 'maxOffsetsPerTrigger'",
        ),
        ("batch", {**READ, "kafka.auto.offset.reset": "x"}, "use 'startingOffsets' instead"),
        ("batch", {**READ, "kafka.session.timeout.ms": "1"}, "unknown option 'kafka.session"),
        ("batch", {**READ, "path": "a"}, r"not with load\("),
        ("batch", {**SERVER, "subscribePattern": "("}, "is not a regular expression"),
        ("batch", {**SERVER, "subscribe": " , "}, "give a topic"),
        ("batch", {**SERVER, "subscribe": "a b"}, "option 'subscribe': The topic name 'a b'"),
        ("batch", {**SERVER, "assign": '{"a b": [0]}'}, "option 'assign': The topic name 'a b'"),
        ("batch", {**SERVER, "assign": '{"a": {"0": 1}}'}, "requires a list"),
    ],
)
def test_unsupported_option_is_rejected_with_its_name(
    use: Use, options: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        read_options(options, use)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscrib": "a"}, "unknown option 'subscrib'. Did you mean 'subscribe'?"),
        ({"StartingOffset": "earliest"}, "'StartingOffset'. Did you mean 'startingOffsets'?"),
        ({"kafka.isolation.levl": "a"}, "Did you mean 'kafka.isolation.level'?"),
        ({"startingOffsets": "earliset"}, "'startingOffsets' is 'earliset': use earliest, latest"),
        ({"startingOffsets": "earliset"}, "Did you mean 'earliest'?"),
        ({"kafka.isolation.level": "read_commited"}, "Did you mean 'read_committed'?"),
        ({"topic": "a"}, "option 'topic' applies to writes only. Remove it."),
        ({"kafka.acks": "1"}, "option 'kafka.acks' applies to writes only. Remove it."),
    ],
)
def test_misspelled_option_error_names_the_nearest_option(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        read_options({**SERVER, **({} if "subscrib" in options else READ), **options}, "batch")


def test_unknown_option_without_a_similar_one_gets_no_suggestion() -> None:
    with pytest.raises(OptionError, match=r"^unknown option 'colour'. docs/SPARK.md lists all"):
        read_options({**READ, "colour": "red"}, "batch")


def test_option_of_a_later_spark_is_rejected_with_that_version() -> None:
    since = {"maxOffsetsPerTrigger": (4, 2)}
    given = {**READ, "maxoffsetspertrigger": "5"}
    message = "option 'maxOffsetsPerTrigger' requires PySpark 4.2, but this is PySpark 4.1."
    with pytest.raises(OptionError, match=re.escape(message)):
        check_versions(given, since, (4, 1))
    check_versions(given, since, (4, 2))
    check_versions(READ, since, (4, 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": " "}, "'topic' is empty"),
        ({"topic": "a b"}, "option 'topic': The topic name 'a b'"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "requires 'kafka.acks' = all"),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, "must be at most 5, unless"),
    ],
)
def test_contradictory_producer_options_are_rejected(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        write_options({**SERVER, **options})


def test_a_batch_that_ends_before_it_begins_is_rejected() -> None:
    given = {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'}
    with pytest.raises(OptionError, match="'startingOffsets' 5 is after 'endingOffsets' 4"):
        read_options({**READ, **given}, "batch")


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("10 s", 10_000), ("250", 250), ("2h", 7_200_000)]
)
def test_durations_are_written_as_in_spark(text: str, ms: int) -> None:
    assert duration_ms("maxTriggerDelay", text) == ms


def test_the_page_on_spark_names_every_option() -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text()
    properties = {**CLIENT_PROPERTIES, **CONSUMER_PROPERTIES, **PRODUCER_PROPERTIES}
    named = [*READING, *WRITING, *(f"kafka.{name}" for name in properties), "kafka.group.id"]
    assert [name for name in named if f"`{name}`" not in page] == []


def test_page_has_the_default_of_every_client_property() -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text()
    tables = (
        (CLIENT_PROPERTIES, ClientOptions(())),
        (CONSUMER_PROPERTIES, ConsumerOptions()),
        (PRODUCER_PROPERTIES, ProducerOptions()),
    )
    wrong = []
    for properties, options in tables:
        for name, (field, _) in properties.items():
            default = str(getattr(options, field))
            row = re.search(rf"^\| `kafka\.{re.escape(name)}` \| \w+ \| (.*) \|$", page, re.M)
            shown = row[1].replace("`", "") if row else ""
            if not shown.lower().startswith(default.lower() or "(empty)"):
                wrong.append((name, default, shown))
    assert wrong == []


def test_query_name_is_accepted() -> None:
    """Spark hands a query's name to its sink among the options; pipelines name all of theirs."""
    named = {**SERVER, "topic": "a", "queryName": "to_topic", "checkpointLocation": "/there"}
    assert write_options(named).topic == "a"


def test_security_options_reach_the_client(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.username=bob\nsasl.password=old\nacks=1\n"
    )
    options = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "headrace.config": str(path),
        "kafka.sasl.password": "hush",
    }
    connection = write_options(options).connection
    assert security_settings(dict(connection.security)) == {
        "sasl_username": "bob",
        "sasl_password": "hush",
        "sasl_mechanism": "SCRAM-SHA-256",
    }
    assert "hush" not in repr(connection)
    assert security_of({**options, "kafka.security.protocol": "PLAINTEXT"}) == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kafka.security.protocol", "TLS", "security.protocol is TLS, which is not supported"),
        ("kafka.security.protocol", "SASL_SSL", "sasl.username or sasl.password is missing"),
        ("headrace.config", "/missing", "cannot read /missing"),
        ("kafka.ssl.unknown", "x", "unknown option 'kafka.ssl.unknown'"),
    ],
)
def test_invalid_security_options_are_rejected(name: str, text: str, message: str) -> None:
    options = {"kafka.bootstrap.servers": "b:1", "topic": "t", name: text}
    with pytest.raises(OptionError, match=message):
        write_options(options)
