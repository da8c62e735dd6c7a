"""ACLs in the store: every broker shows them, and a node that cannot be read is reported."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.controller import acl_admin
from headrace.coordination import acl_layout, layout
from headrace.coordination.port import REQUEST_BYTES_MAX, Watch
from headrace.model.acls import Acl, AclFilter, Operation, PatternType, ResourceType
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.controller.cluster_scenario import Cluster, Member, cluster_of
from tests.unit.controller.controller_scenario import until
from tests.unit.security.acl_scenario import ALLOW, DENY, PREFIXED, TOPIC, USERS, allow, deny

ANN, BOB = USERS


def shown(image: ClusterImage) -> set[Acl]:
    return {acl for acls in image.acls.values() for acl in acls or ()}


def shows(member: Member, acls: set[Acl]) -> bool:
    return shown(member.controller.image) == acls


@cluster_of(3)
async def test_every_broker_shows_created_and_deleted_acls(cluster: Cluster) -> None:
    controller = cluster.leader.controller
    acls = [allow("a"), deny("a"), allow("b")._replace(pattern=PREFIXED), allow("a", user=BOB)]
    await controller.create_acls(acls)
    await controller.create_acls(acls[:2])
    for member in cluster.members.values():
        await until(partial(shows, member, set(acls)))
        assert any(change.acls for change in member.changes)
    found = await controller.delete_acls([AclFilter(name="a", permission=DENY), AclFilter(TOPIC)])
    assert found[0] == [deny("a")]
    assert set(found[1]) == set(acls)
    await cluster.agree()
    for member in cluster.members.values():
        await until(partial(shows, member, set()))


@cluster_of(2)
async def test_next_controller_knows_all_acls_and_continues(cluster: Cluster) -> None:
    first = cluster.leader
    await first.controller.create_acls([allow("a"), allow("b")])
    await cluster.kill(first.node_id)
    other = next(each for each in cluster.members.values() if each is not first)
    await until(lambda: other.controller.is_controller)
    assert shown(other.controller.image) == {allow("a"), allow("b")}
    assert await other.controller.delete_acls([AclFilter(name="a")]) == [[allow("a")]]
    assert shown(other.controller.image) == {allow("b")}


@cluster_of(2)
async def test_node_that_cannot_be_read_is_shown_as_such(cluster: Cluster) -> None:
    leader, other = cluster.leader, cluster.members[2]
    await leader.controller.create_acls([allow("a")])
    node = acl_layout.acl_node(allow("a"))
    path = acl_layout.acl_path(node)
    strange = acl_layout.encode_acls([allow("a")]).replace(b"Read", b"Unknown")
    await leader.store.set(path, strange)
    rows = layout.ChangeLog(1000, (layout.ChangeRow("acl", acl_layout.node_name(node)),))
    await leader.store.set(layout.CHANGES, layout.encode_changes(rows))
    await until(lambda: other.controller.image.acls[node] is None)


@cluster_of(1)
async def test_change_is_rejected_until_a_node_is_repaired(cluster: Cluster) -> None:
    leader = cluster.leader
    await leader.controller.create_acls([allow("a")])
    path = acl_layout.acl_path(acl_layout.acl_node(allow("a")))
    document, _ = await leader.store.get(path)
    await leader.store.set(path, b"not a document")
    await leader.controller._live_image.read_acls()
    with pytest.raises(ApiError, match=f"{path} cannot be read"):
        await leader.controller.create_acls([allow("b")])
    await leader.store.set(path, document)
    await leader.controller.create_acls([allow("b")])
    assert shown(leader.controller.image) == {allow("a"), allow("b")}


@cluster_of(1)
async def test_deletion_of_unknown_outcome_reports_the_deleted_acls(cluster: Cluster) -> None:
    leader = cluster.leader
    await leader.controller.create_acls([allow("a"), allow("b")])
    leader.store.faults.leave_next_outcome_unknown(applied=True)
    assert await leader.controller.delete_acls([AclFilter(name="a")]) == [[allow("a")]]
    assert shown(leader.controller.image) == {allow("b")}
    await leader.controller.create_acls([allow("c")])
    assert shown(leader.controller.image) == {allow("b"), allow("c")}


@pytest.mark.parametrize("kind", ["user", "acl"])
def test_read_that_a_deletion_overtakes_does_not_restore_the_deleted(
    kind: str, tmp_path: Path
) -> None:
    """For example the read after a reconnect of the controller."""

    @cluster_of(1)
    async def scene(cluster: Cluster) -> None:
        leader = cluster.leader
        controller, image = leader.controller, leader.controller.image
        await controller.alter_user("ann", {"SCRAM-SHA-256": "x"})
        await controller.create_acls([allow("a")])
        user_path = layout.user_config_path("ann")
        acl_path = acl_layout.acl_path(acl_layout.acl_node(allow("a")))
        slow_path = user_path if kind == "user" else acl_path
        get, released, is_read = leader.store.get, asyncio.Event(), asyncio.Event()

        async def slow(path: str, watch: Watch | None = None) -> Any:
            found = await get(path, watch)
            if path == slow_path:
                is_read.set()
                await released.wait()
            return found

        leader.store.get = slow  # type: ignore[method-assign]
        reading = asyncio.create_task(controller._registration._read_all())
        await is_read.wait()
        delete = (
            controller.alter_user("ann", lambda _: {})
            if kind == "user"
            else controller.delete_acls([AclFilter()])
        )
        deletion = asyncio.ensure_future(delete)
        await asyncio.wait([deletion], timeout=0.3)
        released.set()
        await reading
        await deletion
        assert (image.users if kind == "user" else shown(image)) in ({}, set())

    scene(tmp_path)


@cluster_of(1)
async def test_change_that_exceeds_one_request_is_written_in_several(cluster: Cluster) -> None:
    leader = cluster.leader
    requests: list[Any] = []
    multi = leader.store.multi

    async def counted(ops: Any) -> Any:
        requests.append(ops)
        return await multi(ops)

    leader.store.multi = counted  # type: ignore[method-assign]
    acls = [allow(f"topic-{number:05}-{'x' * 80}") for number in range(8_000)]
    await leader.controller.create_acls(acls)
    assert shown(leader.controller.image) == set(acls)
    sizes = [sum(len(getattr(op, "data", b"")) for op in ops) for ops in requests]
    assert 1 < len(sizes) < 20
    assert max(sizes) < REQUEST_BYTES_MAX


@cluster_of(1)
async def test_limits_of_acls_are_enforced(cluster: Cluster) -> None:
    controller = cluster.leader.controller
    await controller.create_acls([allow("a"), allow("b"), allow("c")])
    limits = acl_admin.ACLS_MAX, acl_admin.CHANGES_MAX
    acl_admin.ACLS_MAX, acl_admin.CHANGES_MAX = 3, 2
    try:
        await controller.create_acls([allow("a")])
        with pytest.raises(ApiError, match="would have 4 ACLs, more than 3"):
            await controller.create_acls([allow("d")])
        with pytest.raises(ApiError, match="match 3 ACLs, more than 2") as failed:
            await controller.delete_acls([AclFilter()])
        assert failed.value.code is ErrorCode.INVALID_REQUEST
    finally:
        acl_admin.ACLS_MAX, acl_admin.CHANGES_MAX = limits
    assert len(shown(controller.image)) == 3


def test_document_contains_the_names_of_kafkas_tools() -> None:
    acl = Acl(
        ResourceType.TRANSACTIONAL_ID,
        PatternType.PREFIXED,
        "a/b,ü",
        "User:CN=x,O=y",
        "10.0.0.0/8",
        Operation.IDEMPOTENT_WRITE,
        ALLOW,
    )
    data = acl_layout.encode_acls([acl])
    assert b'["TransactionalId","Prefixed","a/b,\\u00fc","User:CN=x,O=y"' in data
    assert acl_layout.decode_acls("/acl/00", data) == (acl,)


@pytest.mark.parametrize(
    "row",
    [
        [],
        ["Topic"],
        ["Topic", "Literal", "a", "User:a", "*", "Read", "Perhaps"],
        ["Topic", "Literal", "a", "User:a", "*", "Sing", "Allow"],
        ["Topic", "Literal", 1, "User:a", "*", "Read", "Allow"],
        ["Topic", [], "a", "User:a", "*", "Read", "Allow"],
        7,
    ],
)
def test_row_with_unknown_contents_is_an_error(row: Any) -> None:
    data = layout.encode_document({"acls": [row]})
    with pytest.raises(layout.LayoutError, match="cannot be decoded"):
        acl_layout.decode_acls("/acl/00", data)


def test_all_nodes_are_used() -> None:
    nodes = {acl_layout.acl_node(allow(f"topic-{number}")) for number in range(2_000)}
    assert nodes == set(range(acl_layout.NODES))
