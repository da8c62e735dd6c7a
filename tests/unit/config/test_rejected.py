"""Security settings of a broker that stop its start."""

import pytest

from headrace.config.broker import BrokerConfig
from headrace.config.setting import ConfigError

SASL = {"listeners": "SASL_SSL://:9093"}
CLUSTER = {"zookeeper.connect": "zk:2181"}
PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="a" password="b" user_alice="secret";'
)
SCRAM_LOGIN = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required username='a' password='b';"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"principal.builder.class": "my.Builder"}, "'principal.builder.class' is 'my.Builder'"),
        (
            SASL | {"listener.name.sasl_ssl.principal.builder.class": "my.Builder"},
            "sasl_ssl.principal.builder.class",
        ),
        (
            SASL | {"listener.name.sasl_ssl.plain.sasl.server.callback.handler.class": "my.Check"},
            "is 'my.Check', which is not supported",
        ),
        ({"sasl.oauthbearer.jwt.validator.class": "my.Check"}, "DefaultJwtValidator. Remove it"),
        ({"security.providers": "my.Provider"}, "not supported"),
        ({"ssl.trustmanager.algorithm": "custom"}, "can only be SunX509"),
        ({"create.topic.policy.class.name": "my.Policy"}, "not supported"),
        (SASL | {"listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_USERS}, "headrace users"),
        ({"ssl.client.aut": "required"}, "Did you mean ssl.client.auth"),
        ({"super.user": "User:admin"}, "Did you mean super.users"),
        ({"authorizer.class": "x"}, "Did you mean authorizer.class.name"),
        ({"autorizer.class.name": "x"}, "Did you mean authorizer.class.name"),
        (
            SASL | {"listener.name.sasl_ssl.ssl.client.auht": "required"},
            "is not a broker setting",
        ),
        (
            SASL | {"listener.name.sas_ssl.ssl.client.auth": "required"},
            "is for a listener that does not exist. Use listener.name., and one of sasl_ssl",
        ),
        (
            SASL | {"listener.name.SASL_SSL.ssl.client.auth": "required"},
            "is for a listener that does not exist",
        ),
        (CLUSTER | {"security.inter.broker.protocol": "SSL"}, "uses no TLS"),
        (CLUSTER | {"security.inter.broker.protocol": "SASL_PLAINTEXT"}, "uses no SASL"),
    ],
)
def test_setting_that_cannot_be_honoured_stops_the_start(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as failed:
        BrokerConfig.load(settings)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"principal.builder.class": ""},
        {
            "principal.builder.class": "org.apache.kafka.common.security.authenticator."
            "DefaultKafkaPrincipalBuilder",
            "ssl.keymanager.algorithm": "SunX509",
        },
        SASL | {"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN},
        CLUSTER | SASL | {"security.inter.broker.protocol": "SSL"},
        CLUSTER | SASL | {"listener.name.internal.ssl.client.auth": "required"},
        {"log.flush.intervall.messages": "1"},
    ],
)
def test_setting_with_the_same_effect_as_in_kafka_is_accepted(settings: dict[str, str]) -> None:
    BrokerConfig.load(settings)
