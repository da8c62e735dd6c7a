"""Grants and revokes permissions while things break: no request is allowed by a deleted ACL.

Every ACL has its own topic name, which is never used again: a request that a broker forwarded
late could otherwise create a deleted ACL again. The topics do not exist, so an allowed request gets
UNKNOWN_TOPIC_OR_PARTITION. One more ACL, for another user, is about all of these names, so that
`allow.everyone.if.no.acl.found` does not apply to them.
"""

import asyncio
from typing import Any

from headrace.config.security_rows import AUTHORIZERS
from headrace.model.errors import ErrorCode
from headrace.model.sasl import ANONYMOUS
from tests.simulation.clients import FETCH, LIST_OFFSETS, RETRIED, Client
from tests.simulation.history import Violation

CREATE_ACLS, DELETE_ACLS = 30, 31
SETTINGS = {
    "authorizer.class.name": AUTHORIZERS[0],
    # All other clients of the simulator work without ACLs.
    "allow.everyone.if.no.acl.found": "true",
}
PREFIX = "guarded-"
_TOPIC, _ANY, _LITERAL, _PREFIXED, _READ, _ALLOW = 2, 1, 3, 4, 3, 3


class AclChanger(Client):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.is_stopping = False
        self.is_done = False
        self.revoked: list[str] = []
        self._number = 0

    async def run(self) -> None:
        generator = self.world.random
        await self._create(PREFIX, _PREFIXED, "User:keeper")
        while not self.is_stopping:
            name = await self._grant()
            await asyncio.sleep(generator.choice((0.0, 0.0, 0.3)))
            await self._revoke(name)
            await asyncio.sleep(generator.uniform(0.0, 1.0))
        for host in self._hosts:
            await self._check_finally(host)
        self.is_done = True

    async def _grant(self) -> str:
        while True:
            self._number += 1
            name = f"{PREFIX}{self._number}"
            host = await self._create(name, _LITERAL, ANONYMOUS, attempts=1)
            if host is not None:
                if await self._is_allowed(host, name) is False:
                    raise Violation(f"I29: {host} created an ACL for {name}, and denies a request")
                return name

    async def _create(
        self, name: str, pattern: int, principal: str, attempts: int = 1 << 30
    ) -> str | None:
        """The broker that has created an ACL; None if no attempt succeeded."""
        acl = {
            "resource_type": _TOPIC,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": principal,
            "host": "*",
            "operation": _READ,
            "permission_type": _ALLOW,
        }
        for _ in range(attempts):
            host = self.world.random.choice(self._hosts)
            answer = await self.ask_once(host, CREATE_ACLS, 3, {"creations": [acl]})
            if answer is not None and self._succeeded(answer["results"]):
                return host
            await self.pause()
        return None

    async def _revoke(self, name: str) -> None:
        wanted = {
            "resource_type_filter": _TOPIC,
            "resource_name_filter": name,
            "pattern_type_filter": _LITERAL,
            "principal_filter": None,
            "host_filter": None,
            "operation": _ANY,
            "permission_type": _ANY,
        }
        while True:
            host = self.world.random.choice(self._hosts)
            answer = await self.ask_once(host, DELETE_ACLS, 3, {"filters": [wanted]})
            if answer is not None and self._succeeded(answer["filter_results"]):
                break
            await self.pause()
        self.revoked.append(name)
        for _ in range(3):
            if await self._is_allowed(host, name):
                raise Violation(f"I29: {host} deleted the ACL for {name}, and allows a request")

    def _succeeded(self, results: list[dict[str, Any]]) -> bool:
        (result,) = results
        code = result["error_code"]
        if code != ErrorCode.NONE and code not in RETRIED:
            raise Violation(f"a change of ACLs received {ErrorCode(code)!r}")
        return bool(code == ErrorCode.NONE)

    async def _is_allowed(self, host: str, name: str) -> bool | None:
        """Whether a broker allows to read a topic; None without a response."""
        is_fetch = self.world.random.random() < 0.5
        code = await (self._fetch(host, name) if is_fetch else self._list_offsets(host, name))
        return None if code is None else code != ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def _fetch(self, host: str, name: str) -> int | None:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
        request = {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "session_epoch": -1,
            "topics": [{"topic": name, "partitions": [partition]}],
        }
        answer = await self.ask_once(host, FETCH, 12, request)
        if answer is None:
            return None
        code: int = answer["responses"][0]["partitions"][0]["error_code"]
        return code

    async def _list_offsets(self, host: str, name: str) -> int | None:
        partition = {"partition_index": 0, "timestamp": -1}
        topics = [{"name": name, "partitions": [partition]}]
        answer = await self.ask_once(host, LIST_OFFSETS, 5, {"replica_id": -1, "topics": topics})
        if answer is None:
            return None
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    async def _check_finally(self, host: str) -> None:
        """After all faults, every broker has received every change."""
        for name in self.revoked[-20:]:
            while await self._is_allowed(host, name) is not False:
                await self.pause()
