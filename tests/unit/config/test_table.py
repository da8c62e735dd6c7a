"""The settings table: its rows, their limits, and the texts of errors."""

import pytest

from headrace.config.setting import (
    VALUE_BYTES_MAX,
    ConfigError,
    ConfigType,
    Setting,
    Value,
    render,
)
from headrace.config.table import (
    BROKER_SYNONYMS,
    TOPIC_SETTINGS,
    broker_setting,
    broker_settings,
    nearest_name,
    unknown_name,
)


def topic_row(name: str) -> Setting:
    return TOPIC_SETTINGS[name]


def every_row() -> list[Setting]:
    return [*TOPIC_SETTINGS.values(), *broker_settings().values()]


def test_every_default_is_within_its_own_limits() -> None:
    for row in every_row():
        if row.default is not None:
            assert row.parse(row.default) == row.default_value


def test_every_row_has_a_meaning_or_a_reason_for_no_effect() -> None:
    for row in every_row():
        assert row.documentation.endswith("."), row.name
        assert row.doc or not row.has_effect, row.name
        if not row.has_effect:
            assert "Accepted without effect" in row.documentation


def test_every_name_occurs_once_in_the_sources() -> None:
    from headrace.config import (
        accepted_rows,
        broker_rows,
        cluster_rows,
        oauth_rows,
        security_rows,
        tls_rows,
        token_rows,
        topic_rows,
        zookeeper_rows,
    )

    names = [row.name for row in accepted_rows.accepted_rows()]
    modules = (broker_rows, cluster_rows, oauth_rows, security_rows, tls_rows, token_rows)
    for module in (*modules, zookeeper_rows):
        for rows in vars(module).values():
            if isinstance(rows, tuple) and rows and isinstance(rows[0], Setting):
                names += [row.name for row in rows]
    names += [row.synonyms[0][0] for row in topic_rows.TOPIC_ROWS if row.synonyms]
    assert len(names) == len(set(names))
    assert set(names) == set(broker_settings())


def test_every_synonym_of_a_topic_setting_is_a_broker_setting() -> None:
    for row in TOPIC_SETTINGS.values():
        for name, factor in row.synonyms:
            synonym = broker_setting(name)
            assert synonym is not None
            assert factor >= 1
        if row.synonyms:
            first = broker_setting(row.synonyms[0][0])
            assert first is not None
            assert (first.kind, first.low, first.choices) == (row.kind, row.low, row.choices)
            assert first.is_dynamic


def test_default_of_a_coarser_synonym_is_in_its_unit() -> None:
    for names in BROKER_SYNONYMS.values():
        row = next(
            r for r in TOPIC_SETTINGS.values() if r.synonyms[:1] and r.synonyms[0][0] == names[0]
        )
        last, factor = row.synonyms[-1]
        coarse = broker_setting(last)
        assert coarse is not None
        value = coarse.default_value
        assert isinstance(value, int)
        assert value * factor == row.default_value


# Apache Kafka 4.3.1's own: name, type, default.
KAFKA_TOPIC_DEFAULTS = """
cleanup.policy LIST delete
compression.gzip.level INT -1
compression.lz4.level INT 9
compression.type STRING producer
compression.zstd.level INT 3
delete.retention.ms LONG 86400000
file.delete.delay.ms LONG 60000
flush.messages LONG 9223372036854775807
flush.ms LONG 9223372036854775807
follower.replication.throttled.replicas LIST
index.interval.bytes INT 4096
leader.replication.throttled.replicas LIST
local.retention.bytes LONG -2
local.retention.ms LONG -2
max.compaction.lag.ms LONG 9223372036854775807
max.message.bytes INT 1048588
message.timestamp.after.max.ms LONG 3600000
message.timestamp.before.max.ms LONG 9223372036854775807
message.timestamp.type STRING CreateTime
min.cleanable.dirty.ratio DOUBLE 0.5
min.compaction.lag.ms LONG 0
min.insync.replicas INT 1
preallocate BOOLEAN false
remote.log.copy.disable BOOLEAN false
remote.log.delete.on.disable BOOLEAN false
remote.storage.enable BOOLEAN false
retention.bytes LONG -1
retention.ms LONG 604800000
segment.bytes INT 1073741824
segment.index.bytes INT 10485760
segment.jitter.ms LONG 0
segment.ms LONG 604800000
unclean.leader.election.enable BOOLEAN false
"""


def test_topics_have_exactly_the_settings_and_defaults_of_kafka() -> None:
    wanted = {}
    for line in KAFKA_TOPIC_DEFAULTS.strip().splitlines():
        name, kind, *default = line.split()
        wanted[name] = (ConfigType[kind], " ".join(default))
    ours = {
        name: (row.kind, render(row.default_value))
        for name, row in TOPIC_SETTINGS.items()
        if not row.is_hidden
    }
    assert ours == wanted


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "", ()),
        ("cleanup.policy", " compact, delete ", ("compact", "delete")),
        ("retention.ms", "+5", 5),
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "0", 0),
        ("retention.ms", "-1", -1),
        ("retention.bytes", "-7", -7),
        ("compression.type", "uncompressed", "uncompressed"),
        ("compression.gzip.level", "-1", -1),
        ("preallocate", "TRUE", True),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("max.message.bytes", "0", 0),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
        ("internal.segment.bytes", "1000", 1000),
    ],
)
def test_values_that_kafka_accepts_are_accepted(name: str, text: str, value: Value) -> None:
    assert topic_row(name).parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "DELETE"),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "none"),
        ("retention.ms", "-2"),
        ("retention.ms", "5.0"),
        ("retention.ms", ""),
        ("retention.ms", "1_000"),
        ("retention.ms", "١٢"),
        ("retention.ms", "9223372036854775808"),
        ("retention.ms", "9" * 5000),
        ("segment.bytes", "1"),
        ("segment.bytes", "2147483648"),
        ("segment.ms", "0"),
        ("segment.index.bytes", "3"),
        ("flush.messages", "0"),
        ("compression.type", "GZIP"),
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("preallocate", "1"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "x"),
        ("min.insync.replicas", "0"),
    ],
)
def test_invalid_values_are_rejected_with_the_name_and_the_range(name: str, text: str) -> None:
    row = topic_row(name)
    with pytest.raises(ConfigError) as refusal:
        row.parse(text)
    assert refusal.value.message.startswith(f"{name} cannot be ")
    assert refusal.value.message.endswith(f": it must be {row.allowed}.")


def test_error_is_a_sentence_with_the_value_and_the_range() -> None:
    with pytest.raises(ConfigError) as refusal:
        topic_row("retention.ms").parse("-2")
    assert refusal.value.message == (
        "retention.ms cannot be '-2': it must be a whole number from -1 to 9223372036854775807."
    )


def test_value_of_ten_mebibytes_is_rejected_and_shown_shortened() -> None:
    for name in ("retention.ms", "cleanup.policy", "compression.type", "message.format.version"):
        with pytest.raises(ConfigError) as refusal:
            topic_row(name).parse("x" * (10 << 20))
        assert "(10485760 characters)" in refusal.value.message
        assert len(refusal.value.message) < 400


def test_text_may_be_as_long_as_the_limit_and_no_longer() -> None:
    row = broker_settings()["broker.rack"]
    assert row.parse("x" * VALUE_BYTES_MAX)
    with pytest.raises(ConfigError):
        row.parse("x" * (VALUE_BYTES_MAX + 1))
    with pytest.raises(ConfigError):
        row.parse("\u00fc" * (VALUE_BYTES_MAX // 2 + 1))


def test_error_of_a_value_cannot_forge_a_log_line() -> None:
    with pytest.raises(ConfigError) as refusal:
        topic_row("retention.ms").parse("1\nERROR all is lost")
    assert "\n" not in refusal.value.message


def test_a_password_is_never_shown() -> None:
    row = broker_settings()["ssl.key.password"]
    with pytest.raises(ConfigError) as refusal:
        row.parse("secret" * VALUE_BYTES_MAX)
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("retenton.ms", "retention.ms"),
        ("log.retention.ms", "retention.ms"),
        ("max.mesage.bytes", "max.message.bytes"),
        ("Cleanup.Policy", "cleanup.policy"),
        ("segment_bytes", "segment.bytes"),
    ],
)
def test_error_of_an_unknown_name_suggests_the_nearest(wrong: str, right: str) -> None:
    assert nearest_name(wrong, of_topic=True) == right
    assert unknown_name(wrong, of_topic=True) == (
        f"{wrong!r} is not a topic setting. Did you mean {right}?"
    )


def test_a_name_like_no_other_gets_no_hint() -> None:
    assert unknown_name("foo", of_topic=False) == "'foo' is not a broker setting."
    assert nearest_name("", of_topic=True) is None
    assert nearest_name("retention.ms" * 100_000, of_topic=True) is None


def test_listener_prefix_selects_the_setting_after_it() -> None:
    row = broker_setting("listener.name.internal.ssl.key.password")
    assert row is not None
    assert row.is_sensitive
    assert row.has_effect
    mechanism = broker_setting("listener.name.x.scram-sha-256.sasl.jaas.config")
    assert mechanism is not None
    assert mechanism.is_sensitive
    assert not mechanism.has_effect
    assert broker_setting("listener.name.internal.no.such.thing") is None


def test_values_are_written_as_kafka_writes_them() -> None:
    assert render(True) == "true"
    assert render(("a", "b")) == "a,b"
    assert render(0.5) == "0.5"
    assert render(1.7976931348623157e308) == "1.7976931348623157E308"
    assert render(None) is None
