"""The hot modules: compiled where there is a compiler, and the same without."""

import os
import shutil
import subprocess
import sys
import sysconfig
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
HOT_TESTS = ("tests/unit/test_record_batch.py", "tests/wire/test_produce_codec.py")


@pytest.mark.skipif(RUNS_FROM_SOURCE, reason="nothing is built here")
def test_what_is_installed_is_compiled_where_there_is_a_compiler() -> None:
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


def test_the_tests_of_hot_modules_pass_without_a_compiler() -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *HOT_TESTS],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
