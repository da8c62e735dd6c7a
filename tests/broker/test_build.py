"""The hot modules: compiled where there is a compiler, and the same without."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import headrace
from headrace.testing import RunningBroker
from tests.interop.client import Record
from tests.interop.librdkafka import Librdkafka
from tests.interop.stored import CODECS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
RUNS_FROM_SOURCE = SOURCES in Path(headrace.__file__).parents
UNCOMPILED_TESTS = (
    "tests/unit/record/test_batch.py",
    "tests/wire/test_produce_codec.py",
    "tests/storage/test_log_memory.py",
)


@pytest.mark.skipif(RUNS_FROM_SOURCE, reason="nothing is built here")
def test_installed_package_is_compiled_if_a_compiler_exists() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    can_compile = shutil.which(compiler) and os.environ.get("HEADRACE_COMPILE") != "0"
    assert headrace.compiled() == bool(can_compile)


def test_a_broker_runs_from_the_sources_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    records = [Record(b"%d" % number, b"key", (("h", b"1"),)) for number in range(200)]
    with RunningBroker.start(tmp_path / "data") as broker:
        assert "uncompiled" in broker.log()
        client = Librdkafka(broker.address)
        for codec in CODECS:
            client.produce("mill", records, codec=codec, idempotent=True)
        broker.kill()
        broker.restart()
        found = client.consume("mill", 200 * len(CODECS))
    assert [stored.record.value for stored in found] == [r.value for r in records] * len(CODECS)


@pytest.mark.parametrize("module", UNCOMPILED_TESTS)
def test_tests_of_hot_modules_pass_without_compiled_code(module: str) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, module],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def built_wheel(tmp_path: Path, **environment: str) -> zipfile.ZipFile:
    """A wheel of a copy of the project, with a mypyc whose extension no compiler accepts."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, project)
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(SOURCES, project / "src", ignore=unwanted)
    stub = tmp_path / "stub" / "mypyc"
    stub.mkdir(parents=True)
    (stub / "__init__.py").touch()
    (stub / "build.py").write_text(
        "from setuptools import Extension\n"
        "def mypycify(*args, **kwargs): return [Extension('headrace.broken', ['broken.c'])]\n"
    )
    (project / "broken.c").write_text("this is not C\n")
    done = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(stub.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the hot modules are not compiled" in done.stderr
    (wheel,) = (project / "dist").iterdir()
    return zipfile.ZipFile(wheel)


def test_wheel_without_a_compiler_is_tagged_as_pure(tmp_path: Path) -> None:
    with built_wheel(tmp_path) as wheel:
        assert str(wheel.filename).endswith("-py3-none-any.whl")
        names = wheel.namelist()
        assert not [name for name in names if name.endswith((".so", ".pyc"))]
        (tags,) = [name for name in names if name.endswith("/WHEEL")]
        assert b"Root-Is-Purelib: true" in wheel.read(tags)
        assert "headrace/cli/main.py" in names


def test_readme_of_a_release_has_absolute_links(tmp_path: Path) -> None:
    url = "https://example.org/headrace"
    with built_wheel(tmp_path, HEADRACE_URL=url, HEADRACE_COMPILE="0") as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = wheel.read(name).decode()
    assert f"Project-URL: Homepage, {url}\n" in metadata
    assert "Description-Content-Type: text/markdown" in metadata
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert len(links) > 5
    assert [link for link in links if not link.startswith("https://")] == []
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", metadata)
    assert images
    assert [link for link in images if not link.startswith(f"{url}/raw/")] == []


def test_old_python_is_rejected_with_the_version_it_needs() -> None:
    text = (ROOT / "setup.py").read_text()
    fake = "import sys; sys.version_info = (3, 10, 0); sys.argv = ['setup.py', '--version']\n"
    done = subprocess.run(
        [sys.executable, "-c", fake + text], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "headrace needs Python 3.11 or newer; this is Python" in done.stderr
