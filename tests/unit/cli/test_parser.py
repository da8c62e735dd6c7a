"""Errors of the command line's parser."""

from pathlib import Path

import pytest

from headrace.cli import main as cli


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topics"], "ACTION is missing: use one of create, list, describe, alter, delete"),
        (["topics", "create", "t", "--partions", "3"], "Did you mean --partitions?"),
        (["topics", "create", "t", "--partition", "3"], "Did you mean --partitions?"),
        (["topics", "descibe"], "Did you mean describe?"),
        (["consume", "t", "--fron=latest"], "Did you mean --from?"),
    ],
)
def test_errors_suggest_the_nearest_option_or_action(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_unknown_option_of_an_action_prints_the_usage_of_the_action(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["topics", "create", "t", "--partition", "3"])
    assert capsys.readouterr().err.startswith("usage: headrace topics create ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "--port", "99999"], "argument --port: '99999' is not a port from 0 to 65535"),
        (["up", "--port", "abc"], "argument --port: 'abc' is not a port from 0 to 65535"),
        (["zookeeper", "--port", "-1"], "argument --port: '-1' is not a port from 0 to 65535"),
        (["up", "--brokers", "two"], "argument --brokers: 'two' is not a number"),
    ],
)
def test_wrong_numbers_are_reported_with_their_option(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "--data", ""], "argument --data: the value is empty"),
        (["up", "--data", " "], "argument --data: the value is empty"),
        (["down", "--data="], "argument --data: the value is empty"),
        (["topics", "list", "--bootstrap-server", ""], "argument --bootstrap-server: the value"),
        (["topics", "list", "--config", ""], "argument --config/--command-config: the value"),
        (["log", "check", ""], "argument DIR: the value is empty"),
    ],
)
def test_empty_directories_files_and_addresses_are_rejected(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_empty_data_directory_in_a_setting_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["up", "--detach", "--set", "log.dirs="]) == 2
    assert "--set log.dirs is empty" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sample", [[], ["--sample", "shop"]])
def test_pipeline_init_reports_an_unusable_directory(
    sample: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["pipeline", "init", str(tmp_path / "file" / "mill"), *sample]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"headrace: Cannot create {tmp_path}")
    assert "Not a directory. Choose another directory" in said
