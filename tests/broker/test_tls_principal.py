"""The authorizer gets the principal of a client's certificate."""

import asyncio
import ssl
from pathlib import Path

import pytest

from headrace.config.broker import BrokerConfig
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import ANONYMOUS
from tests.broker.test_sasl_principal import questions_at
from tests.certificates import Certificates


@pytest.mark.parametrize(
    ("client_auth", "rules", "client", "expected"),
    [
        ("required", "DEFAULT", "alice", "User:CN=alice,O=Mill"),
        ("requested", "RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "alice", "User:ALICE"),
        ("requested", "DEFAULT", None, ANONYMOUS),
        ("none", "DEFAULT", "alice", ANONYMOUS),
    ],
)
def test_authorizer_gets_the_principal_of_the_certificate(
    tmp_path: Path, client_auth: str, rules: str, client: str | None, expected: str
) -> None:
    certificates = Certificates.create(tmp_path)
    port = free_port()
    config = BrokerConfig.load(
        {
            "log.dirs": str(tmp_path / "data"),
            "listeners": f"SSL://127.0.0.1:{port}",
            "ssl.client.auth": client_auth,
            "ssl.principal.mapping.rules": rules,
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "1",
            **certificates.server(),
        }
    )
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    if client is not None:
        context.load_cert_chain(certificates.path(f"{client}.pem"))
    questions = asyncio.run(questions_at(config, port, ssl=context))
    assert {question[:2] for question in questions} == {(expected, "127.0.0.1")}
