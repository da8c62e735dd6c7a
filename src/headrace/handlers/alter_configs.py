"""AlterConfigs, versions 0 to 2: replace all settings of a topic, a broker or a group.

- Settings that the request omits return to their defaults.
- Each resource has its own result. A resource that occurs twice is rejected and not changed.
- Any broker accepts the request and forwards it to the controller.
- A security setting without an effect, or a certificate that the broker cannot load, is
  INVALID_CONFIG.
- Requires: AlterConfigs on the topic or group; for brokers, on the cluster.
- Versions: 0 to 2.

Gaps: client metrics are not supported.
"""

from collections.abc import Mapping

from headrace.config.broker import BrokerConfig
from headrace.config.changes import (
    check_broker_config,
    check_group_config,
    check_topic_config,
    collect,
)
from headrace.config.setting import shown
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.config_resources import (
    Edits,
    alter_each,
    altering_error_response,
    check_own_tls,
)
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message

error_response = altering_error_response


async def prepare(broker: BrokerContext, context: RequestContext, request: Message) -> None:
    await check_own_tls(broker, context, request, _replace)


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    return await alter_each(broker, context, request, _replace)


def _replace(config: BrokerConfig, configs: list[Message]) -> Edits:
    for each in configs:
        if each["value"] is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{shown(each['name'])} cannot be set to null."
            )
    settings = collect((each["name"], each["value"]) for each in configs)

    def of_topic(_: Mapping[str, str]) -> Mapping[str, str]:
        check_topic_config(config, settings)
        return settings

    def of_broker(_: Mapping[str, str], for_all_brokers: bool) -> Mapping[str, str]:
        check_broker_config(settings, for_all_brokers=for_all_brokers)
        return settings

    def of_group(_: Mapping[str, str]) -> Mapping[str, str]:
        check_group_config(config, settings)
        return settings

    return Edits(of_topic, of_broker, of_group)
