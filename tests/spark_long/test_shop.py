"""The sample project in Avro, and its own test as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.pipelines.sample import write_project
from headrace.testing import RunningBroker
from tests.broker.test_testing_plugin import PLUGIN
from tests.pipelines.shop import Shop

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("avro", [False, True])
def test_the_project_passes_its_own_test(tmp_path: Path, avro: bool) -> None:
    write_project(tmp_path / "shop", name="shop", bootstrap="nobody:1", avro=avro)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGIN],
        cwd=tmp_path / "shop",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_events_in_avro_with_two_schemas_give_the_same_tables_after_a_replay(
    tmp_path: Path, broker: RunningBroker
) -> None:
    directory = tmp_path / "shop"
    warehouse = directory / ".headrace" / "warehouse"
    shop = Shop(directory, broker.address, warehouse, None, avro=True)
    shop.generate(first=440, orders=60)
    shop.run()
    shop.generate(first=500, orders=60)
    shop.run()
    shop.check(first=440, orders=120)
    before = shop.tables()
    for limit in ("1000000", "61"):
        shop.run("--full-refresh", "all", "--conf", f"shop.max_offsets_per_trigger={limit}")
        assert shop.tables() == before
