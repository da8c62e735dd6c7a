"""Settings of TLS: listeners, prefixes, and settings that cannot be honoured."""

import asyncio
from pathlib import Path

import pytest

from headrace.config.broker import BrokerConfig
from headrace.config.setting import ConfigError
from headrace.node.broker import Broker, CannotStart


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.client.auth": "required"}, "no listener uses SSL"),
        (
            {"listeners": "SASL_SSL://:9093", "ssl.client.auth": "required"},
            "listener.name.NAME.ssl.client.auth",
        ),
        (
            {"listener.name.plaintext.ssl.client.auth": "requested"},
            "this listener uses PLAINTEXT",
        ),
        ({"listeners": "SSL://:9093", "ssl.engine.factory.class": "x.Y"}, "is not supported"),
        ({"ssl.provider": "BC"}, "is not supported"),
        ({"listeners": "SSL://:9093", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
    ],
)
def test_setting_that_cannot_be_honoured_is_rejected(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.load(settings)


def test_neutral_values_are_accepted() -> None:
    BrokerConfig.load({"ssl.client.auth": "none", "ssl.provider": ""})


def test_prefix_of_a_listener_overrides_the_setting_for_all() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "SSL://:9093,SASL_SSL://:9094,PLAINTEXT://:9092",
            "ssl.keystore.location": "all.pem",
            "ssl.client.auth": "requested",
            "listener.name.sasl_ssl.ssl.keystore.location": "sasl.pem",
        }
    )
    assert config.tls_listeners == ("SSL", "SASL_SSL")
    assert config.tls_values("SSL")["ssl.keystore.location"] == "all.pem"
    assert config.tls_values("SASL_SSL")["ssl.keystore.location"] == "sasl.pem"
    assert config.tls_values("SSL")["ssl.client.auth"] == "requested"
    assert config.tls_values("SASL_SSL")["ssl.client.auth"] is None


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ("PLAINTEXT://:9092", "PLAINTEXT"),
        ("SASL_PLAINTEXT://:9092", "SASL_PLAINTEXT"),
        ("SSL://:9092", "SASL_SSL"),
        ("SASL_SSL://:9092,PLAINTEXT://:9093", "SASL_SSL"),
    ],
)
def test_listener_between_brokers_is_as_safe_as_the_others(listeners: str, expected: str) -> None:
    config = BrokerConfig.load({"listeners": listeners, "zookeeper.connect": "zk:2181"})
    assert config.listeners[-1].protocol == expected
    assert ("INTERNAL" in config.mechanisms) == (expected != "PLAINTEXT")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_listener_between_brokers_needs_a_login(protocol: str) -> None:
    with pytest.raises(ConfigError, match="SASL_SSL"):
        BrokerConfig.load(
            {
                "listeners": "SSL://:9092,IN://:9093",
                "listener.security.protocol.map": f"SSL:SSL,IN:{protocol}",
                "inter.broker.listener.name": "IN",
                "zookeeper.connect": "zk:2181",
            }
        )


def test_broker_without_a_key_does_not_start(tmp_path: Path) -> None:
    config = BrokerConfig.load({"listeners": "SSL://127.0.0.1:0", "log.dirs": str(tmp_path)})

    async def start() -> None:
        await Broker(config).start()

    with pytest.raises(CannotStart, match="listener SSL: the private key is missing"):
        asyncio.run(start())
