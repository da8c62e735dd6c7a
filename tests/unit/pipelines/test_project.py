"""A pipeline's project: its specification and its directories."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from headrace.pipelines.listening import Show
from headrace.pipelines.lock import run_lock
from headrace.pipelines.outcome import Request
from headrace.pipelines.project import ProjectError, open_project, spec_of
from headrace.pipelines.running import RunFailed, Runner
from headrace.pipelines.server import Server, ServerFailed, running_server

SPEC = {"name": "shop", "storage": ".headrace/checkpoints"}


def write(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "spark-pipeline.yml").write_text(text)
    return directory


def test_storage_is_relative_to_the_project_or_stays_as_it_is(tmp_path: Path) -> None:
    place = write(tmp_path / "the-shop", "name: shop\nstorage: .headrace/c\n")
    project = open_project(place)
    assert project.storage == f"file://{place}/.headrace/c"
    assert project.checkpoints == place / ".headrace" / "c" / "_checkpoints"
    far = open_project(write(tmp_path / "far", "name: shop\nstorage: s3://bucket/c\n"))
    assert (far.storage, far.checkpoints) == ("s3://bucket/c", None)
    absolute = open_project(write(tmp_path / "abs", "name: shop\nstorage: /var/c\n"))
    assert absolute.storage == "file:///var/c"


def test_a_path_that_spark_would_escape_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="characters that Spark escapes"):
        open_project(write(tmp_path / "the shop", "name: shop\nstorage: c\n"))


def test_the_command_goes_before_the_project(tmp_path: Path) -> None:
    text = 'name: shop\nstorage: x\nconfiguration: {headrace.bootstrap: "a:1", shop.b: "2"}\n'
    project = open_project(write(tmp_path, text))
    assert project.configuration(None) == {"headrace.bootstrap": "a:1", "shop.b": "2"}
    assert project.configuration("c:3", {"shop.b": "4"}) == {
        "headrace.bootstrap": "c:3",
        "shop.b": "4",
    }


def test_files_are_those_of_the_libraries_in_order(tmp_path: Path) -> None:
    text = "name: a\nstorage: x\nlibraries: [{glob: {include: t/**}}, {glob: {include: z.py}}]\n"
    write(tmp_path, text)
    for name in ("t/b.sql", "t/deep/a.py", "t/__pycache__/b.pyc", "z.py", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    project = open_project(tmp_path)
    assert [project.shown(path) for path in project.files()] == ["t/b.sql", "t/deep/a.py", "z.py"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**SPEC, "stroage": "x"}, "unknown key 'stroage'"),
        ({"name": "shop"}, "'storage' is missing"),
        ({**SPEC, "configuration": {"a": 1}}, "the value must be in quotes"),
        ({**SPEC, "configuration": "a"}, "settings and their values"),
        ({**SPEC, "libraries": ["a"]}, "a library must have the form"),
        ({**SPEC, "libraries": [{"glob": {"include": "a/*.py"}}]}, "neither a file nor"),
    ],
)
def test_error_in_the_specification_is_explained(content: dict[str, Any], said: str) -> None:
    with pytest.raises(ProjectError, match=said):
        spec_of(content, "spark-pipeline.yml")


def test_directory_that_is_not_a_project_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="headrace pipeline init"):
        open_project(tmp_path)
    with pytest.raises(ProjectError, match="is not YAML"):
        open_project(write(tmp_path, "a: [\n"))


def test_state_that_was_moved_is_rejected(tmp_path: Path) -> None:
    place = write(tmp_path / "here", "name: a\nstorage: x\n")
    open_project(place).prepare_state()
    open_project(place).prepare_state()
    moved = place.rename(tmp_path / "there")
    with pytest.raises(ProjectError, match="cannot be moved"):
        open_project(moved).prepare_state()


def test_state_remains_usable_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "here", "name: a\nstorage: x\n")

    def no_space(path: Path, *_: object, **__: object) -> int:
        path.open("w").close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", no_space)
            with suppress(ProjectError):
                open_project(place).prepare_state()
        open_project(place).prepare_state()


def test_storage_of_another_project_is_rejected(tmp_path: Path) -> None:
    place = tmp_path / "here"
    text = f"name: a\nstorage: file://{place}/.headrace/checkpoints\n"
    open_project(write(place, text))
    with pytest.raises(ProjectError, match=f"Change it to file://{tmp_path}/copy/.headrace/check"):
        open_project(write(tmp_path / "copy", text))
    open_project(write(tmp_path / "own", "name: a\nstorage: file:///var/c\n"))


def test_state_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    project = open_project(write(tmp_path / "shop", "name: shop\nstorage: c\n"))
    project.state.write_text("")
    with pytest.raises(ProjectError, match=r"cannot write to .*/shop/.headrace: File exists"):
        project.prepare_state()
    project.state.unlink()
    project.prepare_state()
    (project.state / "lock").mkdir()
    with (
        pytest.raises(ProjectError, match=r"cannot create .*/lock: Is a directory"),
        run_lock(project),
    ):
        pass
    (project.state / "tmp").write_text("")
    with (
        pytest.raises(ServerFailed, match=r"did not start: .*tmp"),
        running_server(project, "local"),
    ):
        pass


def test_full_disk_during_a_run_is_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = open_project(write(tmp_path / "shop", "name: shop\nstorage: c\n"))
    runner = Runner(project, None, {}, Server(""), cast(Show, None))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "last-run.json.new")

    monkeypatch.setattr(runner, "_run", fail)
    with pytest.raises(RunFailed, match=r"No space left on device: 'last-run.json.new'. Correct"):
        runner.run(Request())


@pytest.mark.parametrize("error", [RunFailed("UNAVAILABLE"), PySparkException("UNAVAILABLE")])
def test_run_reports_that_its_spark_server_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    project = open_project(write(tmp_path / "shop", "name: shop\nstorage: c\n"))
    endings = [None, "SIGKILL"]
    server = Server("", ended=lambda: endings.pop(0))
    runner = Runner(project, None, {}, server, cast(Show, None))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(runner, "_run", fail)
    with pytest.raises(type(error), match="UNAVAILABLE"):
        runner.run(Request())
    with pytest.raises(ServerFailed, match="Spark has ended: SIGKILL"):
        runner.run(Request())
