"""Each setting that has an effect, according to the table, is read by some code."""

from pathlib import Path

import headrace
from headrace.config.table import TOPIC_SETTINGS, broker_settings
from headrace.config.topic import TopicConfig

NOTHING_TO_DO = {
    "file.delete.delay.ms",  # A reader of a deleted segment keeps its file open instead.
    "log.flush.start.offset.checkpoint.interval.ms",  # A log start is durable before its use.
    "zookeeper.ssl.keystore.type",
    "zookeeper.ssl.truststore.type",
}
OTHER_NAMES = {
    "cleanup.policy": ".deletes",
    "compression.gzip.level": ".compression_level",
    "compression.lz4.level": ".compression_level",
    "compression.type": ".compression_codec",
    "compression.zstd.level": ".compression_level",
    "internal.segment.bytes": ".segment_bytes",
    "message.timestamp.type": ".uses_log_append_time",
}
"""Attributes of TopicConfig that do not have the name of their setting."""


def sources() -> str:
    package = Path(headrace.__file__).parent
    rows = [*package.glob("config/*_rows.py"), *package.glob("config/topic.py")]
    paths = [path for path in package.rglob("*.py") if path not in rows]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_every_honoured_setting_is_read_by_some_code() -> None:
    text = sources()
    unread = {
        name
        for name, row in TOPIC_SETTINGS.items()
        if row.has_effect
        and "." + name.replace(".", "_") not in text
        and (name not in OTHER_NAMES or OTHER_NAMES[name] not in text)
    }
    synonyms = {name for row in TOPIC_SETTINGS.values() for name, _ in row.synonyms}
    unread |= {
        name
        for name, row in broker_settings().items()
        if row.has_effect and name not in synonyms and f'"{name}"' not in text
    }
    assert unread == NOTHING_TO_DO


def test_a_topic_config_has_an_attribute_for_every_setting_that_code_reads() -> None:
    config = TopicConfig.resolve()
    for name, row in TOPIC_SETTINGS.items():
        if row.has_effect and name not in NOTHING_TO_DO:
            attribute = OTHER_NAMES.get(name, "." + name.replace(".", "_"))
            assert hasattr(config, attribute.removeprefix(".")), name
