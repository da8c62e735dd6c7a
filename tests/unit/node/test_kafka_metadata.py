"""The records of Kafka's metadata log that are adopted with a data directory."""

import struct
from uuid import UUID

from headrace.model.tokens import Token
from headrace.node.kafka_metadata import KafkaMetadata, read_metadata
from headrace.record.build import NewRecord, build_batch
from headrace.security.scram import Credential, credential_from_text
from headrace.testing.disk import SimulatedFiles

ORDERS, PAYMENTS = UUID(int=11), UUID(int=12)


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def record(kind: int, fields: bytes) -> bytes:
    """Frame version 1, the kind, version 0, the fields, no tagged ones."""
    return bytes([1, kind, 0]) + fields + b"\0"


def topic(name: str, topic_id: UUID) -> bytes:
    return record(2, text(name) + topic_id.bytes)


def removal(topic_id: UUID) -> bytes:
    return record(9, topic_id.bytes)


def config(name: str, setting: str, value: str | None, resource: int = 2) -> bytes:
    return record(4, bytes([resource]) + text(name) + text(setting) + text(value))


def producer_ids(next_id: int) -> bytes:
    return record(15, bytes(4) + bytes(8) + next_id.to_bytes(8, "big"))


def quota(kind: str, value: float, *, removed: bool = False, **names: str | None) -> bytes:
    entity = b"".join(text(type_) + text(name) + b"\0" for type_, name in names.items())
    fields = bytes([len(names) + 1]) + entity + text(kind) + struct.pack(">d?", value, removed)
    return record(14, fields)


def acl(number: int, operation: int = 3, name: str = "orders") -> bytes:
    fields = bytes([2]) + text(name) + bytes([4]) + text("User:ann") + text("*")
    return record(18, UUID(int=number).bytes + fields + bytes([operation, 2]))


def acl_removal(number: int) -> bytes:
    return record(19, UUID(int=number).bytes)


def credential(user: str, mechanism: int = 1, salt: bytes = b"salt") -> bytes:
    keys = b"".join(bytes([len(each) + 1]) + each for each in (salt, b"stored", b"server"))
    return record(11, text(user) + bytes([mechanism]) + keys + (4096).to_bytes(4, "big"))


def credential_removal(user: str, mechanism: int = 1) -> bytes:
    return record(22, text(user) + bytes([mechanism]))


def token(token_id: str, renewers: tuple[str, ...] = (), expires_ms: int = 20) -> bytes:
    names = bytes([len(renewers) + 1]) + b"".join(map(text, renewers))
    times = struct.pack(">qqq", 10, 30, expires_ms)
    return record(10, text("User:ann") + text("User:bob") + names + times + text(token_id))


def token_removal(token_id: str) -> bytes:
    return record(26, text(token_id))


def applied(*records: bytes) -> KafkaMetadata:
    metadata = KafkaMetadata()
    for each in records:
        metadata.apply(each)
    return metadata


def written(files: SimulatedFiles, name: str, base_offset: int, *records: bytes) -> None:
    path = "/data/__cluster_metadata-0"
    files.make_directory(path)
    data = build_batch([NewRecord(None, each) for each in records], base_offset=base_offset)
    files.write_file(f"{path}/{name}", data, sync=True)


def test_topics_have_the_settings_that_were_set_last() -> None:
    metadata = applied(
        topic("orders", ORDERS),
        config("orders", "cleanup.policy", "compact"),
        config("orders", "retention.ms", "1000"),
        config("orders", "retention.ms", None),
        config("orders", "cleanup.policy", "compact,delete"),
    )
    assert metadata.topic_ids == {"orders": ORDERS}
    assert metadata.configs == {"orders": {"cleanup.policy": "compact,delete"}}


def test_settings_of_brokers_are_not_those_of_a_topic() -> None:
    metadata = applied(config("1", "log.cleaner.threads", "2", resource=4))
    assert metadata.configs == {}


def test_recreated_topic_starts_without_the_former_settings() -> None:
    metadata = applied(
        topic("orders", ORDERS),
        config("orders", "retention.ms", "1"),
        removal(ORDERS),
        topic("orders", PAYMENTS),
    )
    assert metadata.topic_ids == {"orders": PAYMENTS}
    assert metadata.configs == {}


def test_next_producer_id_is_the_last_recorded_one() -> None:
    assert applied(producer_ids(1000), producer_ids(5000)).next_producer_id == 5000


def test_quotas_are_those_that_were_set_last() -> None:
    metadata = applied(
        quota("producer_byte_rate", 5.0, user="ann", ip=None),
        quota("producer_byte_rate", 6.0, user="ann", ip=None),
        quota("request_percentage", 12.5, user=None),
        quota("consumer_byte_rate", 7.0, user=None),
        quota("consumer_byte_rate", 0.0, user=None, removed=True),
    )
    assert metadata.quotas == {
        (("ip", None), ("user", "ann")): {"producer_byte_rate": 6.0},
        (("user", None),): {"request_percentage": 12.5},
    }


def test_acls_are_those_that_were_not_removed() -> None:
    metadata = applied(acl(1), acl(2, operation=4), acl(3), acl_removal(3), acl_removal(9))
    assert [str(each) for each in metadata.acls.values()] == [
        "Deny User:ann from host * Read on prefixed Topic orders",
        "Deny User:ann from host * Write on prefixed Topic orders",
    ]
    assert metadata.unknown_acls == []


def test_acl_with_an_unknown_value_is_reported_until_it_is_removed() -> None:
    assert len(applied(acl(1, operation=99)).unknown_acls) == 1
    assert applied(acl(1, operation=99), acl_removal(1)).unknown_acls == []


def test_credentials_are_those_that_were_set_last() -> None:
    metadata = applied(
        credential("ann", salt=b"old"),
        credential("ann", salt=b"new"),
        credential("ann", mechanism=2),
        credential("bob"),
        credential_removal("bob"),
        credential("eve", mechanism=9),
    )
    assert list(metadata.credentials) == ["ann"]
    assert list(metadata.credentials["ann"]) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    stored = credential_from_text(metadata.credentials["ann"]["SCRAM-SHA-256"])
    assert stored == Credential(b"new", b"stored", b"server", 4096)


def test_tokens_are_those_that_were_stored_last_and_not_removed() -> None:
    metadata = applied(
        token("one", ("User:eve", "User:max")),
        token("one", ("User:eve", "User:max"), expires_ms=25),
        token("two"),
        token_removal("two"),
        token_removal("three"),
    )
    renewers = ("User:eve", "User:max")
    assert metadata.tokens == {"one": Token("one", "User:ann", "User:bob", renewers, 10, 25, 30)}


def test_a_directory_without_metadata_has_none() -> None:
    files = SimulatedFiles()
    files.make_directory("/data")
    assert read_metadata(files, "/data") is None


def test_log_continues_at_the_end_of_the_newest_snapshot() -> None:
    files = SimulatedFiles()
    newest = "00000000000000000010-0000000002.checkpoint"
    written(files, "00000000000000000004-0000000001.checkpoint", 0, topic("former", ORDERS))
    written(files, newest, 0, topic("orders", ORDERS), config("orders", "retention.ms", "1"))
    written(files, "00000000000000000000.log", 8, removal(ORDERS), config("x", "y", "z"))
    written(files, "00000000000000000010.log", 10, config("orders", "retention.ms", "2"))
    metadata = read_metadata(files, "/data")
    assert metadata is not None
    assert metadata.topic_ids == {"orders": ORDERS}
    assert metadata.configs == {"orders": {"retention.ms": "2"}}


def test_unknown_records_are_skipped() -> None:
    files = SimulatedFiles()
    garbage = (b"", b"\x01", b"\x02\x02\0", record(99, b"?"), bytes([1, 2, 0, 200]), b"\xff" * 9)
    written(files, "00000000000000000000.log", 0, *garbage, topic("orders", ORDERS))
    path = "/data/__cluster_metadata-0/00000000000000000000.log"
    files.write_file(path, files.read_file(path) + b"torn", sync=True)
    metadata = read_metadata(files, "/data")
    assert metadata is not None
    assert metadata.topic_ids == {"orders": ORDERS}
