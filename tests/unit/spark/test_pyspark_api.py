"""The undocumented parts of PySpark: this fails first on a version that changed them."""

import ast
import importlib.util
import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import datasource, types

from headrace.spark import pyspark_api
from headrace.spark.pyspark_api import MODULES, VERSION
from headrace.spark.versions import (
    AUTO_CDC_SINCE,
    NEWEST,
    OLDEST,
    PIPELINES_SINCE,
    READ_LIMITS_SINCE,
    installed,
    shown,
    version_of,
)

SOURCES = Path(pyspark_api.__file__).parents[1]
DOCUMENTED = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming.listener",
    "pyspark.sql.types",
}
PARAMETERS = {
    "SparkConnectGraphElementRegistry": ["spark", "dataflow_graph_id"],
    "add_pipeline_analysis_context": ["spark", "dataflow_graph_id", "flow_name"],
    "block_session_mutations": [],
    "create_dataflow_graph": ["spark", "default_catalog", "default_database", "sql_conf"],
    "graph_element_registration_context": ["registry"],
    "start_run": [
        *("spark", "dataflow_graph_id", "full_refresh", "full_refresh_all", "refresh"),
        *("dry", "storage"),
    ],
}
FIELDS = {
    "AutoCdcFlow": {"name", "target", "source", "source_code_location"},
    "Flow": {"name", "target", "source_code_location", "func"},
    "Output": {"name", "source_code_location"},
    "Sink": {"name", "format", "options", "source_code_location"},
}
needs_pipelines = pytest.mark.skipif(VERSION < PIPELINES_SINCE, reason="PySpark has no pipelines")


def test_installed_pyspark_is_a_tested_version() -> None:
    assert installed() == pyspark.__version__
    assert OLDEST <= VERSION <= NEWEST, (
        f"PySpark {pyspark.__version__} is not tested: run 'make test-spark-versions' on it, then "
        f"change OLDEST ({shown(OLDEST)}) or NEWEST ({shown(NEWEST)}) in headrace/spark/versions.py"
    )


def test_older_pyspark_is_rejected_with_the_oldest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    spec = importlib.util.find_spec("headrace.spark.pyspark_api")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(
        ImportError, match=r"requires PySpark 4\.0 or newer, but PySpark 3\.5\.1 is"
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@needs_pipelines
def test_name_of_a_later_pyspark_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import pipelines

    from headrace.pipelines.definitions import _raised
    from headrace.pipelines.project import Project, Spec

    monkeypatch.delattr(pipelines, "create_auto_cdc_flow", raising=False)
    project = Project(tmp_path, Spec("p", "s", None, None, {}, ()))
    with pytest.raises(AttributeError) as raised:
        pipelines.create_auto_cdc_flow  # noqa: B018
    found = _raised(project, None, raised.value, ("a.py", 1))
    assert "'create_auto_cdc_flow'. It requires PySpark 4.2" in found.message


def test_version_is_read_from_a_release_and_a_preview() -> None:
    assert [version_of(text) for text in ("4.1.4", "4.10.0.dev1")] == [(4, 1), (4, 10)]


@needs_pipelines
@pytest.mark.parametrize("name", MODULES)
def test_undocumented_name_exists_as_expected(name: str) -> None:
    if name == "AutoCdcFlow" and VERSION < AUTO_CDC_SINCE:
        pytest.skip("PySpark has no automatic change data capture")
    found: Any = getattr(pyspark_api, name)
    assert found.__name__ == name, f"{MODULES[name]} of PySpark {pyspark.__version__} has no {name}"
    if name in PARAMETERS:
        assert list(inspect.signature(found).parameters) == PARAMETERS[name]
    if name in FIELDS:
        assert FIELDS[name] <= set(found.__dataclass_fields__)


@needs_pipelines
def test_registry_has_no_abstract_method_that_the_collector_lacks() -> None:
    from headrace.pipelines.definitions import _Collector

    assert _Collector.__abstractmethods__ == frozenset()


@needs_pipelines
def test_spark_connect_can_drop_a_pipeline() -> None:
    import pyspark.sql.connect.proto as proto
    from pyspark.sql.connect.client import SparkConnectClient

    command = proto.Command()
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = "id"
    assert command.WhichOneof("command_type") == "pipeline_command"
    assert callable(SparkConnectClient.execute_command)


def test_times_of_an_arrow_schema_are_in_utc() -> None:
    schema = types.StructType().add("at", types.TimestampType()).add("n", types.LongType())
    expected = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    assert pyspark_api.arrow_schema(schema) == expected


def test_private_attributes_of_the_session_exist() -> None:
    for name in ("_active_spark_context", "_gateway", "_jvm"):
        assert hasattr(SparkContext, name), f"SparkContext of PySpark {pyspark.__version__}: {name}"


def test_stream_reader_takes_limits_if_and_only_if_this_version_has_them() -> None:
    latest = inspect.signature(datasource.DataSourceStreamReader.latestOffset)
    assert (len(latest.parameters) == 3) == (VERSION >= READ_LIMITS_SINCE)
    assert issubclass(pyspark_api.DataSourceStreamArrowWriter, datasource.DataSourceStreamWriter)


def test_other_modules_import_only_documented_parts_of_pyspark() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        if path == Path(pyspark_api.__file__) or "shop" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            found |= {
                f"{path.relative_to(SOURCES)}: {name}"
                for name in names
                if name.partition(".")[0] == "pyspark" and name not in DOCUMENTED
            }
    assert found == set()


def test_polling_interval_is_short_after_an_overflow_of_64_bits() -> None:
    interval_s = pyspark_api.polling_interval(96)
    assert 0 < interval_s < 1 << 63
    assert interval_s * 1_000 % (1 << 64) == 96


@pytest.mark.parametrize("version", ["4.2.1", "4.3.1", "4.3.0-vendor-1", "4.4.0"])
def test_polling_interval_is_unchanged_on_a_server_of_another_version(version: str) -> None:
    spark = Mock(version=version)
    pyspark_api.poll_flows_often(spark)
    spark.conf.set.assert_not_called()


def test_polling_interval_is_set_on_a_server_of_a_known_version() -> None:
    spark = Mock(version="4.3.0")
    pyspark_api.poll_flows_often(spark)
    spark.conf.set.assert_called_once_with(
        pyspark_api.POLLING, str(pyspark_api.polling_interval(96))
    )
