"""`headrace acls` against a broker with ACLs, and messages of a denied client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.failure import Failure
from headrace.cli.kafka_acls import acls_of, decoded
from headrace.cli.main import main
from headrace.config.security_rows import AUTHORIZERS
from headrace.coordination.embedded import EmbeddedStore
from headrace.model.acls import PatternType, ResourceType
from headrace.testing import RunningBroker

ADMIN = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS;User:root"}


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    broker = RunningBroker.start(settings=ADMIN)
    yield broker
    broker.close()


class Command:
    """Runs `headrace acls` in this process."""

    def __init__(self, broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = broker.address
        self.capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert main(["acls", *arguments, "--bootstrap-server", self.address]) == code
        captured = self.capsys.readouterr()
        return captured.err if code else captured.out

    def rules(self, *arguments: str) -> list[tuple[str, ...]]:
        found: list[dict[str, Any]] = json.loads(self("list", "--json", *arguments))
        names = ("permission", "operation", "resource", "pattern", "name", "host")
        return [tuple(rule[name] for name in names) for rule in found]


@pytest.fixture
def acls(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    command = Command(broker, capsys)
    yield command
    command("delete", "--all")


def test_producer_gets_kafkas_permissions(acls: Command) -> None:
    assert acls("add", "--user", "ann", "--producer", "--topic", "orders") == ""
    assert acls.rules("--user", "ann") == [
        ("Allow", "Write", "Topic", "Literal", "orders", "*"),
        ("Allow", "Create", "Topic", "Literal", "orders", "*"),
        ("Allow", "Describe", "Topic", "Literal", "orders", "*"),
    ]


def test_consumer_gets_kafkas_permissions(acls: Command) -> None:
    names = ["--topic", "orders.", "--group", "readers.", "--prefixed"]
    acls("add", "--user", "ann", "--consumer", *names, "--host", "10.0.0.0/8")
    assert acls.rules() == [
        ("Allow", "Read", "Topic", "Prefixed", "orders.", "10.0.0.0/8"),
        ("Allow", "Describe", "Topic", "Prefixed", "orders.", "10.0.0.0/8"),
        ("Allow", "Read", "Group", "Prefixed", "readers.", "10.0.0.0/8"),
    ]


def test_table_and_selection(acls: Command) -> None:
    acls("add", "--user", "ann", "--operation", "read", "--topic", "a", "--topic", "b")
    acls("add", "--principal", "User:*", "--deny", "--operation", "All", "--cluster")
    acls("add", "--user", "bob", "--operation", "describe-configs", "--topic", "*")
    table = acls("list", "--topic", "a", "--match").splitlines()
    assert table[0].split() == [
        "principal",
        "permission",
        "operation",
        "resource",
        "pattern",
        "name",
        "host",
    ]
    assert [line.split()[0] for line in table[1:]] == ["User:ann", "User:bob"]
    deleted = acls("delete", "--user", "ann", "--topic", "a")
    assert deleted.splitlines()[1].split()[-2:] == ["a", "*"]
    assert [rule[4] for rule in acls.rules("--user", "ann")] == ["b"]
    assert acls("delete", "--user", "nobody") == "No ACLs match.\n"


def test_explanation_names_the_deciding_rule(acls: Command) -> None:
    ask = ["explain", "--user", "ann", "--operation", "Read", "--topic", "orders"]
    assert acls(*ask) == (
        "User:ann from 127.0.0.1 is denied Read on Topic orders.\n"
        "Reason: no ACL for the resource.\n"
    )
    acls("add", "--user", "ann", "--consumer", "--topic", "or", "--group", "g", "--prefixed")
    assert acls(*ask).splitlines()[1] == (
        "Reason: Allow User:ann from host * Read on prefixed Topic or."
    )
    acls("add", "--user", "*", "--deny", "--operation", "Read", "--topic", "*")
    found = json.loads(acls(*ask, "--json"))
    assert found == {
        "allowed": False,
        "reason": "ACL",
        "rule": "Deny User:* from host * Read on Topic *",
    }
    root = ["explain", "--user", "root", "--operation", "Alter", "--cluster"]
    assert acls(*root).splitlines()[1] == "Reason: super user."


def test_export_is_imported_again(acls: Command, tmp_path: Path) -> None:
    acls("add", "--user", "ann", "--producer", "--consumer", "--topic", "a/ü", "--group", "g")
    before = acls.rules()
    assert len(before) == 5
    file = tmp_path / "acls.json"
    file.write_text(acls("export"))
    acls("delete", "--topic", "a/ü")
    assert acls("import", "--file", str(file)) == "Created 4 ACLs. Existed already: 1.\n"
    assert acls.rules() == before
    assert acls("import", "--file", str(file)) == "Created 0 ACLs. Existed already: 5.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "--user", "a", "--operation", "Read"], "Name a resource"),
        (["add", "--user", "a", "--topic", "t"], "Use --producer, --consumer or --operation"),
        (["add", "--user", "a", "--consumer", "--topic", "t"], "--consumer requires --group"),
        (["add", "--user", "a", "--producer", "--group", "t"], "require --topic"),
        (["add", "--user", "a", "--producer", "--topic", "t", "--deny"], "--deny"),
        (["delete"], "Select the ACLs to delete, or use --all"),
        (["explain", "--user", "a", "--topic", "t"], "Use one --operation"),
    ],
)
def test_incomplete_commands_are_rejected(
    acls: Command, arguments: list[str], message: str
) -> None:
    assert message in acls(*arguments, code=2)


def test_reason_of_a_rejected_acl_is_shown(acls: Command) -> None:
    add = ["add", "--user", "a", "--topic", "t", "--operation", "ClusterAction"]
    assert "Topic has no operation ClusterAction" in acls(*add, code=1)
    host = ["add", "--user", "a", "--topic", "t", "--operation", "Read", "--host", "10.0.0.1/8"]
    assert "Use *, an IP address or a CIDR range" in acls(*host, code=1)


def test_file_that_is_not_an_export_is_rejected(acls: Command, tmp_path: Path) -> None:
    file = tmp_path / "acls.json"
    file.write_text('{"version": 1, "acls": [["Topic"]]}')
    assert "cannot be decoded" in acls("import", "--file", str(file), code=1)
    assert "Cannot read" in acls("import", "--file", str(tmp_path / "absent"), code=1)


async def _kafka_tree(path: Path) -> list[Any]:
    store = await EmbeddedStore.open(str(path / "store.db"))
    rows = [
        {"principal": "User:ann", "permissionType": "Allow", "operation": "Read", "host": "*"},
        {"principal": "User:*", "permissionType": "Deny", "operation": "All", "host": "10.0.0.1"},
    ]
    nodes = [
        "/kafka-acl/Topic/orders",
        "/kafka-acl/TransactionalId/t",
        "/kafka-acl-extended/prefixed/Group/read",
    ]
    for node in nodes:
        parts = node.split("/")[1:]
        for end in range(1, len(parts)):
            parent = "/" + "/".join(parts[:end])
            if await store.exists(parent) is None:
                await store.create(parent)
        await store.create(node, json.dumps({"version": 1, "acls": rows}).encode())
    try:
        return list(await acls_of(store))
    finally:
        await store.close()


def test_acls_of_kafka_are_read_from_its_nodes(tmp_path: Path) -> None:
    import asyncio

    found = asyncio.run(_kafka_tree(tmp_path))
    assert len(found) == 6
    assert {(acl.type, acl.pattern, acl.name) for acl in found} == {
        (ResourceType.TOPIC, PatternType.LITERAL, "orders"),
        (ResourceType.TRANSACTIONAL_ID, PatternType.LITERAL, "t"),
        (ResourceType.GROUP, PatternType.PREFIXED, "read"),
    }
    assert {str(acl).partition(" on ")[0] for acl in found} == {
        "Allow User:ann from host * Read",
        "Deny User:* from host 10.0.0.1 All",
    }


def test_acl_of_kafka_that_cannot_be_imported_is_reported() -> None:
    data = b'{"acls": [{"principal": "User:a", "host": "*", "operation": "Sing"}]}'
    with pytest.raises(Failure, match="Cannot import /kafka-acl/Topic/a"):
        list(decoded("/kafka-acl/Topic/a", PatternType.LITERAL, "Topic", "a", data))
