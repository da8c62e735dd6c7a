"""Reads topics, users, ACLs, quotas and tokens from the metadata of an Apache Kafka data directory.

`__cluster_metadata-0` is the log with the state of a KRaft cluster. Every broker has a copy. This
module reads the newest snapshot, then the later records. It changes nothing, and decodes only the
kinds of records that adoption needs (KIP-631).

1. Unknown records are skipped. An incomplete batch ends the log. Records of ACLs are an exception:
   they are listed in `unknown_acls`, because they could deny something.
2. A removed topic leaves no state, so that another topic of the same name has no settings.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from headrace.env.files import Files
from headrace.log.scan import BatchWalk
from headrace.model.acls import Acl, Operation, PatternType, Permission, ResourceType
from headrace.model.errors import ApiError
from headrace.model.quotas import Entity, entity_of
from headrace.model.tokens import Token
from headrace.record.batch import Batch
from headrace.record.decode import read_records
from headrace.security.scram import Credential, scram_of_code

METADATA_TOPIC = "__cluster_metadata"
DIRECTORY = f"{METADATA_TOPIC}-0"

_FRAME_VERSION = 1
_TOPIC = 2
_CONFIG = 4
_REMOVE_TOPIC = 9
_TOKEN = 10
_USER = 11
_CLIENT_QUOTA = 14
_PRODUCER_IDS = 15
_ACL = 18
_REMOVE_ACL = 19
_REMOVE_USER = 22
_REMOVE_TOKEN = 26
_TOPIC_RESOURCE = 2


@dataclass
class KafkaMetadata:
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """The settings of topics, without defaults."""
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    next_producer_id: int = 0
    """All ids that producers have are lower."""
    acls: dict[bytes, Acl] = field(default_factory=dict)
    """ACLs by the id that Kafka gave them."""
    unknown_acls: list[bytes] = field(default_factory=list)
    """Ids of ACLs with unknown values."""
    credentials: dict[str, dict[str, str]] = field(default_factory=dict)
    """SCRAM credentials by user and mechanism, as the store contains them."""
    tokens: dict[str, Token] = field(default_factory=dict)
    """Delegation tokens by id. Kafka does not store their passwords."""

    def apply(self, value: bytes) -> None:
        """Apply one record of the log."""
        fields = _Fields(value)
        if fields.varint() != _FRAME_VERSION:
            return
        kind = fields.varint()
        fields.varint()  # Ignore the version: higher versions only add fields at the end.
        if kind == _TOPIC:
            name = fields.text()
            self.topic_ids[name or ""] = UUID(bytes=fields.take(16))
        elif kind == _REMOVE_TOPIC:
            self._remove_topic(UUID(bytes=fields.take(16)))
        elif kind == _CONFIG:
            resource = fields.take(1)[0]
            self._set_topic_config(
                resource, fields.text() or "", fields.text() or "", fields.text()
            )
        elif kind == _CLIENT_QUOTA:
            self._set_quota(fields)
        elif kind == _ACL:
            self._add_acl(fields)
        elif kind == _REMOVE_ACL:
            id_ = fields.take(16)
            self.acls.pop(id_, None)
            self.unknown_acls = [each for each in self.unknown_acls if each != id_]
        elif kind in (_USER, _REMOVE_USER):
            self._set_credential(fields, is_removed=kind == _REMOVE_USER)
        elif kind == _TOKEN:
            self._add_token(fields)
        elif kind == _REMOVE_TOKEN:
            self.tokens.pop(fields.text() or "", None)
        elif kind == _PRODUCER_IDS:
            fields.take(12)
            self.next_producer_id = int.from_bytes(fields.take(8), "big", signed=True)

    def _set_topic_config(self, resource: int, topic: str, name: str, value: str | None) -> None:
        if resource != _TOPIC_RESOURCE:
            return
        configs = self.configs.setdefault(topic, {})
        if value is None:
            configs.pop(name, None)
        else:
            configs[name] = value

    def _set_quota(self, fields: "_Fields") -> None:
        names: dict[str, str | None] = {}
        for _ in range(fields.varint() - 1):
            type_ = fields.text() or ""
            names[type_] = fields.text()
            fields.skip_tags()
        kind = fields.text() or ""
        (value,) = struct.unpack(">d", fields.take(8))
        limits = self.quotas.setdefault(entity_of(names), {})
        if fields.take(1) != b"\0":
            limits.pop(kind, None)
        else:
            limits[kind] = value

    def _add_acl(self, fields: "_Fields") -> None:
        id_ = fields.take(16)
        try:
            type_ = ResourceType(fields.take(1)[0])
            name = fields.text() or ""
            pattern = PatternType(fields.take(1)[0])
            principal, host = fields.text() or "", fields.text() or ""
            operation, permission = Operation(fields.take(1)[0]), Permission(fields.take(1)[0])
        except ValueError:
            self.unknown_acls.append(id_)
            return
        self.acls[id_] = Acl(type_, pattern, name, principal, host, operation, permission)

    def _set_credential(self, fields: "_Fields", *, is_removed: bool) -> None:
        user = fields.text() or ""
        scram = scram_of_code(fields.take(1)[0])
        if scram is None:
            return
        credentials = self.credentials.setdefault(user, {})
        if is_removed:
            credentials.pop(scram.name, None)
        else:
            salt, stored_key, server_key = fields.data(), fields.data(), fields.data()
            iterations = int.from_bytes(fields.take(4), "big")
            credential = Credential(salt, stored_key, server_key, iterations)
            credentials[scram.name] = credential.to_text()
        if not credentials:
            del self.credentials[user]

    def _add_token(self, fields: "_Fields") -> None:
        owner, requester = fields.text() or "", fields.text() or ""
        renewers = tuple(fields.text() or "" for _ in range(fields.varint() - 1))
        issued_ms, max_ms, expires_ms = struct.unpack(">qqq", fields.take(24))
        token_id = fields.text() or ""
        self.tokens[token_id] = Token(
            token_id, owner, requester, renewers, issued_ms, expires_ms, max_ms
        )

    def _remove_topic(self, topic_id: UUID) -> None:
        for name in [name for name, known in self.topic_ids.items() if known == topic_id]:
            del self.topic_ids[name]
            self.configs.pop(name, None)


class _Fields:
    """Reads the fields of a record in a flexible version (KIP-482) sequentially."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) != size:
            raise ValueError("the record ends early")
        self._position += size
        return taken

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 28:
                raise ValueError("a number is too long")

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    def text(self) -> str | None:
        length = self.varint()
        return None if length == 0 else self.take(length - 1).decode()

    def data(self) -> bytes:
        return self.take(max(self.varint() - 1, 0))


def read_metadata(files: Files, data_directory: str) -> KafkaMetadata | None:
    """The metadata in the directory's copy of the log; None if it has no copy."""
    path = f"{data_directory}/{DIRECTORY}"
    if not files.exists(path):
        return None
    names = [info.name for info in files.list_directory(path)]
    metadata = KafkaMetadata()
    start = 0
    snapshots = sorted(name for name in names if name.endswith(".checkpoint") and "-" in name)
    if snapshots:
        start = int(snapshots[-1].partition("-")[0])
        for _, value in _records(files, f"{path}/{snapshots[-1]}"):
            _apply(metadata, value)
    for name in sorted(name for name in names if name.endswith(".log")):
        for offset, value in _records(files, f"{path}/{name}"):
            if offset >= start:
                _apply(metadata, value)
    return metadata


def _apply(metadata: KafkaMetadata, value: bytes | None) -> None:
    try:
        metadata.apply(value or b"")
    except (ValueError, IndexError):
        return


def _records(files: Files, path: str) -> Iterator[tuple[int, bytes | None]]:
    fd = files.open(path)
    try:
        walk = BatchWalk(files, fd, 0, files.size(fd), True)
        while (batch := walk.next()) is not None:
            if batch.is_control():
                continue
            try:
                complete = Batch(walk.records(batch), 0, batch.size())
                for record in read_records(complete):
                    yield record.offset, record.value
            except ApiError:
                continue
    finally:
        files.close(fd)
