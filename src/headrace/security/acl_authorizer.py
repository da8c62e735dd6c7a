"""The authorizer that applies the ACLs of the cluster. Pure.

1. If the ACLs are not loaded, or a part of them cannot be decoded, only super users have access.
2. Super users have access to everything.
3. If no principal has an ACL for a resource, `allow.everyone.if.no.acl.found` decides.
4. `version` changes with each change of the ACLs.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.model.acls import Acl, Operation, Permission
from headrace.security.acl_image import AclImage
from headrace.security.authorizer import Resource

Rows = tuple[Acl, ...] | None
"""The ACLs in one node of the store; None if the node cannot be decoded."""


class Decision(NamedTuple):
    is_allowed: bool
    reason: str
    acl: Acl | None = None
    """The ACL that decided, if one did."""


Report = Callable[[str, str, int, Operation, Resource, Decision], None]
"""Called with principal, host, API key, operation, resource, and the decision."""


class AclAuthorizer:
    def __init__(
        self,
        super_users: Iterable[str],
        allows_everyone: bool,
        report: Report | None = None,
    ) -> None:
        """`report` is called for each denial."""
        self._report = report
        self.super_users = frozenset(super_users)
        self.allows_everyone = allows_everyone
        self.version = 0
        self._image: AclImage | None = None
        self._nodes: dict[int, Rows] = {}
        self._is_complete = False

    def load(self, nodes: Mapping[int, Rows]) -> None:
        """Replace all ACLs. `nodes` has the ACLs of each node by its number."""
        self._nodes = dict(nodes)
        self._image = AclImage(acl for rows in nodes.values() for acl in set(rows or ()))
        self._changed()

    def update(self, nodes: Mapping[int, Rows]) -> None:
        """Replace the ACLs of some nodes."""
        if self._image is None:
            return
        for node, after in nodes.items():
            before = self._nodes.get(node)
            self._nodes[node] = after
            for removed in set(before or ()).difference(after or ()):
                self._image.remove(removed)
            for added in set(after or ()).difference(before or ()):
                self._image.add(added)
        self._changed()

    def _changed(self) -> None:
        self._is_complete = None not in self._nodes.values()
        self.version += 1

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return self.decide(principal, host, operation, resource).is_allowed

    def denied(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: Resource
    ) -> None:
        if self._report is not None:
            decision = self.decide(principal, host, operation, resource)
            self._report(principal, host, api_key, operation, resource, decision)

    def decide(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> Decision:
        if principal in self.super_users:
            return Decision(True, "super user")
        image = self._image
        if image is None or not self._is_complete:
            return Decision(False, "the ACLs are not loaded completely")
        if resource.name is None:
            acl = image.decide_any(principal, host, operation, resource.type)
            has_acls = image.has_acl_for(resource.type, "")
        else:
            acl = image.decide(principal, host, operation, resource.type, resource.name)
            has_acls = acl is None and image.has_acl_for(resource.type, resource.name)
        if acl is not None:
            return Decision(acl.permission is Permission.ALLOW, "ACL", acl)
        if has_acls:
            return Decision(False, "no ACL allows it")
        if self.allows_everyone:
            return Decision(
                True, "no ACL for the resource, and allow.everyone.if.no.acl.found is true"
            )
        return Decision(False, "no ACL for the resource")
