"""IncrementalAlterConfigs, versions 0 and 1: set, delete, append to or subtract from settings.

- Each resource has its own result and changes completely or not at all.
- A resource that occurs twice is rejected.
- Any broker accepts the request and forwards it to the controller.
- A security setting without an effect, or a certificate that the broker cannot load, is
  INVALID_CONFIG.
- Requires: AlterConfigs on the topic or group; for brokers, on the cluster.
- Versions: 0 and 1.

Gaps: loggers and client metrics are not supported.
"""

from headrace.config.broker import BrokerConfig
from headrace.config.changes import (
    Change,
    apply_broker_changes,
    apply_group_changes,
    apply_topic_changes,
)
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
    await check_own_tls(broker, context, request, _change)


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    return await alter_each(broker, context, request, _change)


def _change(config: BrokerConfig, configs: list[Message]) -> Edits:
    changes = [Change(each["name"], each["config_operation"], each["value"]) for each in configs]
    return Edits(
        of_topic=lambda current: apply_topic_changes(config, current, changes),
        of_broker=lambda current, for_all_brokers: apply_broker_changes(
            config, current, changes, for_all_brokers=for_all_brokers
        ),
        of_group=lambda current: apply_group_changes(config, current, changes),
    )
