"""The commands for clusters in docs/SPARK.md, run as written on the sample pipeline."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.client import connect
from headrace.testing import RunningBroker
from tests.pipelines.shop import Shop
from tests.spark_cluster.cluster import PROJECT, Cluster, wait_for

PAGE = PROJECT / "docs" / "SPARK.md"
ORDERS = 60


def commands(heading: str) -> list[str]:
    """The shell blocks below a heading."""
    section = re.split(r"^#+ ", PAGE.read_text().partition(f"### {heading}\n")[2], flags=re.M)[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def environment(place: Path) -> dict[str, str]:
    """One in which `headrace`, `python` and PySpark's commands are those of this test."""
    place.mkdir()
    script = place / "headrace"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m headrace "$@"\n')
    script.chmod(0o755)
    path = f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    wanted = {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    # Runs are short: compiling well what they execute takes longer than executing it.
    return {**os.environ, **wanted, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


def run(script: str, directory: Path, settings: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=directory,
        env=settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_standalone_commands_run_the_shop(
    cluster: Cluster, broker: RunningBroker, tmp_path: Path
) -> None:
    directory = cluster.shared / "shop"
    warehouse = directory / ".headrace" / "warehouse"
    shop = Shop(directory, broker.address, warehouse, None)
    shop.generate(first=440, orders=ORDERS)
    (block,) = commands("Standalone")
    settings = environment(tmp_path / "bin")
    printed = run(block.replace("spark://HOST:7077", cluster.master), directory, settings)
    assert "Next: headrace pipeline run --master spark://HOST:7077 --pack env.tar.gz" in printed
    assert "shop: completed in " in printed
    shop.check(first=440, orders=ORDERS)
    with connect(broker.address) as client:
        assert shop.lag(client) == 0


@contextmanager
def connect_server(
    script: str, directory: Path, settings: Mapping[str, str], log: Path
) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["sh", "-ec", script],
            cwd=directory,
            env={**settings, "SPARK_NO_DAEMONIZE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(log, r"(Spark Connect server started)")
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def test_connect_commands_run_the_shop_with_both_commands(
    cluster: Cluster, archive: Path, broker: RunningBroker, tmp_path: Path
) -> None:
    directory, warehouse = cluster.shared / "remote", cluster.shared / "warehouse"
    shop = Shop(directory, broker.address, warehouse, None)
    shop.generate(first=440, orders=ORDERS)
    (tmp_path / "env.tar.gz").symlink_to(archive)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    start, use = commands("Spark Connect")
    start = start.replace("spark://HOST:7077", cluster.master)
    start = start.replace("/mnt/shared/warehouse", str(warehouse)).rstrip()
    start += f" --conf spark.connect.grpc.binding.port={port}"
    settings = environment(tmp_path / "bin")
    with connect_server(start, tmp_path, settings, tmp_path / "server.log"):
        for number, command in enumerate(use.strip().splitlines()):
            if number:
                shop.generate(first=440 + number * ORDERS, orders=ORDERS)
            run(command.replace("HOST:15002", f"127.0.0.1:{port}"), directory, settings)
            shop.check(first=440, orders=(number + 1) * ORDERS)
