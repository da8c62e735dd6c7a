"""Prints the contents of a partition's file, as text or as JSON lines."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.failure import Failure
from headrace.cli.template import time_text

if TYPE_CHECKING:
    from headrace.record.batch import Batch

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_CONTROL = {0: "abort", 1: "commit"}
Line = dict[str, Any]


def dump_file(path: str, *, batches_only: bool, as_json: bool) -> int:
    """Print a file, by the ending of its name; returns 1 if the file is damaged."""
    name = os.path.basename(path)
    ending = name[name.rfind(".") :] if "." in name else name
    if ending == ".log":
        return _dump_log(path, batches_only, as_json)
    read = _READERS.get(ending)
    if read is None:
        raise Failure(
            f"Cannot print {name}: it is not one of *.log, {', '.join(f'*{e}' for e in _READERS)}.",
            2,
        )
    with open(path, "rb") as file:
        data = file.read()
    digits = name.partition(".")[0]
    for line in read(data, int(digits) if digits.isdigit() else 0):
        print(json.dumps(line) if as_json else _words(line))
    return 0


def _words(line: Line) -> str:
    return " ".join(f"{name} {_word(value)}" for name, value in line.items())


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _offset_index(data: bytes, base: int) -> Iterator[Line]:
    from headrace.log.index import OffsetIndex
    from headrace.log.recovery.check import entries_in_use

    index = OffsetIndex.from_bytes(data)
    for slot in range(entries_in_use(index.offsets, index.positions)):
        yield {"offset": base + index.offsets[slot], "position": index.positions[slot]}


def _time_index(data: bytes, base: int) -> Iterator[Line]:
    from headrace.log.index import TimeIndex
    from headrace.log.recovery.check import entries_in_use

    index = TimeIndex.from_bytes(data)
    for slot in range(entries_in_use(index.offsets, index.timestamps)):
        yield {"timestamp": index.timestamps[slot], "offset": base + index.offsets[slot]}


def _aborted_index(data: bytes, base: int) -> Iterator[Line]:
    from headrace.log.transactions import decode_aborted

    for transaction in decode_aborted(data):
        yield dict(transaction._asdict())


def _snapshot(data: bytes, base: int) -> Iterator[Line]:
    from headrace.log.upkeep.snapshots import decode_snapshot

    table = decode_snapshot(data, base, 1 << 31)
    if table is None:
        raise Failure("the snapshot is invalid: its checksum or version is wrong")
    for producer_id, entry in table.entries.items():
        last = entry.batches[0] if entry.batches else None
        yield {
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": -1 if last is None else last.last_sequence,
            "last_offset": -1 if last is None else last.last_offset,
            "last_timestamp": entry.timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": entry.transaction_first_offset,
        }


_READERS: dict[str, Callable[[bytes, int], Iterator[Line]]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _aborted_index,
    ".snapshot": _snapshot,
}


def _dump_log(path: str, batches_only: bool, as_json: bool) -> int:
    from headrace.env.files import SystemFiles
    from headrace.log.scan import BatchWalk
    from headrace.model.errors import ApiError
    from headrace.record.batch import read_batch

    files = SystemFiles()
    descriptor = files.open(path)
    try:
        walk = BatchWalk(files, descriptor, 0, files.size(descriptor), True)
        position = 0
        while (found := walk.next()) is not None:
            frame = walk.records(found)
            batch = read_batch(frame, 0, len(frame), False, False)
            try:
                _print_batch(batch, position, batches_only, as_json)
            except ApiError as error:
                raise Failure(f"at byte {position}: {error.message}") from None
            position = int(walk.position)
    finally:
        files.close(descriptor)
    if walk.error:
        sys.stdout.flush()
        raise Failure(f"at byte {position}: no valid batch: {walk.error}")
    return 0


def _print_batch(batch: "Batch", position: int, batches_only: bool, as_json: bool) -> None:
    line = _batch_line(batch, position)
    records = [] if batches_only else list(_record_lines(batch))
    if as_json:
        print(json.dumps(line if batches_only else {**line, "records": records}))
        return
    head = f"batch {line.pop('base_offset')}..{line.pop('last_offset')}"
    flags = [name for name in ("transactional", "control") if line.pop(name)]
    if line["producer_id"] < 0:
        for name in ("producer_id", "producer_epoch", "base_sequence"):
            line.pop(name)
    line["max_timestamp"] = time_text(line["max_timestamp"])
    print(f"{head}: {_words(line)}{''.join(f', {flag}' for flag in flags)}")
    for record in records:
        when = time_text(record.pop("timestamp"))
        offset = record.pop("offset")
        shown = {name: _shown(value) for name, value in record.items()}
        print(f"  {offset}: timestamp {when} {_words(shown)}")


def _batch_line(batch: "Batch", position: int) -> Line:
    codec = int(batch.codec())
    return {
        "base_offset": int(batch.base_offset),
        "last_offset": int(batch.last_offset()),
        "position": position,
        "size": int(batch.size()),
        "record_count": int(batch.record_count),
        "compression": _CODECS[codec] if codec < len(_CODECS) else codec,
        "leader_epoch": int(batch.leader_epoch),
        "max_timestamp": int(batch.max_timestamp),
        "timestamp_type": "LogAppendTime" if batch.is_log_append_time() else "CreateTime",
        "producer_id": int(batch.producer_id),
        "producer_epoch": int(batch.producer_epoch),
        "base_sequence": int(batch.base_sequence),
        "transactional": bool(batch.is_transactional()),
        "control": bool(batch.is_control()),
    }


def _record_lines(batch: "Batch") -> Iterator[Line]:
    from headrace.cli.template import json_bytes
    from headrace.record.decode import control_type, read_records

    for record in read_records(batch):
        line: Line = {"offset": record.offset, "timestamp": record.timestamp}
        if batch.is_control():
            kind = control_type(batch)
            line["marker"] = _CONTROL.get(kind, str(kind))
        else:
            line |= json_bytes("key", record.key)
            line |= json_bytes("value", record.value)
            if record.headers:
                line["headers"] = [
                    {"name": name, **json_bytes("value", content)}
                    for name, content in record.headers
                ]
        yield line


def _shown(value: Any) -> Any:
    """Text in quotes, which shows empty text, null and line ends."""
    return json.dumps(value, ensure_ascii=False)
