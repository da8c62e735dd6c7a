"""Problems of a project that are reported before Spark starts."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.env import java
from headrace.pipelines import preflight
from headrace.pipelines.preflight import check, scan
from headrace.pipelines.project import Project, ProjectError, open_project
from headrace.pipelines.server import check_master, check_remote
from headrace.spark import versions

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


def test_topic_in_a_constant_is_found(tmp_path: Path) -> None:
    text = 'TOPIC = "mill"\nOTHER = "a"\nOTHER = "b"\n'
    reads = "x.option('subscribe', TOPIC)\nx.options(subscribe=OTHER)\n"
    assert scan(project(tmp_path, a_py=text + reads)).topics == {"mill"}


@pytest.mark.parametrize("installed", ["3.5.1", "4.0.5", "4.9.0", "5.0.0.dev1"])
def test_unsupported_pyspark_is_rejected(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "installed", lambda: installed)
    expected = (
        f"requires PySpark 4.1 to 4.3, but PySpark {installed} is installed. Run: pip install"
    )
    with pytest.raises(ProjectError, match=re.escape(expected)):
        preflight.check_packages(starts_spark=False)


def test_missing_pyspark_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: None)
    with pytest.raises(ProjectError, match="it is not installed"):
        preflight.check_packages(starts_spark=False)


@pytest.mark.parametrize("installed", ["4.1.4", "4.2.1", "4.3.0"])
def test_supported_pyspark_is_accepted(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "installed", lambda: installed)
    assert preflight.check_packages(starts_spark=False) == versions.version_of(installed)


def test_data_source_accepts_newer_pyspark_than_the_tested_ones() -> None:
    assert versions.check("4.9.0", "headrace.spark", "spark", versions.OLDEST) == (4, 9)
    with pytest.raises(
        ImportError, match=r"requires PySpark 4\.0 or newer, but PySpark 3\.5\.1 is"
    ):
        versions.check("3.5.1", "headrace.spark", "spark", versions.OLDEST)


def test_missing_package_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_PACKAGES", ("not_a_package",))
    with pytest.raises(ProjectError, match="requires not_a_package, which is not installed"):
        preflight.check_packages(starts_spark=False)


def test_missing_java_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", list)
    preflight.check_packages(starts_spark=False)
    with pytest.raises(ProjectError, match="Spark requires Java 17 or newer"):
        preflight.check_packages(starts_spark=True)


def test_preflight_does_not_import_pyspark(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    (tmp_path / "t" / "a.py").write_text("x = (\n")
    program = (
        "import sys; from headrace.cli.main import main; "
        f"code = main(['pipeline', 'run', {str(tmp_path)!r}]); "
        "print(code, *sorted({'pyspark', 'pyarrow', 'pandas', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


@pytest.mark.parametrize(
    ("master", "reason"),
    [
        ("spark://mill", "'mill' is not HOST:PORT"),
        ("spark://mill:x", "'mill:x' is not HOST:PORT"),
        ("spark://mill:70000", "'mill:70000' is not HOST:PORT"),
        ("spark://a:1,:7077", "':7077' is not HOST:PORT"),
        ("spark://", "'' is not HOST:PORT"),
        ("spark://::1:7077", "'::1:7077' is not HOST:PORT"),
    ],
)
def test_invalid_master_url_is_rejected(master: str, reason: str) -> None:
    with pytest.raises(ProjectError, match=re.escape(reason)):
        check_master(master)


def test_master_is_reachable_if_one_of_several_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://{closed_port()},127.0.0.1:{server.getsockname()[1]}")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        check_master(f"spark://[::1]:{server.getsockname()[1]}")
    check_master("local[2]")
    check_master("yarn")
    with pytest.raises(ProjectError, match="no Spark master responds at spark://127"):
        check_master(f"spark://{closed_port()}")


@pytest.mark.parametrize("address", ["sc://", "http://mill:1", "sc://mill:x/;token=secret"])
def test_invalid_connect_address_is_rejected_without_its_token(address: str) -> None:
    with pytest.raises(ProjectError, match="is not a Spark Connect address") as error:
        check_remote(address)
    assert "secret" not in str(error.value)
