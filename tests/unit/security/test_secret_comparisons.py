"""CVE-2021-38153: the time of a comparison must not reveal how much of a secret was right."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import headrace

SOURCES = Path(headrace.__file__).parent
_SECRET = re.compile(
    r"password|proof|stored_key|server_key|hmac|signature|secret|salted|credential\b|digest"
)
NO_SECRETS = {
    "getpass.getpass('Repeat the password: ') != password": "one person typed both",
    "digest.hexdigest() != jar.sha256": "the checksum of a public file",
    "self._credentials(name, user) == check.credential": "both are stored, none is the client's",
    "self._credentials(self.user) != self.credential": "both are stored, none is the client's",
    "len(proof) != len(signature)": "the sizes are public",
    "b64encode(proof).decode() != proof_text": "both are the client's own",
    "session.credential in credentials": "names of mechanisms, or ids of tokens",
    "session.credential == token_id": "ids of tokens",
    "(former.directory_id, last_epoch) != (proof.directory_id, proof.last_epoch)": (
        "the id of a data directory is public"
    ),
    "n not in without_proof": "ids of brokers",
}


def comparisons(source: str) -> Iterator[str]:
    """The comparisons whose operands are named like a secret, and that stop at a difference."""
    for node in ast.walk(ast.parse(source)):
        kinds = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], kinds):
            text = ast.unparse(node)
            if _SECRET.search(text):
                yield text


def test_secrets_are_compared_in_constant_time() -> None:
    found = {
        text
        for path in SOURCES.rglob("*.py")
        for text in comparisons(path.read_text(encoding="utf-8"))
    }
    assert found == NO_SECRETS.keys(), "use hmac.compare_digest for secrets"


def test_check_finds_an_ordinary_comparison_of_a_secret() -> None:
    source = "def check(a, b):\n    return a.stored_key == b or hmac.compare_digest(a.proof, b)\n"
    assert list(comparisons(source)) == ["a.stored_key == b"]
