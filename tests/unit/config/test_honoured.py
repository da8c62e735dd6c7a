"""What the table lists as honoured is read somewhere."""

from pathlib import Path

import headrace
from headrace.config.table import TOPIC_SETTINGS, broker_settings

NOTHING_TO_DO = {
    "file.delete.delay.ms",  # A reader holds a deleted segment open for as long as it needs it.
    "log.flush.start.offset.checkpoint.interval.ms",  # It is written before it counts.
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
"""Where a TopicConfig has a setting under another name than its own."""


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
