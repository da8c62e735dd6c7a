"""The ACLs of a cluster, indexed for look-ups. Pure.

A look-up reads the ACLs of the literal name, of each prefix of the name that has ACLs, and of the
wildcard. Of these, only the ACLs for the principal and for User:* apply.

1. An ACL that denies wins over all ACLs that allow.
2. An ACL that allows Read, Write, Delete or Alter also allows Describe, and one that allows
   AlterConfigs also allows DescribeConfigs. An ACL that denies an operation denies no other one.
3. All includes every operation.
4. An ACL that was added twice applies until it is removed twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from headrace.model.acls import (
    ANY_PRINCIPAL,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.security.acl_hosts import host_matches

_PatternAcls = dict[str, dict[Acl, int]]
"""The ACLs of one resource pattern, by principal, and how often each was added."""
_DESCRIBING = (
    Operation.DESCRIBE,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
)
_ALLOWED_BY = {
    Operation.DESCRIBE: frozenset((Operation.ALL, *_DESCRIBING)),
    Operation.DESCRIBE_CONFIGS: frozenset(
        (Operation.ALL, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    ),
}


class AclImage:
    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._patterns: dict[tuple[ResourceType, PatternType, str], _PatternAcls] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {
            each: Counter() for each in ResourceType
        }
        """The number of prefixes that have ACLs, by length."""
        self._by_principal: dict[tuple[ResourceType, str], dict[Acl, None]] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        key = acl[:3]
        acls = self._patterns.get(key)
        if acls is None:
            acls = self._patterns[key] = {}
            if acl.pattern is PatternType.PREFIXED:
                self._prefix_lengths[acl.type][len(acl.name)] += 1
        of_principal = acls.setdefault(acl.principal, {})
        of_principal[acl] = of_principal.get(acl, 0) + 1
        self._by_principal.setdefault((acl.type, acl.principal), {})[acl] = None

    def remove(self, acl: Acl) -> None:
        key = acl[:3]
        acls = self._patterns.get(key, {})
        of_principal = acls.get(acl.principal, {})
        count = of_principal.get(acl, 0)
        if count > 1:
            of_principal[acl] = count - 1
        if count != 1:
            return
        del of_principal[acl]
        if not of_principal:
            del acls[acl.principal]
        of_type = self._by_principal[acl.type, acl.principal]
        del of_type[acl]
        if not of_type:
            del self._by_principal[acl.type, acl.principal]
        if not acls:
            del self._patterns[key]
            if acl.pattern is PatternType.PREFIXED:
                lengths = self._prefix_lengths[acl.type]
                lengths[len(acl.name)] -= 1
                if not lengths[len(acl.name)]:
                    del lengths[len(acl.name)]

    def decide(
        self, principal: str, host: str, operation: Operation, type_: ResourceType, name: str
    ) -> Acl | None:
        """The ACL that decides: one that denies, else one that allows, else None."""
        found: Acl | None = None
        allowing = _ALLOWED_BY.get(operation, (operation, Operation.ALL))
        for acls in self._matching_patterns(type_, name):
            for each in (principal, ANY_PRINCIPAL):
                for acl in acls.get(each, ()):
                    if acl.permission is Permission.DENY:
                        if acl.operation in (operation, Operation.ALL) and _matches_host(acl, host):
                            return acl
                    elif found is None and acl.operation in allowing and _matches_host(acl, host):
                        found = acl
        return found

    def has_acl_for(self, type_: ResourceType, name: str) -> bool:
        """Whether any principal has an ACL for a resource."""
        return any(True for _ in self._matching_patterns(type_, name))

    def _matching_patterns(self, type_: ResourceType, name: str) -> Iterator[_PatternAcls]:
        patterns = self._patterns
        literal = patterns.get((type_, PatternType.LITERAL, name))
        if literal is not None:
            yield literal
        for length in self._prefix_lengths[type_]:
            if length <= len(name):
                prefixed = patterns.get((type_, PatternType.PREFIXED, name[:length]))
                if prefixed is not None:
                    yield prefixed
        if name != WILDCARD:
            wildcard = patterns.get((type_, PatternType.LITERAL, WILDCARD))
            if wildcard is not None:
                yield wildcard

    def decide_any(
        self, principal: str, host: str, operation: Operation, type_: ResourceType
    ) -> Acl | None:
        """An ACL that allows an operation on at least one resource of a type; None if none does.

        As in Kafka's authorizeByResourceType, only ACLs of exactly this operation or of All apply.
        An ACL that allows does not apply if one that denies covers its complete pattern.
        """
        allowed: list[Acl] = []
        denied: set[tuple[PatternType, str]] = set()
        for acl in self._for_principal(principal, type_):
            if acl.operation not in (operation, Operation.ALL) or not _matches_host(acl, host):
                continue
            if acl.permission is Permission.ALLOW:
                allowed.append(acl)
            else:
                denied.add((acl.pattern, acl.name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return None
        return next((acl for acl in allowed if not _is_covered(acl, denied)), None)

    def _for_principal(self, principal: str, type_: ResourceType) -> Iterator[Acl]:
        yield from self._by_principal.get((type_, principal), ())
        yield from self._by_principal.get((type_, ANY_PRINCIPAL), ())


def _is_covered(acl: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    """Whether one of the denied patterns contains the complete pattern of an ACL."""
    if acl.pattern is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return False
        if (PatternType.LITERAL, acl.name) in denied:
            return True
    ends = range(1, len(acl.name) + 1)
    return any((PatternType.PREFIXED, acl.name[:end]) in denied for end in ends)


def _matches_host(acl: Acl, host: str) -> bool:
    return acl.host == WILDCARD or host_matches(acl.host, host)
