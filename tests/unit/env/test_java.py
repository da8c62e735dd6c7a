"""The choice of Java: the first installation that is new enough, and its release file."""

from pathlib import Path

import pytest

from headrace.env.java import find_java, java_modules


def fake_java(home: Path, release: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (home / "release").write_text(release)
    return java


def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", 'JAVA_VERSION="11.0.2"\n')
    new = fake_java(tmp_path / "new", 'JAVA_VERSION="21.0.8"\n')
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", str(new.parent))
    assert find_java("Spark", extra="spark") == new
    monkeypatch.setenv("JAVA_HOME", str(new.parent.parent))
    monkeypatch.setenv("PATH", str(old.parent))
    assert find_java("Spark", extra="spark") == new


def test_the_modules_are_those_of_the_release_file(tmp_path: Path) -> None:
    java = fake_java(tmp_path, 'JAVA_VERSION="17.0.1"\nMODULES="java.base jdk.incubator.vector"\n')
    assert java_modules(java) == {"java.base", "jdk.incubator.vector"}
    silent = fake_java(tmp_path / "silent", 'JAVA_VERSION="17.0.1"\n')
    assert java_modules(silent) == frozenset()
