"""DescribeUserScramCredentials and AlterUserScramCredentials over the real controller."""

from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.changes import ImageChange
from headrace.controller.service import Controller
from headrace.coordination import layout
from headrace.coordination.embedded import EmbeddedStore
from headrace.model.errors import ErrorCode
from headrace.security.scram import SCRAMS, verifies
from headrace.security.users import ended_credentials, stored_credential
from headrace.wire.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from headrace.wire.codec import Message
from tests.storage.test_handlers_with_controller import Ask, _with_a_controller

SHA_256, SHA_512 = 1, 2


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, Any]:
    import hashlib

    digest = {SHA_256: "sha256"}.get(mechanism, "sha512")
    salted = hashlib.pbkdf2_hmac(digest, b"secret", b"salt", max(iterations, 1))
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": salted,
    }


async def alter(ask: Ask, *upsertions: Any, deletions: Any = ()) -> dict[str, int]:
    body = {"deletions": list(deletions), "upsertions": list(upsertions)}
    reply = await ask(ALTER_USER_SCRAM_CREDENTIALS, 0, body)
    return {row["user"]: row["error_code"] for row in reply["results"]}


async def describe(ask: Ask, *names: str) -> list[Message]:
    body = {"users": [{"name": name} for name in names] or None}
    reply = await ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, body)
    assert reply["error_code"] == ErrorCode.NONE
    results: list[Message] = reply["results"]
    return results


def test_created_credential_is_described_and_verifies_its_password(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        assert await alter(ask, upsertion("alice")) == {"alice": 0}
        assert await alter(ask, upsertion("alice", SHA_512, 8192)) == {"alice": 0}
        assert await alter(ask, upsertion("bob")) == {"bob": 0}
        alice, bob = await describe(ask)
        infos = [(info["mechanism"], info["iterations"]) for info in alice["credential_infos"]]
        assert (alice["user"], infos) == ("alice", [(SHA_256, 4096), (SHA_512, 8192)])
        assert bob["user"] == "bob"
        for name, scram in SCRAMS.items():
            credential = stored_credential(controller.image.users, name, "alice")
            assert credential is not None
            assert verifies(scram, credential, "secret")

    _with_a_controller(tmp_path, scene)


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("a") | {"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("__headrace"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("u" * 300), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_invalid_credential_is_rejected(tmp_path: Path, item: Any, code: ErrorCode) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        assert await alter(ask, item) == {item["name"]: code}
        assert controller.image.users == {}

    _with_a_controller(tmp_path, scene)


def test_user_that_occurs_twice_is_rejected_and_others_are_changed(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        codes = await alter(ask, upsertion("a"), upsertion("a", SHA_512), upsertion("b"))
        assert codes == {"a": ErrorCode.DUPLICATE_RESOURCE, "b": 0}
        assert list(controller.image.users) == ["b"]
        b, c = await describe(ask, "b", "b", "c")
        assert b["error_code"] == ErrorCode.DUPLICATE_RESOURCE
        assert c["error_code"] == ErrorCode.RESOURCE_NOT_FOUND

    _with_a_controller(tmp_path, scene)


def test_deleting_the_last_credential_deletes_the_user(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        await alter(ask, upsertion("a"))
        await alter(ask, upsertion("a", SHA_512))
        for mechanism in (SHA_256, SHA_512):
            deletion = {"name": "a", "mechanism": mechanism}
            assert await alter(ask, deletions=[deletion]) == {"a": 0}
            missing = await alter(ask, deletions=[deletion])
            assert missing == {"a": ErrorCode.RESOURCE_NOT_FOUND}
        assert controller.image.users == {}
        assert await describe(ask) == []

    _with_a_controller(tmp_path, scene)


def test_changed_credentials_are_reported_with_their_mechanism(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        changes: list[ImageChange] = []
        controller.on_change(changes.append)
        await alter(ask, upsertion("a"))
        await alter(ask, upsertion("a", SHA_512))
        await alter(ask, upsertion("a", SHA_256, 5000))
        await alter(ask, deletions=[{"name": "a", "mechanism": SHA_512}])
        users = [change.users[0] for change in changes if change.users]
        ended = [ended_credentials(before, after) for _, before, after in users]
        assert ended == [[], [], ["SCRAM-SHA-256"], ["SCRAM-SHA-512"]]

    _with_a_controller(tmp_path, scene)


def test_users_are_stored_under_the_paths_and_in_the_form_of_kafka(tmp_path: Path) -> None:
    names = ["alice", "a/b c", "..", "~", "CN=x,O=y", "<default>"]

    async def scene(ask: Ask, controller: Controller) -> None:
        for name in names:
            assert await alter(ask, upsertion(name)) == {name: 0}

    _with_a_controller(tmp_path, scene)

    async def again(ask: Ask, controller: Controller) -> None:
        assert sorted(controller.image.users) == sorted(names)
        text = controller.image.users["alice"]["SCRAM-SHA-256"]
        assert text.startswith("salt=c2FsdA==,stored_key=")
        assert text.endswith(",iterations=4096")

    _with_a_controller(tmp_path, again)
    assert layout.user_config_path("a/b c*~") == "/config/users/a%2Fb%20c%2A%7E"
    assert layout.user_of_config("<default>") is None


def test_invalid_document_of_a_user_hides_only_this_user(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        await alter(ask, upsertion("a"))
        store = controller._store
        assert isinstance(store, EmbeddedStore)
        await store.create("/config/users/b", b"not a document")

    _with_a_controller(tmp_path, scene)

    async def again(ask: Ask, controller: Controller) -> None:
        assert list(controller.image.users) == ["a"]

    _with_a_controller(tmp_path, again)


def test_failed_listener_logs_no_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(change: ImageChange) -> None:
        raise RuntimeError("a bug")

    async def scene(ask: Ask, controller: Controller) -> None:
        controller.on_change(fail)
        assert await alter(ask, upsertion("alice")) == {"alice": 0}

    _with_a_controller(tmp_path, scene)
    assert "image listener failed with an internal error: changed=['users']" in caplog.text
    assert "stored_key" not in caplog.text
