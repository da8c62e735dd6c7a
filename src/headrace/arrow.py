"""Read topics into PyArrow, without Spark.

    table = headrace.arrow.read("orders", "localhost:9092")

Columns, types and options are those of the Spark data source (docs/SPARK.md), and so are the
decoder and the errors: OptionError for a wrong argument, DataLoss for deleted records, ClientError
for a cluster that does not respond.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.env.extras import install_command
from headrace.spark.option_values import OptionError
from headrace.spark.options import BOOTSTRAP, ReadOptions, read_options
from headrace.spark.values import DataLoss, OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "DataLoss", "OptionError", "read", "read_batches"]

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The default columns; `headers` is the only other one."""
HEADERS = "headers"
_SIMULTANEOUS_PARTITIONS = 8

Offsets = str | Mapping[int, int]


def read(
    topic: str,
    bootstrap_servers: str = "localhost:9092",
    *,
    partitions: Iterable[int] | None = None,
    starting_offsets: Offsets = "earliest",
    ending_offsets: Offsets = "latest",
    columns: Iterable[str] = COLUMNS,
    options: Mapping[str, str] | None = None,
) -> "pa.Table":
    """Read the records of a topic as a table.

    Offsets are "earliest", "latest", or an offset for each partition, such as {0: 23, 1: 42}. In
    such a mapping, -2 is the earliest and -1 the latest offset. `options` are further options of
    the Spark data source for a batch read.
    """
    return read_batches(
        topic,
        bootstrap_servers,
        partitions=partitions,
        starting_offsets=starting_offsets,
        ending_offsets=ending_offsets,
        columns=columns,
        options=options,
    ).read_all()


def read_batches(
    topic: str,
    bootstrap_servers: str = "localhost:9092",
    *,
    partitions: Iterable[int] | None = None,
    starting_offsets: Offsets = "earliest",
    ending_offsets: Offsets = "latest",
    columns: Iterable[str] = COLUMNS,
    options: Mapping[str, str] | None = None,
) -> "pa.RecordBatchReader":
    """Read the records of a topic as an iterator of record batches, which needs little memory.

    The arguments are those of `read`. The end is determined by this call. Records of one partition
    are in order.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ModuleNotFoundError(
            "headrace.arrow requires pyarrow, which is not installed. "
            f"Run: {install_command('arrow')}",
            name="pyarrow",
        ) from error
    from headrace.spark.arrow import schema_of

    given = _options(topic, bootstrap_servers, partitions, starting_offsets, ending_offsets)
    chosen = _columns(columns)
    if HEADERS in chosen:
        given["includeHeaders"] = "true"
    parsed = replace(read_options({**given, **(options or {})}, "batch"), columns=chosen)
    ranges = _plan(parsed)
    return pa.RecordBatchReader.from_batches(schema_of(chosen), _batches(parsed, ranges))


def _options(
    topic: str,
    bootstrap_servers: str,
    partitions: Iterable[int] | None,
    starting: Offsets,
    ending: Offsets,
) -> dict[str, str]:
    import json

    given = {BOOTSTRAP: bootstrap_servers}
    if partitions is None:
        given["subscribe"] = topic
    else:
        given["assign"] = json.dumps({topic: list(partitions)})
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        if isinstance(offsets, str):
            given[name] = offsets
        else:
            given[name] = json.dumps({topic: {str(at): offset for at, offset in offsets.items()}})
    return given


def _columns(columns: Iterable[str]) -> tuple[str, ...]:
    from headrace.spark.option_values import suggestion

    chosen, known = tuple(columns), (*COLUMNS, HEADERS)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        hint = suggestion(unknown[0], known)
        raise OptionError(f"unknown column {unknown[0]!r}.{hint} Columns: {', '.join(known)}.")
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionError(
            f"columns are {list(chosen)}: list at least one column, and each only once."
        )
    return chosen


def _plan(options: ReadOptions) -> list[OffsetRange]:
    from headrace.spark.planning import Planner, plan_ranges

    planner = Planner(options)
    try:
        return [each for each in plan_ranges(planner) if each.size > 0]
    finally:
        planner.close()


def _batches(options: ReadOptions, ranges: list[OffsetRange]) -> "Iterator[Any]":
    from headrace.spark.connections import close_idle
    from headrace.spark.reading import read_ranges

    try:
        # Read few partitions simultaneously, so that each fetch is large and memory is limited.
        for at in range(0, len(ranges), _SIMULTANEOUS_PARTITIONS):
            yield from read_ranges(options, ranges[at : at + _SIMULTANEOUS_PARTITIONS])
    finally:
        close_idle()
