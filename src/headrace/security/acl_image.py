"""The rules of a cluster, indexed for look-ups. Pure.

A look-up reads the rules of one literal name, of each prefix of the name that has rules, and of the
wildcard; of these only the rules for the principal and for User:*.

1. A rule that denies wins over all rules that allow.
2. An allowed Read, Write, Delete or Alter includes Describe, and AlterConfigs includes
   DescribeConfigs. A denied operation includes no other one.
3. All includes every operation.
4. A rule that was added twice applies until it is removed twice.
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

_Rules = dict[str, dict[Acl, int]]
"""The rules of one pattern, by principal, and how often each was added."""
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
        self._patterns: dict[tuple[ResourceType, PatternType, str], _Rules] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {
            each: Counter() for each in ResourceType
        }
        """How many prefixes of each length have rules."""
        self._by_principal: dict[tuple[ResourceType, str], dict[Acl, None]] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        key = acl[:3]
        rules = self._patterns.get(key)
        if rules is None:
            rules = self._patterns[key] = {}
            if acl.pattern is PatternType.PREFIXED:
                self._prefix_lengths[acl.type][len(acl.name)] += 1
        of_principal = rules.setdefault(acl.principal, {})
        of_principal[acl] = of_principal.get(acl, 0) + 1
        self._by_principal.setdefault((acl.type, acl.principal), {})[acl] = None

    def remove(self, acl: Acl) -> None:
        key = acl[:3]
        rules = self._patterns.get(key, {})
        of_principal = rules.get(acl.principal, {})
        count = of_principal.get(acl, 0)
        if count > 1:
            of_principal[acl] = count - 1
        if count != 1:
            return
        del of_principal[acl]
        if not of_principal:
            del rules[acl.principal]
        of_type = self._by_principal[acl.type, acl.principal]
        del of_type[acl]
        if not of_type:
            del self._by_principal[acl.type, acl.principal]
        if not rules:
            del self._patterns[key]
            if acl.pattern is PatternType.PREFIXED:
                lengths = self._prefix_lengths[acl.type]
                lengths[len(acl.name)] -= 1
                if not lengths[len(acl.name)]:
                    del lengths[len(acl.name)]

    def decide(
        self, principal: str, host: str, operation: Operation, type_: ResourceType, name: str
    ) -> Acl | None:
        """The deciding rule: one that denies, else one that allows, else None."""
        found: Acl | None = None
        allowing = _ALLOWED_BY.get(operation, (operation, Operation.ALL))
        for rules in self._of(type_, name):
            for of in (principal, ANY_PRINCIPAL):
                for acl in rules.get(of, ()):
                    if acl.permission is Permission.DENY:
                        if acl.operation in (operation, Operation.ALL) and _is_at(acl, host):
                            return acl
                    elif found is None and acl.operation in allowing and _is_at(acl, host):
                        found = acl
        return found

    def touches(self, type_: ResourceType, name: str) -> bool:
        """Whether any rule is about a resource, for any principal."""
        return any(True for _ in self._of(type_, name))

    def _of(self, type_: ResourceType, name: str) -> Iterator[_Rules]:
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
        """The rule that allows an operation on at least one resource of a type, if one does.

        As Kafka's authorizeByResourceType: rules of exactly this operation or All are considered. A
        rule that allows does not apply if a rule that denies covers its complete pattern.
        """
        allowed: list[Acl] = []
        denied: set[tuple[PatternType, str]] = set()
        for acl in self._for_principal(principal, type_):
            if acl.operation not in (operation, Operation.ALL) or not _is_at(acl, host):
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
    if acl.pattern is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return False
        if (PatternType.LITERAL, acl.name) in denied:
            return True
    ends = range(1, len(acl.name) + 1)
    return any((PatternType.PREFIXED, acl.name[:end]) in denied for end in ends)


def _is_at(acl: Acl, host: str) -> bool:
    return acl.host == WILDCARD or host_matches(acl.host, host)
