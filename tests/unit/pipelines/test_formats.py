"""Table formats: which builds fit which Spark, and the settings for each."""

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.failure import Failure
from headrace.cli.pipeline import check_jars
from headrace.pipelines import formats
from headrace.pipelines.formats import BUILDS
from headrace.pipelines.project import ProjectError, spec_of

PACKAGES = "spark.jars.packages"


def server_settings(*arguments: Any, **named: Any) -> dict[str, str]:
    return formats.server_settings(*arguments, is_local=True, **named)


def test_format_gets_the_build_for_this_spark_and_its_catalog() -> None:
    iceberg = server_settings("iceberg", (4, 1), "/w", given={})
    assert iceberg[PACKAGES] == BUILDS["iceberg"][4, 1]
    assert iceberg["spark.sql.catalog.spark_catalog.warehouse"] == "/w"
    assert iceberg["spark.hadoop.fs.file.impl"].endswith(".LocalFileSystem")
    delta = server_settings("delta", (4, 2), "/w", given={PACKAGES: "a:b:1"})
    assert delta[PACKAGES] == f"{BUILDS['delta'][4, 2]},a:b:1"
    assert "DeltaCatalog" in delta["spark.sql.catalog.spark_catalog"]


def test_jars_and_settings_of_the_user_take_precedence() -> None:
    jar = "/jars/iceberg-spark-runtime-4.1_2.13-1.11.0.jar"
    own = {"spark.sql.catalog.spark_catalog.type": "rest"}
    settings = server_settings("iceberg", (4, 1), "/w", jars=jar, given=own)
    assert settings["spark.jars"] == jar
    assert PACKAGES not in settings
    assert settings["spark.sql.catalog.spark_catalog.type"] == "rest"
    given = {PACKAGES: "io.delta:delta-spark_4.1_2.13:4.3.0"}
    assert server_settings("delta", (4, 1), "/w", given=given)[PACKAGES] == given[PACKAGES]


def test_plain_formats_need_no_jars() -> None:
    assert server_settings(None, (4, 3), "/w", given={"a": "b"}) == {"a": "b"}
    assert server_settings("orc", (4, 3), "/w", given={}) == {}


@pytest.mark.parametrize(
    ("name", "jars", "message"),
    [
        ("iceberg", None, "format iceberg has no build for Spark 4.3; tested builds are for 4.1."),
        ("delta", None, "format delta has no build for Spark 4.3"),
        (
            "delta",
            "delta-spark_4.2_2.13-4.4.0.jar",
            "is built for Spark 4.2, but this is Spark 4.3",
        ),
        ("hudi", None, "unknown table format 'hudi'. Known: iceberg, delta, parquet"),
    ],
)
def test_pair_of_spark_and_format_without_a_build_is_rejected(
    name: str, jars: str | None, message: str
) -> None:
    with pytest.raises(ProjectError, match=re.escape(message)):
        server_settings(name, (4, 3), "/w", jars=jars, given={})


def test_specification_names_a_format() -> None:
    plain = {"name": "a", "storage": "s"}
    assert spec_of(plain, "p").format is None
    assert spec_of({**plain, "format": "Iceberg"}, "p").format == "iceberg"
    with pytest.raises(ProjectError, match="'format' is 5"):
        spec_of({**plain, "format": 5}, "p")


def test_jar_that_does_not_exist_is_rejected(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    check_jars(f"{jar},https://host/b.jar")
    with pytest.raises(Failure, match=r"--jars: /nope.jar is not a file") as failure:
        check_jars(f"{jar},/nope.jar")
    assert failure.value.exit_code == 2
