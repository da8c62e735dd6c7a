"""The authorizer that follows the ACLs of the cluster. Pure.

1. Without an image, or while a part of it cannot be read, only super users are allowed.
2. A super user is allowed every operation.
3. Without a rule for the principal, `allow.everyone.if.no.acl.found` decides, but only about
   resources that no rule is about.
4. `version` changes with each change of the rules.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.model.acls import Acl, Operation, Permission
from headrace.security.acl_image import AclImage
from headrace.security.authorizer import Resource

Rows = tuple[Acl, ...] | None
"""The rules of one node of the store; None if the node cannot be read."""


class Decision(NamedTuple):
    is_allowed: bool
    reason: str
    rule: Acl | None = None
    """The deciding rule, if a rule decided."""


Report = Callable[[str, str, int, Operation, Resource, Decision], None]
"""Principal, host, API key, operation, resource, and the decision."""


class AclAuthorizer:
    def __init__(
        self,
        super_users: Iterable[str],
        allows_everyone: bool,
        report: Report | None = None,
    ) -> None:
        """`report` is called for each denied request, with the decision."""
        self._report = report
        self.super_users = frozenset(super_users)
        self.allows_everyone = allows_everyone
        self.version = 0
        self._image: AclImage | None = None
        self._nodes: dict[int, Rows] = {}
        self._is_complete = False

    def load(self, nodes: Mapping[int, Rows]) -> None:
        """Use these rules only, by the number of their node."""
        self._nodes = dict(nodes)
        self._image = AclImage(acl for rows in nodes.values() for acl in set(rows or ()))
        self._changed()

    def update(self, nodes: Mapping[int, Rows]) -> None:
        """Replace the rules of some nodes."""
        if self._image is None:
            return
        for node, after in nodes.items():
            before = self._nodes.get(node)
            self._nodes[node] = after
            for gone in set(before or ()).difference(after or ()):
                self._image.remove(gone)
            for new in set(after or ()).difference(before or ()):
                self._image.add(new)
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
            rule = image.decide_any(principal, host, operation, resource.type)
            touched = image.touches(resource.type, "")
        else:
            rule = image.decide(principal, host, operation, resource.type, resource.name)
            touched = rule is None and image.touches(resource.type, resource.name)
        if rule is not None:
            return Decision(rule.permission is Permission.ALLOW, "ACL", rule)
        if touched:
            return Decision(False, "no ACL allows it")
        if self.allows_everyone:
            return Decision(
                True, "no ACL for the resource, and allow.everyone.if.no.acl.found is true"
            )
        return Decision(False, "no ACL for the resource")
