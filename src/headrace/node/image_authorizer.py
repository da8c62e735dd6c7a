"""The authorizer of a broker, which follows the ACLs of the cluster image, and the audit log."""

import logging

from headrace.audit import Audit
from headrace.cluster.changes import ImageChange
from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.env.clock import Clock
from headrace.model.acls import principals, title
from headrace.security.acl_authorizer import AclAuthorizer, Decision
from headrace.security.authorizer import AllowAll, Authorizer, Operation, Resource
from headrace.wire.apis import APIS

_logger = logging.getLogger(__name__)


class Authorization:
    """Until `load`, the authorizer allows super users only."""

    def __init__(self, config: BrokerConfig, controller: Controller, clock: Clock) -> None:
        self.audit = Audit(clock.wall_ms, clock.monotonic)
        self._image = controller.image
        self._acls: AclAuthorizer | None = None
        self.authorizer: Authorizer = AllowAll()
        if config.has_authorizer:
            self.authorizer = self._acls = AclAuthorizer(
                principals(config.get_str("super.users")),
                config.get_bool("allow.everyone.if.no.acl.found"),
                self._denied,
            )
            controller.on_change(self._changed)

    def load(self) -> None:
        """Load the ACLs of the image, once it is complete."""
        if self._acls is not None:
            self._acls.load(self._image.acls)
            count = sum(len(acls or ()) for acls in self._image.acls.values())
            _logger.info("ACLs loaded: count=%d", count)

    def _denied(
        self,
        principal: str,
        host: str,
        api_key: int,
        operation: Operation,
        resource: Resource,
        decision: Decision,
    ) -> None:
        name = "any" if resource.name is None else resource.name
        self.audit.denied(
            principal,
            host,
            APIS[api_key].name,
            title(operation),
            f"{title(resource.type)} {name}",
            decision.reason if decision.acl is None else str(decision.acl),
        )

    def _changed(self, change: ImageChange) -> None:
        if self._acls is not None and change.acls:
            self._acls.update({node: self._image.acls[node] for node in change.acls})
