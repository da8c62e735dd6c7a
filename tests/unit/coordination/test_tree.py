"""The tree in memory, and the documents kept in it."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordination import layout
from headrace.coordination.port import Check, Create, Delete, MultiFailed, Op, Set
from headrace.coordination.tree import Tree
from headrace.model.cluster import Endpoint
from headrace.model.topics import PartitionState

paths = st.sampled_from(["/a", "/b", "/a/a", "/a/b", "/a/b/c"])
versions = st.sampled_from([-1, -1, -1, 0, 1])
ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(Create, paths, st.binary(max_size=2), st.booleans()),
    st.builds(Create, paths),
    st.builds(Set, paths, st.binary(max_size=2), versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)


def same(one: Tree, other: Tree) -> bool:
    return one.nodes == other.nodes and all(
        one.children(path) == other.children(path) for path in one.nodes
    )


@given(st.lists(st.lists(ops, max_size=4), max_size=30))
def test_multi_is_atomic_and_its_replay_gives_the_same_tree(
    requests: list[list[Op]],
) -> None:
    tree, twin = Tree(), Tree()
    for zxid, request in enumerate(requests, 1):
        before = tree.copy()
        try:
            commit = tree.commit(request, 7, zxid)
        except MultiFailed:
            assert same(tree, before)
            continue
        assert len(commit.results) == len(request)
        twin.replay(commit.changes)
        assert same(tree, twin)
    for path in tree.owned_by(7):
        tree.commit([Delete(path)], 7, 1000)
    assert tree.owned_by(7) == []
    loaded = Tree(item for item in reversed(list(tree.nodes.items())) if item[0] != "/")
    assert {**loaded.nodes, "/": tree.nodes["/"]} == tree.nodes


def test_every_document_is_read_back_as_it_was_written() -> None:
    endpoints = (Endpoint("PLAINTEXT", "h", 1), Endpoint("INTERNAL", "::1", 2, "SSL"))
    info = layout.decode_broker(3, layout.encode_broker(endpoints, "r"), 77)
    assert (info.node_id, info.endpoints, info.rack, info.epoch) == (3, endpoints, "r", 77)
    topic = layout.TopicDocument(UUID(int=5), ((1, 2), (2, 3)))
    assert layout.decode_topic("t", layout.encode_topic(topic)) == topic
    first = PartitionState(1, 2, (1, 2), (2, 1), 3, (20, 10))
    states = [first, replace(first, leader=-1, replicas=(2, 3))]
    assignment = [state.replicas for state in states]
    data = layout.encode_states(UUID(int=5), states, 9)
    assert layout.decode_states("/p", data, UUID(int=5), assignment) == states
    assert layout.decode_config("/c", layout.encode_config({"b": "é", "a": ""})) == {
        "a": "",
        "b": "é",
    }
    assert layout.decode_producer_ids(layout.encode_producer_ids(12)) == 12
    assert layout.decode_controller(layout.encode_controller(4)) == 4
    assert layout.decode_controller_epoch(layout.encode_controller_epoch(4)) == 4


def test_partitions_are_stored_in_nodes_of_a_hundred() -> None:
    assert layout.states_path("t", 0) == layout.states_path("t", 99)
    assert layout.states_path("t", 100) == "/brokers/topics/t/state-100"
    assert list(layout.state_node_partitions(201)) == [0, 100, 200]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"{}", b'{"version":2}', b"\xff"])
def test_error_of_an_invalid_document_has_its_path(data: bytes) -> None:
    with pytest.raises(layout.LayoutError, match="/cluster/id"):
        layout.decode_cluster_id(data)


def test_states_that_do_not_match_the_assignment_are_ignored() -> None:
    data = layout.encode_states(UUID(int=5), [], 1)
    with pytest.raises(layout.LayoutError, match="0 partitions"):
        layout.decode_states("/p", data, UUID(int=5), [(1,)])


def test_change_list_keeps_the_latest_changes_and_reports_a_gap() -> None:
    rows = [layout.ChangeRow("topic", f"t{number}") for number in range(250)]
    changes = layout.ChangeLog(7, ()).with_rows(rows[:10]).with_rows(rows[10:])
    assert layout.decode_changes(layout.encode_changes(changes)) == changes
    assert changes.last == 257
    assert changes.since(257) == ()
    assert changes.since(255) == tuple(rows[-2:])
    assert changes.since(57) == tuple(rows[-200:])
    assert changes.since(56) is None
    assert changes.since(258) is None
    long = [layout.ChangeRow("topic", f"{number:0>249}") for number in range(100)]
    assert len(changes.with_rows(long).rows) == layout.CHANGE_BYTES_MAX // 249
