"""kcat as Debian ships it: an older librdkafka than the one that Python users have."""

import json

import pytest

from tests.interop.client import BASE_MS, Record
from tests.interop.librdkafka import Librdkafka
from tests.interop.stored import CODECS, stored_batches
from tests.java.conftest import Run


def test_kcat_lists_the_broker_and_its_topics(kcat: Run, bootstrap: str, new_topic: str) -> None:
    Librdkafka(bootstrap).create_topic(new_topic, partitions=2)
    listed = json.loads(kcat("-L", "-J"))
    assert bootstrap in [broker["name"] for broker in listed["brokers"]]
    (found,) = (topic for topic in listed["topics"] if topic["topic"] == new_topic)
    assert [partition["partition"] for partition in found["partitions"]] == [0, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_reads_what_kcat_wrote(kcat: Run, bootstrap: str, new_topic: str, codec: str) -> None:
    Librdkafka(bootstrap).create_topic(new_topic)
    lines = [f"key{number}:{'the same words ' * 10}{number}" for number in range(100)]
    where = ("-t", new_topic, "-p", "0")
    kcat("-P", *where, "-K:", "-H", "source=kcat", "-z", codec, stdin="\n".join(lines) + "\n")
    found = kcat("-C", *where, "-o", "beginning", "-e", "-q", "-f", "%k:%s|%h|%o\n")
    assert found.splitlines() == [
        f"{line}|source=kcat|{offset}" for offset, line in enumerate(lines)
    ]
    assert {batch.codec for batch in stored_batches(bootstrap, new_topic)} == {codec}


def test_kcat_writes_null_keys_and_values(kcat: Run, bootstrap: str, new_topic: str) -> None:
    client = Librdkafka(bootstrap)
    client.create_topic(new_topic)
    kcat("-P", "-t", new_topic, "-p", "0", "-Z", "-K:", stdin="gone:\n:no key\n")
    found = [stored.record for stored in client.consume(new_topic, 2)]
    assert [(record.key, record.value) for record in found] == [(b"gone", None), (None, b"no key")]


def test_kcat_finds_offsets_by_time(kcat: Run, bootstrap: str, new_topic: str) -> None:
    client = Librdkafka(bootstrap)
    client.create_topic(new_topic)
    client.produce(
        new_topic, [Record(b"%d" % number, None, (), BASE_MS + number) for number in range(50)]
    )
    assert "offset 20" in kcat("-Q", "-t", f"{new_topic}:0:{BASE_MS + 20}")
    where = ("-t", new_topic, "-p", "0", "-o", f"s@{BASE_MS + 45}")
    assert kcat("-C", *where, "-e", "-q").split() == ["45", "46", "47", "48", "49"]


def test_kcat_counts_from_the_end(kcat: Run, bootstrap: str, new_topic: str) -> None:
    client = Librdkafka(bootstrap)
    client.create_topic(new_topic)
    client.produce(new_topic, [Record(b"%d" % number) for number in range(50)])
    assert kcat("-C", "-t", new_topic, "-p", "0", "-o", "-3", "-e", "-q").split() == [
        "47",
        "48",
        "49",
    ]


def test_kcat_produces_idempotently(kcat: Run, bootstrap: str, new_topic: str) -> None:
    Librdkafka(bootstrap).create_topic(new_topic)
    idempotent = ("-X", "enable.idempotence=true")
    kcat("-P", "-t", new_topic, "-p", "0", *idempotent, stdin="one\ntwo\n")
    batches = stored_batches(bootstrap, new_topic)
    assert all(batch.producer_id >= 0 for batch in batches)
    assert sum(batch.count for batch in batches) == 2
