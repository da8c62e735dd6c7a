"""Where ZooKeeper's jars are found, and how they are downloaded."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.ensemble import zookeeper_jars
from headrace.ensemble.requirements import NotInstalled
from headrace.ensemble.zookeeper import free_port
from headrace.ensemble.zookeeper_jars import JARS, cache_directory, class_path, find_jars
from tests.unit.ensemble.maven_scenario import Mirror, mirror


@pytest.fixture
def maven() -> Iterator[Mirror]:
    with mirror() as server:
        yield server


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PySpark, ZooKeeper, cache and network."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name == zookeeper_jars.HOME_VARIABLE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(zookeeper_jars.MIRROR_VARIABLE, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(zookeeper_jars, "SYSTEM_DIRECTORIES", (tmp_path / "system",))
    monkeypatch.setattr(zookeeper_jars, "_pyspark_directories", list)


def make_jars(directory: Path, suffix: str = "") -> list[Path]:
    directory.mkdir(parents=True)
    jars = [directory / f"{jar.name}{suffix}.jar" for jar in JARS]
    for other in (*jars, directory / "zookeeper-it.jar", directory / "log4j-core.jar"):
        other.touch()
    return jars


def test_missing_jars_are_downloaded_once(
    maven: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(zookeeper_jars.MIRROR_VARIABLE, maven.url + "/")
    jars = class_path().split(os.pathsep)
    assert [Path(jar).name for jar in jars] == [jar.file for jar in JARS]
    assert [Path(jar).read_bytes() for jar in jars] == list(maven.files.values())
    assert maven.requests == list(maven.files)
    assert "Downloading ZooKeeper 3.9.5 (4.3 MB)" in capsys.readouterr().err
    assert class_path().split(os.pathsep) == jars
    assert len(maven.requests) == len(JARS)
    # Temporary files are removed.
    assert len(list(cache_directory().iterdir())) == len(JARS)


def test_download_uses_the_proxy_of_the_environment(
    maven: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(zookeeper_jars.MIRROR_VARIABLE, "http://maven.invalid/repository")
    monkeypatch.setenv("http_proxy", maven.url)
    prefix = "http://maven.invalid/repository"
    maven.files = {prefix + path: content for path, content in maven.files.items()}
    class_path()
    assert maven.requests == list(maven.files)


def test_jar_with_wrong_checksum_is_rejected(
    maven: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(zookeeper_jars.MIRROR_VARIABLE, maven.url)
    path = f"/{JARS[0].path}"
    maven.files[path] = maven.files[path][:-1] + b"x"
    with pytest.raises(NotInstalled, match=r"zookeeper-3\.9\.5\.jar: its SHA-256 is [0-9a-f]{64}"):
        class_path()
    assert list(cache_directory().iterdir()) == []


def test_failed_download_names_the_next_step(
    maven: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = r"Connection refused\. .*HEADRACE_MAVEN_URL.*HEADRACE_ZOOKEEPER_HOME"
    with pytest.raises(NotInstalled, match=expected):
        class_path()
    monkeypatch.setenv(zookeeper_jars.MIRROR_VARIABLE, maven.url)
    maven.files.clear()
    with pytest.raises(NotInstalled, match="HTTP status 404"):
        class_path()


def test_install_command_fills_the_cache(
    maven: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(zookeeper_jars.MIRROR_VARIABLE, maven.url)
    assert main(["zookeeper", "install"]) == 0
    assert f"is installed: {cache_directory()}" in capsys.readouterr().out
    assert [jar.name for jar in find_jars()] == [jar.file for jar in JARS]
    assert main(["zookeeper", "install"]) == 0
    assert len(maven.requests) == len(JARS)


def test_named_directory_beats_cache_and_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = make_jars(tmp_path / "system")
    assert find_jars() == system
    cache = make_jars(cache_directory(), "-9.9")
    assert find_jars() == cache
    named = make_jars(tmp_path / "apache-zookeeper" / "lib", "-3.8.4")
    monkeypatch.setenv(zookeeper_jars.HOME_VARIABLE, str(tmp_path / "apache-zookeeper"))
    assert find_jars() == named


def test_incomplete_named_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = make_jars(tmp_path / "home")
    jars[-1].unlink()
    monkeypatch.setenv(zookeeper_jars.HOME_VARIABLE, str(tmp_path / "home"))
    with pytest.raises(NotInstalled, match="lacks jars of ZooKeeper: snappy-java"):
        class_path()


def test_incomplete_system_directory_is_skipped(tmp_path: Path) -> None:
    jars = make_jars(tmp_path / "system")
    jars[0].unlink()
    assert find_jars() == []


def test_jars_stay_below_the_promised_size() -> None:
    assert sum(jar.size for jar in JARS) < 30_000_000
