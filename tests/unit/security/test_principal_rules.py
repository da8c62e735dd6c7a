"""ssl.principal.mapping.rules."""

import pytest

from headrace.security.principal_rules import InvalidRules, parse_rules, user_of

SUBJECT = "CN=Alice,OU=Users,O=Mill"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", SUBJECT),
        ("", SUBJECT),
        ("RULE:^CN=(.*?),.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2.$1/U", "USERS.ALICE"),
        ("RULE:^CN=Bob$/bob/, RULE:^CN=(Al.*?),.*$/$1@mill/ , DEFAULT", "Alice@mill"),
        ("RULE:^CN=Bob$/bob/\nDEFAULT", SUBJECT),
        ("RULE:^CN=Bob$/bob/", None),
        ("RULE:CN=Alice/x/", None),
        ("RULE:^CN=(.*?),.*$/$1$9/", "Alice$9"),
        (r"RULE:^CN=(.*?),.*$/a\/$1/", "a/Alice"),
    ],
)
def test_first_rule_that_matches_everything_applies(rules: str, expected: str | None) -> None:
    assert user_of(SUBJECT, parse_rules(rules)) == expected


@pytest.mark.parametrize(
    "rules", ["RULE:a", "RULE:a/b", "rule:a/b/", "RULE:(/b/", "RULE:(a)\\1/b/", "x"]
)
def test_invalid_rules_are_rejected(rules: str) -> None:
    with pytest.raises(InvalidRules):
        parse_rules(rules)
