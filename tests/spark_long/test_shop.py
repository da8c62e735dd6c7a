"""The sample project on its own Spark, in JSON and in Avro: its own test, and a replay."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client import connect
from headrace.pipelines.sample import write_project
from headrace.testing import RunningBroker
from tests.broker.test_testing_plugin import PLUGIN
from tests.pipelines.shop import Shop
from tests.pipelines.test_shop import write_nasty

pytestmark = pytest.mark.timeout(1_800)


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


@pytest.mark.parametrize("avro", [False, True])
def test_tables_are_the_same_after_a_new_field_and_a_replay(
    tmp_path: Path, broker: RunningBroker, avro: bool
) -> None:
    directory = tmp_path / "shop"
    warehouse = directory / ".headrace" / "warehouse"
    shop = Shop(directory, broker.address, warehouse, None, avro=avro)
    shop.generate(first=440, orders=60)
    read = shop.run()
    shop.check(first=440, orders=60)
    shop.generate(first=500, orders=60)
    with connect(broker.address) as client:
        write_nasty(client)
        more = shop.run()
        assert shop.lag(client) == 0
    shop.check(first=440, orders=120)
    before = shop.tables()
    assert len(before["raw_orders"]) == read + more
    for limit in ("1000000", "61"):
        shop.run("--full-refresh", "all", "--conf", f"shop.max_offsets_per_trigger={limit}")
        assert shop.tables() == before


def test_the_project_runs_with_the_command_of_spark_alone(
    tmp_path: Path, broker: RunningBroker
) -> None:
    directory = tmp_path / "shop"
    # Spark's default directory for tables.
    shop = Shop(directory, broker.address, directory / "spark-warehouse", None)
    shop.generate(first=440, orders=60)
    shop.run_with_spark(None)
    shop.check(first=440, orders=60)
