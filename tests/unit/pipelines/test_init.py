"""`headrace pipeline init` without the packages that its project needs."""

import sys
from pathlib import Path

import pytest

from headrace.cli.main import main


@pytest.mark.parametrize("missing", ["pyspark", "grpc"])
def test_init_names_the_missing_extra(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["pipeline", "init", "mill"]) == 0
    said = capsys.readouterr().out
    assert "is not installed. Run: pip install" in said
    assert said.index("pip install") < said.index("Next: cd mill")
    assert (tmp_path / "mill").is_dir()


def test_init_reports_a_directory_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mill").write_text("")
    assert main(["pipeline", "init", "mill"]) == 1
    assert "headrace: Cannot create mill: Not a directory." in capsys.readouterr().err
