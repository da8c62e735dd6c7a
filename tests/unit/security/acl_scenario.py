"""A naive evaluator of ACLs, and random rules: for tests of the real one."""

from collections.abc import Collection
from ipaddress import ip_address, ip_network

from hypothesis import strategies as st

from headrace.model.acls import Acl, Operation, PatternType, Permission, ResourceType

IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
USERS = ("User:ann", "User:bob")
ADMIN = "User:admin"
HOSTS = ("10.0.0.1", "10.0.1.1", "192.168.0.1", "::1", "fe80::1")
NAMES = ("a", "ab", "abc", "b", "*")
TOPIC = ResourceType.TOPIC
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def naive(
    acls: Collection[Acl],
    principal: str,
    host: str,
    operation: Operation,
    type_: ResourceType,
    name: str,
    allows_everyone: bool = False,
) -> bool:
    def is_host(rule: str) -> bool:
        return rule == "*" or ip_address(host) in ip_network(rule)

    def is_about(acl: Acl) -> bool:
        is_prefix = acl.pattern == PREFIXED and name.startswith(acl.name)
        return acl.type == type_ and (
            is_prefix or (acl.pattern == LITERAL and acl.name in (name, "*"))
        )

    touching = [acl for acl in acls if is_about(acl)]
    mine = [acl for acl in touching if acl.principal in (principal, "User:*") and is_host(acl.host)]
    denying = {operation, Operation.ALL}
    allowing = denying | IMPLIED.get(operation, set())
    if any(acl.permission == DENY and acl.operation in denying for acl in mine):
        return False
    if any(acl.permission == ALLOW and acl.operation in allowing for acl in mine):
        return True
    return allows_everyone and not touching


def rules() -> st.SearchStrategy[Acl]:
    return st.builds(
        Acl,
        st.sampled_from((TOPIC, ResourceType.GROUP)),
        st.sampled_from(PatternType),
        st.sampled_from(NAMES),
        st.sampled_from((*USERS, "User:*")),
        st.sampled_from((*HOSTS, "*", "10.0.0.0/24", "10.0.0.0/8", "::/0", "0.0.0.0/0")),
        st.sampled_from(
            (
                Operation.ALL,
                Operation.READ,
                Operation.DESCRIBE,
                Operation.ALTER_CONFIGS,
                Operation.DESCRIBE_CONFIGS,
            )
        ),
        st.sampled_from(Permission),
    )


def allow(
    name: str, operation: Operation = Operation.READ, user: str = USERS[0], host: str = "*"
) -> Acl:
    return Acl(TOPIC, LITERAL, name, user, host, operation, ALLOW)


def deny(
    name: str, operation: Operation = Operation.READ, user: str = USERS[0], host: str = "*"
) -> Acl:
    return Acl(TOPIC, LITERAL, name, user, host, operation, DENY)
