"""Problems of a project that are reported before Spark starts."""

import socket
from pathlib import Path

import pytest

from headrace.pipelines.preflight import check, scan
from headrace.pipelines.project import Project, ProjectError, open_project

SPEC = "name: mill\nstorage: x\nlibraries: [{glob: {include: t/**}}]\n"
DEFINITIONS = """\
from pyspark import pipelines as dp

SERVER = {"kafka.bootstrap.servers": spark.conf.get("headrace.bootstrap")}
dp.create_sink("out", "headrace", {**SERVER, "topic": "ground"})
dp.create_streaming_table(name="late")

@dp.table
def bronze():
    return spark.readStream.format("headrace").option("subscribe", "mill, water").load()

@dp.materialized_view(name="shop.sizes")
def other():
    return spark.read.table("bronze")
"""


def project(place: Path, **files: str) -> Project:
    (place / "t").mkdir()
    (place / "spark-pipeline.yml").write_text(SPEC)
    for name, text in files.items():
        (place / "t" / name.replace("_", ".")).write_text(text)
    return open_project(place)


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{unused.getsockname()[1]}"


def test_scan_finds_the_names_and_topics_that_files_spell_out(tmp_path: Path) -> None:
    view = "CREATE MATERIALIZED VIEW gold AS SELECT 1;"
    found = scan(project(tmp_path, a_py=DEFINITIONS, b_sql=view))
    assert found.names == {"out", "late", "bronze", "sizes", "gold"}
    assert found.topics == {"mill", "water"}
    assert found.uses_bootstrap
    assert found.has_all_names


def test_invalid_python_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r"t/a\.py:2: invalid Python: "):
        check(project(tmp_path, a_py="x = 1\ny = (\n"), {})


def test_unknown_table_in_full_refresh_is_reported(tmp_path: Path) -> None:
    of = project(tmp_path, a_py=DEFINITIONS.replace("headrace.bootstrap", "b"))
    check(of, {}, full_refresh=["bronze", "default.sizes"])
    with pytest.raises(ProjectError, match=r"unknown table 'silver' .* bronze, late, out, sizes"):
        check(of, {}, full_refresh=["silver"])


@pytest.mark.parametrize("more", ["dp.create_sink(NAME, 'x')", "import helper"])
def test_computed_names_are_left_to_spark(tmp_path: Path, more: str) -> None:
    (tmp_path / "helper.py").touch()
    check(project(tmp_path, a_py=more), {}, full_refresh=["silver"])


def test_broker_that_is_down_is_reported(tmp_path: Path) -> None:
    address, of = closed_port(), project(tmp_path, a_py=DEFINITIONS)
    with pytest.raises(ProjectError, match=f"no broker responds at {address}"):
        check(of, {"headrace.bootstrap": address})
    check(of, {"headrace.bootstrap": address}, reaches_brokers=False)
