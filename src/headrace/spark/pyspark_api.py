"""The parts of PySpark that are undocumented or differ between versions.

No other module imports them, so a new version of PySpark is checked in one place:
tests/unit/spark/test_pyspark_api.py compares this list with the installed version.

1. Names that the installed version lacks have substitutes, so that modules load on every version.
2. Modules for pipelines are imported at first use: executors do not need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyspark

from headrace.spark.versions import (
    ARROW_STREAM_WRITER_SINCE,
    ARROW_TIME_ZONE_SINCE,
    AUTO_CDC_SINCE,
    OLDEST,
    READ_LIMITS_SINCE,
    check,
)

VERSION = check(pyspark.__version__, "headrace.spark", "spark", OLDEST)

if TYPE_CHECKING or VERSION >= ARROW_STREAM_WRITER_SINCE:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    # Spark passes Arrow record batches to writers of this class, and rows to others.
    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        pass


if TYPE_CHECKING or VERSION >= READ_LIMITS_SINCE:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Spark does not limit micro-batches before READ_LIMITS_SINCE."""

        def __init__(self, rows: int = 0) -> None:
            self.rows = rows

    class ReadAllAvailable(ReadLimit):
        pass

    class ReadMaxRows(ReadLimit):
        pass

    class ReadMinRows(ReadLimit):
        pass

    class SupportsTriggerAvailableNow:
        """Spark itself ends such a run before READ_LIMITS_SINCE, at the first latest offset."""


if TYPE_CHECKING:
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.block_session_mutations import block_session_mutations
    from pyspark.pipelines.flow import AutoCdcFlow, Flow
    from pyspark.pipelines.graph_element_registry import (
        GraphElementRegistry,
        graph_element_registration_context,
    )
    from pyspark.pipelines.output import MaterializedView, Output, Sink, Table, TemporaryView
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

MODULES = {
    "AutoCdcFlow": "pyspark.pipelines.flow",
    "Flow": "pyspark.pipelines.flow",
    "GraphElementRegistry": "pyspark.pipelines.graph_element_registry",
    "MaterializedView": "pyspark.pipelines.output",
    "Output": "pyspark.pipelines.output",
    "Sink": "pyspark.pipelines.output",
    "SparkConnectGraphElementRegistry": "pyspark.pipelines.spark_connect_graph_element_registry",
    "Table": "pyspark.pipelines.output",
    "TemporaryView": "pyspark.pipelines.output",
    "add_pipeline_analysis_context": "pyspark.pipelines.add_pipeline_analysis_context",
    "block_session_mutations": "pyspark.pipelines.block_session_mutations",
    "create_dataflow_graph": "pyspark.pipelines.spark_connect_pipeline",
    "graph_element_registration_context": "pyspark.pipelines.graph_element_registry",
    "start_run": "pyspark.pipelines.spark_connect_pipeline",
}
"""Names for pipelines, and the undocumented modules that have them."""


class _NoAutoCdcFlow:
    """The substitute before AUTO_CDC_SINCE: no flow is an instance of it."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "AutoCdcFlow" and VERSION < AUTO_CDC_SINCE:
        return _NoAutoCdcFlow
    return getattr(import_module(MODULES[name]), name)


def drop_dataflow_graph(spark: Any, graph_id: str) -> None:
    """Remove a pipeline from a Spark Connect server."""
    import pyspark.sql.connect.proto as proto

    command = proto.Command()
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph_id
    spark.client.execute_command(command)


POLLING = "spark.sql.pipelines.execution.streamstate.pollingInterval"
"""Spark's setting for the seconds between two checks whether a flow has ended."""
_POLLING_MS = 96
_POLLING_VERSIONS = ("4.3.0",)


def poll_flows_often(spark: Any) -> None:
    """Shorten the time until Spark notices that a flow has ended, and starts the next ones.

    Spark sleeps at least one second per level of the graph, and the setting accepts only full
    seconds. Spark multiplies it by 1,000 and does not check for an overflow of 64 bits. So a large
    number results in a short sleep. Another version could sleep for that long, so this sets the
    interval only if the version of the server is exactly one whose code was read.
    """
    if spark.version in _POLLING_VERSIONS:
        spark.conf.set(POLLING, str(polling_interval(_POLLING_MS)))


def polling_interval(wanted_ms: int) -> int:
    """The number of seconds that are this many milliseconds, a multiple of 8, modulo 2**64."""
    return wanted_ms // 8 * pow(125, -1, 1 << 61) % (1 << 61)


def receives_events(spark: Any) -> bool:
    """Whether listeners of a Spark Connect session receive the events of streaming queries.

    If the connection breaks, PySpark only prints a warning and drops all listeners.
    """
    thread = spark.streams._sqlb._execution_thread
    return thread is not None and thread.is_alive()


def drop_listeners(spark: Any, listener: Any) -> None:
    """Remove all listeners of a session, also on a server that did not notice the broken stream."""
    bus = spark.streams._sqlb = type(spark.streams._sqlb)(spark.streams)
    # PySpark notifies the server when the last listener is removed. `listener` is that one.
    bus._listener_bus.append(listener)
    bus.remove(listener)


def limit_retries(spark: Any, count: int) -> None:
    """Limit how often a request to a Spark Connect server is repeated if the connection fails."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=count)])


def end_session(address: str, session_id: str) -> None:
    """End a session on a Spark Connect server, and its queries, unless it has already ended."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import SparkConnectClient

    plain = address.rstrip("/;")
    separator = ";" if "/;" in plain else "/;"
    client = SparkConnectClient(f"{plain}{separator}session_id={session_id}")
    try:
        client.interrupt_all()
        client.release_session()
    except PySparkException:
        # The server rejects the id of a session that has ended.
        return
    finally:
        client.close()


def arrow_schema(schema: Any) -> Any:
    """The Arrow schema of Spark's schema, with times in UTC."""
    convert = import_module("pyspark.sql.pandas.types").to_arrow_schema
    # Earlier versions have no such parameter, and times are in UTC.
    given = {"timezone": "UTC"} if VERSION >= ARROW_TIME_ZONE_SINCE else {}
    return convert(schema, **given)


def connect_plan(frame: Any, spark: Any) -> Any:
    """The plan of a DataFrame of Spark Connect, as a message."""
    return frame._plan.plan(spark.client)


__all__ = [
    "MODULES",
    "AutoCdcFlow",
    "DataSourceStreamArrowWriter",
    "Flow",
    "GraphElementRegistry",
    "MaterializedView",
    "Output",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "Sink",
    "SparkConnectGraphElementRegistry",
    "SupportsTriggerAvailableNow",
    "Table",
    "TemporaryView",
    "add_pipeline_analysis_context",
    "arrow_schema",
    "block_session_mutations",
    "connect_plan",
    "create_dataflow_graph",
    "drop_dataflow_graph",
    "end_session",
    "graph_element_registration_context",
    "start_run",
]
