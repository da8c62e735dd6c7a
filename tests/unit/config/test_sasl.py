"""Listeners with SASL: their protocols, their mechanisms, and mistakes in both."""

import pytest

from headrace.config.broker import BrokerConfig
from headrace.config.setting import ConfigError
from headrace.model.cluster import Endpoint

SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092"}
CLUSTER = {"zookeeper.connect": "zk:2181"}


def test_sasl_listener_offers_scram_by_default() -> None:
    config = BrokerConfig.load(SASL)
    assert config.mechanisms == {"SASL_PLAINTEXT": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
    assert BrokerConfig.load({}).mechanisms == {}


def test_each_listener_has_its_own_mechanisms() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "PLAINTEXT://:1,IN://:2,OUT://:3",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,IN:SASL_PLAINTEXT,"
            "OUT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        }
    )
    assert config.mechanisms == {"IN": ("PLAIN", "SCRAM-SHA-256"), "OUT": ("SCRAM-SHA-512",)}
    assert config.notes() == []


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"sasl.enabled.mechanisms": "GSSAPI"},
            "sasl.enabled.mechanisms contains 'GSSAPI', which is not supported. Use PLAIN,",
        ),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
        (
            {"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "scram-sha-256"},
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms contains 'scram-sha-256'",
        ),
        (
            {
                **CLUSTER,
                "listeners": "SASL_PLAINTEXT://:1,PLAINTEXT://:2",
                "inter.broker.listener.name": "PLAINTEXT",
            },
            "inter.broker.listener.name is PLAINTEXT, which uses PLAINTEXT, but brokers log in",
        ),
    ],
)
def test_listener_that_cannot_authenticate_is_rejected(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load({**SASL, **properties})
    assert raised.value.message.startswith(message)


def test_mechanisms_have_no_effect_without_a_sasl_listener() -> None:
    assert BrokerConfig.load({"sasl.enabled.mechanisms": "GSSAPI"}).mechanisms == {}


def test_listener_between_brokers_requires_a_login_if_any_other_does() -> None:
    listeners = "PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2"
    config = BrokerConfig.load({**CLUSTER, "listeners": listeners})
    assert config.listeners[-1] == Endpoint("INTERNAL", "127.0.0.1", 0, "SASL_PLAINTEXT")
    assert config.mechanisms["INTERNAL"] == ("SCRAM-SHA-256",)
    plain = BrokerConfig.load({**CLUSTER, "listeners": "PLAINTEXT://127.0.0.1:1"})
    assert plain.listeners[-1].protocol == "PLAINTEXT"
