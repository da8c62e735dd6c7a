"""Copying the tree of a single broker into ZooKeeper, interrupted and repeated."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.coordination import layout
from headrace.coordination.copying import COPIED_SUFFIX, copy_to_zookeeper
from headrace.coordination.embedded import EmbeddedStore
from headrace.coordination.port import Store, StoreUnavailable
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.ensemble.zookeeper import LocalZooKeeper, free_port

TREE = {
    "/cluster": b"",
    layout.CLUSTER_ID: layout.encode_cluster_id("mill"),
    "/brokers": b"",
    "/brokers/topics": b"",
    "/brokers/topics/t": b"assignment",
    "/brokers/topics/t/state-0": bytes(range(256)),
    layout.PRODUCER_IDS: layout.encode_producer_ids(3000),
}


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    zookeeper = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), [free_port()], durable=False)
    zookeeper.start()
    yield zookeeper.connect
    zookeeper.kill()


async def _write_file(file: Path) -> None:
    single = await EmbeddedStore.open(str(file))
    for path, data in TREE.items():
        await single.create(path, data)
    await single.create("/controller", b"", ephemeral=True)
    await single.close()


async def _tree_at(store: Store, path: str = "/") -> dict[str, bytes]:
    found = {} if path == "/" else {path: (await store.get(path))[0]}
    for name in await store.children(path):
        found |= await _tree_at(store, f"{path.rstrip('/')}/{name}")
    return found


def test_interrupted_copy_is_repeated_and_a_complete_one_is_not(
    connect: str, tmp_path: Path
) -> None:
    file = tmp_path / "store.db"

    async def scenario() -> None:
        await _write_file(file)
        there = await ZooKeeperStore.open(connect + "/again")
        await there.create("/brokers")
        await there.create(layout.PRODUCER_IDS, b"half a copy")
        await copy_to_zookeeper(str(file), connect + "/again")
        assert await _tree_at(there) == TREE
        assert not file.exists()
        # As if the process had ended before it renamed the file, and then the cluster had changed.
        file.with_name(file.name + COPIED_SUFFIX).rename(file)
        await there.set(layout.PRODUCER_IDS, b"gone on")
        await copy_to_zookeeper(str(file), connect + "/again")
        assert not file.exists()
        assert await _tree_at(there) == {**TREE, layout.PRODUCER_IDS: b"gone on"}
        await there.close()

    asyncio.run(asyncio.wait_for(scenario(), 150))


def test_another_cluster_is_left_alone(connect: str, tmp_path: Path) -> None:
    file = tmp_path / "store.db"

    async def scenario() -> None:
        await _write_file(file)
        there = await ZooKeeperStore.open(connect + "/other")
        await there.create("/cluster")
        await there.create(layout.CLUSTER_ID, layout.encode_cluster_id("weir"))
        with pytest.raises(StoreUnavailable, match="contains the cluster weir"):
            await copy_to_zookeeper(str(file), connect + "/other")
        assert set(await _tree_at(there)) == {"/cluster", layout.CLUSTER_ID}
        assert file.exists()
        await there.close()

    asyncio.run(asyncio.wait_for(scenario(), 150))
