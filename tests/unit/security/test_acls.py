"""Rules of ACLs: which one decides, hosts, super users, and images that are not complete."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.acls import (
    ANY,
    MATCH,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    ResourceType,
    principals,
)
from headrace.security.acl_authorizer import AclAuthorizer
from headrace.security.acl_hosts import InvalidHost, check_host, host_matches
from headrace.security.acl_image import AclImage
from headrace.security.authorizer import ANY_TOPIC, Resource, topic_resource
from tests.unit.security.acl_scenario import (
    ADMIN,
    HOSTS,
    LITERAL,
    NAMES,
    PREFIXED,
    TOPIC,
    USERS,
    allow,
    deny,
    naive,
    rules,
)

ANN, BOB = USERS
HOST = "10.0.0.1"
QUESTIONS = st.tuples(
    st.sampled_from((*USERS, "User:eve")),
    st.sampled_from(HOSTS),
    st.sampled_from(
        (
            Operation.READ,
            Operation.WRITE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.CREATE,
        )
    ),
    st.sampled_from((TOPIC, ResourceType.GROUP)),
    st.sampled_from((*NAMES, "abcd", "z")),
)
Question = tuple[str, str, Operation, ResourceType, str]


def authorizer(*acls: Acl, allows_everyone: bool = False) -> AclAuthorizer:
    made = AclAuthorizer([ADMIN], allows_everyone)
    made.load({0: acls})
    return made


def is_allowed(made: AclAuthorizer, question: Question) -> bool:
    principal, host, operation, type_, name = question
    return made.allows(principal, host, operation, Resource(type_, name))


@settings(max_examples=500, deadline=None)
@given(st.lists(rules(), max_size=12), st.lists(QUESTIONS, min_size=1, max_size=20), st.booleans())
def test_decisions_equal_those_of_the_naive_evaluator(
    acls: list[Acl], questions: list[Question], allows_everyone: bool
) -> None:
    made = authorizer(*acls, allows_everyone=allows_everyone)
    for question in questions:
        assert is_allowed(made, question) == naive(acls, *question, allows_everyone)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(rules(), max_size=6), min_size=2, max_size=5),
    st.lists(QUESTIONS, min_size=5, max_size=20),
)
def test_changed_image_decides_as_a_new_one(
    steps: list[list[Acl]], questions: list[Question]
) -> None:
    # The same rule is stored in one node only, at any time.
    in_first = {acl for step in (steps[0], *steps[1::2]) for acl in step}
    steps[2::2] = [[acl for acl in step if acl not in in_first] for step in steps[2::2]]
    made = authorizer(*steps[0])
    for number, step in enumerate(steps[1:]):
        version = made.version
        made.update({number % 2: tuple(dict.fromkeys(step))})
        assert made.version != version
    last = {number % 2: step for number, step in enumerate(steps[1:])}
    current = [*last.get(0, steps[0]), *last.get(1, ())]
    for question in questions:
        assert is_allowed(made, question) == naive(current, *question)


@settings(max_examples=200, deadline=None)
@given(st.lists(rules(), max_size=8), st.sampled_from(USERS), st.sampled_from(HOSTS))
def test_any_topic_is_allowed_only_if_one_name_is_allowed(
    acls: list[Acl], user: str, host: str
) -> None:
    made = authorizer(*acls)
    is_any = made.allows(user, host, Operation.READ, ANY_TOPIC)
    names = [*NAMES, *(name + "-new" for name in NAMES)]
    one = any(naive(acls, user, host, Operation.READ, TOPIC, name) for name in names)
    assert one or not is_any


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([allow("a", Operation.WRITE)], True),
        ([allow("a", Operation.ALL)], True),
        ([allow("a", Operation.READ)], False),
        ([allow("a", Operation.WRITE, host="10.0.0.2")], False),
        ([allow("a", Operation.WRITE, host="10.0.0.0/8")], True),
        ([allow("a", Operation.WRITE, "User:*")], True),
        ([allow("a", Operation.WRITE), deny("a", Operation.WRITE)], False),
        ([allow("a", Operation.WRITE), deny("b", Operation.WRITE)], True),
        ([allow("a", Operation.WRITE), deny("*", Operation.ALL)], False),
        ([allow("*", Operation.WRITE), deny("a", Operation.WRITE)], True),
        (
            [allow("ab", Operation.WRITE), deny("a", Operation.WRITE)._replace(pattern=PREFIXED)],
            False,
        ),
        ([allow("ab", Operation.WRITE), deny("ab", Operation.READ)], True),
    ],
)
def test_write_on_any_topic_follows_kafkas_rule(acls: list[Acl], expected: bool) -> None:
    made = authorizer(*acls)
    assert made.allows(ANN, HOST, Operation.WRITE, ANY_TOPIC) is expected


def test_everyone_can_write_any_topic_if_most_names_have_no_acl() -> None:
    made = authorizer(allow("a", user=BOB), allows_everyone=True)
    assert made.allows(ANN, HOST, Operation.WRITE, ANY_TOPIC)
    made.update({1: (allow("*", user=BOB),)})
    assert not made.allows(ANN, HOST, Operation.WRITE, ANY_TOPIC)


def test_prefixed_star_is_a_prefix_and_no_wildcard() -> None:
    made = authorizer(allow("*")._replace(pattern=PREFIXED))
    assert not made.allows(ANN, HOST, Operation.READ, topic_resource("a"))
    assert made.allows(ANN, HOST, Operation.READ, topic_resource("*a"))


def test_deny_on_the_wildcard_wins_over_a_literal_allow() -> None:
    made = authorizer(allow("a"), deny("*", user="User:*"))
    decision = made.decide(ANN, HOST, Operation.READ, topic_resource("a"))
    assert (decision.is_allowed, decision.acl) == (False, deny("*", user="User:*"))


def test_super_user_is_allowed_despite_a_deny() -> None:
    made = authorizer(deny("*", Operation.ALL, "User:*"))
    assert made.allows(ADMIN, HOST, Operation.DELETE, topic_resource("a"))
    assert not made.allows("User:Admin", HOST, Operation.DELETE, topic_resource("a"))


def test_one_of_three_acls_is_deleted_and_the_others_still_apply() -> None:
    """CVE-2024-27309."""
    three = tuple(deny("a", user=user) for user in (ANN, BOB, "User:eve"))
    made = authorizer(*three, allow("*", user="User:*"))
    made.update({0: (*three[1:], allow("*", user="User:*"))})
    found = [
        made.allows(each, HOST, Operation.READ, topic_resource("a"))
        for each in (ANN, BOB, "User:eve")
    ]
    assert found == [True, False, False]


def test_without_an_image_only_super_users_are_allowed() -> None:
    made = AclAuthorizer([ADMIN], allows_everyone=True)
    resource = topic_resource("a")
    assert not made.allows(ANN, HOST, Operation.READ, resource)
    assert made.allows(ADMIN, HOST, Operation.READ, resource)
    made.update({0: (allow("a"),)})
    assert not made.allows(ANN, HOST, Operation.READ, resource)
    made.load({0: (allow("a"),)})
    assert made.allows(ANN, HOST, Operation.READ, resource)


def test_while_a_node_cannot_be_read_only_super_users_are_allowed() -> None:
    made = authorizer(allow("a"), allows_everyone=True)
    resource = topic_resource("a")
    made.update({7: None})
    assert not made.allows(ANN, HOST, Operation.READ, resource)
    assert not made.allows(ANN, HOST, Operation.READ, topic_resource("other"))
    assert made.allows(ADMIN, HOST, Operation.READ, resource)
    made.update({7: ()})
    assert made.allows(ANN, HOST, Operation.READ, resource)


def test_removed_rules_leave_nothing_behind() -> None:
    acls = [allow(f"t{index}")._replace(pattern=kind) for index in range(9) for kind in PatternType]
    image = AclImage(acls)
    image.remove(allow("unknown"))
    for acl in acls:
        image.remove(acl)
    assert not image._patterns
    assert not image._by_principal
    assert not any(image._prefix_lengths.values())


def test_look_up_among_many_rules_reads_few_of_them() -> None:
    class Counted(str):
        """A principal that counts its comparisons with others."""

        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    acls = [allow(f"t{n}", user=Counted(f"User:u{n % 100}")) for n in range(10_000)]
    acls += [allow("*", user=Counted(f"User:u{n}")) for n in range(1_000)]
    made = authorizer(*acls)
    Counted.compared = 0
    assert made.allows("User:u1", HOST, Operation.READ, topic_resource("t1"))
    assert not made.allows("User:x", HOST, Operation.READ, topic_resource("t1"))
    assert Counted.compared < 20


@pytest.mark.parametrize(
    ("rule", "host", "expected"),
    [
        ("*", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.0/24", "::ffff:10.0.0.9", True),
        ("::ffff:10.0.0.0/120", "10.0.0.9", True),
        ("::ffff:10.0.0.0/120", "10.0.1.9", False),
        ("10.0.0.0/24", "10.0.1.1", False),
        ("10.0.0.0/24", "::1", False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("0.0.0.0/0", "an unknown address", False),
        ("*", "an unknown address", True),
        ("broken/8", "10.0.0.1", False),
    ],
)
def test_hosts_match(rule: str, host: str, expected: bool) -> None:
    assert host_matches(rule, host) is expected


@pytest.mark.parametrize("host", ["*", "10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32"])
def test_valid_hosts_are_accepted(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    "host", ["", "localhost", "10.0.0.1/8", "10.0.0.0/33", "10.*", "1/2/3", "10.0.0.1 "]
)
def test_invalid_hosts_are_rejected(host: str) -> None:
    with pytest.raises(InvalidHost, match=r"Use \*, an IP address or a CIDR range"):
        check_host(host)


def test_super_users_are_separated_by_semicolons() -> None:
    assert principals("User:a; User:CN=b,O=c ;") == ["User:a", "User:CN=b,O=c"]
    assert principals("") == []
    with pytest.raises(ValueError, match="'admin' is not a principal"):
        principals("User:a;admin")


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (AclFilter(), "a ab* * other"),
        (AclFilter(TOPIC, ANY, "ab"), "ab*"),
        (AclFilter(TOPIC, LITERAL, "ab"), ""),
        (AclFilter(TOPIC, PREFIXED, "ab"), "ab*"),
        (AclFilter(TOPIC, MATCH, "abc"), "ab* *"),
        (AclFilter(TOPIC, MATCH, "a"), "a *"),
        (AclFilter(TOPIC, MATCH, None), "a ab* *"),
        (AclFilter(TOPIC, LITERAL, "*"), "*"),
        (AclFilter(principal=BOB), "other"),
        (AclFilter(operation=Operation.WRITE), ""),
        (AclFilter(host="10.0.0.1"), ""),
    ],
)
def test_filters_select(filter_: AclFilter, expected: str) -> None:
    named = {
        "a": allow("a"),
        "ab*": allow("ab")._replace(pattern=PREFIXED),
        "*": allow("*"),
        "other": allow("g", user=BOB)._replace(type=ResourceType.GROUP),
    }
    found = [name for name, acl in named.items() if filter_.matches(acl)]
    assert found == expected.split()
