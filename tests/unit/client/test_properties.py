"""Properties files of clients: names with typing errors are not ignored."""

from argparse import Namespace
from pathlib import Path

import pytest

from headrace.cli.credentials import client_settings
from headrace.cli.failure import Failure
from headrace.client.core.properties import InvalidProperties, load_properties

LOGIN = "security.protocol=SASL_PLAINTEXT\nsasl.username=alice\nsasl.password=secret\n"


def load(path: Path, text: str) -> None:
    file = path / "client.properties"
    file.write_text(text)
    load_properties(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocl=SASL_SSL", "'security.protocl'; did you mean security.protocol?"),
        ("secruity.protocol=SASL_SSL", "did you mean security.protocol?"),
        (LOGIN + "sasl.mechanisms=PLAIN", "did you mean sasl.mechanism?"),
        (LOGIN + "ssl.ca.location=ca.pem", "did you mean ssl.truststore.location?"),
        (LOGIN + "ssl.truststore.locaton=ca.pem", "did you mean ssl.truststore.location?"),
        (
            LOGIN + "ssl.endpoint.identification.algoritm=https",
            "did you mean ssl.endpoint.identification.algorithm?",
        ),
        (LOGIN + "ssl.crl.location=crl.pem", "unknown property 'ssl.crl.location'"),
        ("sasl.username=alice\nsasl.password=b", "has no effect without security.protocol"),
    ],
)
def test_security_property_that_has_no_effect_is_rejected(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidProperties) as failed:
        load(tmp_path, text)
    assert message in str(failed.value)
    assert "secret" not in str(failed.value)


def test_commands_end_a_suggestion_with_one_mark(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(LOGIN + "sasl.pasword=b\n")
    with pytest.raises(Failure, match=r"did you mean sasl\.password\?$"):
        client_settings(Namespace(command_config=str(file)))


def test_properties_of_other_purposes_are_ignored(tmp_path: Path) -> None:
    load(tmp_path, LOGIN + "bootstrap.servers=a:9092\ngroup.id=readers\nmax.poll.records=5\n")
    load(tmp_path, LOGIN + "sasl.login.retry.backoff.ms=5\nsasl.kerberos.service.name=kafka\n")
    load(tmp_path, "acks=all\n")
