"""DescribeConfigs, versions 1 to 4: describe settings of topics, brokers and groups.

- A broker with an empty name stands for the settings of all brokers.
- A resource that occurs twice has one result, because results are large.
- Requires: DescribeConfigs on the topic or group; for brokers, on the cluster.
- Versions: 1 to 4. Since 3, the response contains types and, on request, documentation.

Gaps: loggers and client metrics are not supported.
"""

from collections.abc import Collection

from headrace.config.describe import (
    ConfigRow,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from headrace.model.errors import ApiError
from headrace.requests.config_resources import (
    BROKER,
    GROUP,
    TOPIC,
    check_group,
    check_resource,
    check_topic,
    node_named,
    resource_key,
    unknown_resource,
)
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.security.authorizer import Operation
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    resources = {resource_key(resource): resource for resource in request["resources"]}
    with_synonyms = request["include_synonyms"]
    with_documentation = request.get("include_documentation", False)
    results = []
    for (resource_type, name), resource in resources.items():
        entry = {"error_message": "", "resource_type": resource_type, "resource_name": name}
        try:
            check_resource(broker, context, Operation.DESCRIBE_CONFIGS, resource)
            rows = _rows(broker, resource_type, name, resource["configuration_keys"] or None)
            entry["configs"] = [_config(row, with_synonyms, with_documentation) for row in rows]
        except ApiError as error:
            entry.update(failure(error))
        results.append(entry)
    return {"results": results}


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "results": [
            {
                "resource_type": resource["resource_type"],
                "resource_name": resource["resource_name"],
                **failure(error),
            }
            for resource in request["resources"]
        ]
    }


def _rows(
    broker: BrokerContext, resource_type: int, name: str, keys: Collection[str] | None
) -> list[ConfigRow]:
    wanted = None if keys is None else frozenset(keys)
    if resource_type == TOPIC:
        check_topic(broker, name)
        return describe_topic(broker.config, broker.image.topics[name].configs, wanted)
    if resource_type == BROKER:
        if node_named(broker, name) is None:
            return describe_broker_defaults(broker.config, wanted)
        return describe_broker(broker.config, wanted)
    if resource_type == GROUP:
        check_group(name)
        return describe_group(broker.config, broker.image.group_configs.get(name, {}), wanted)
    raise unknown_resource(resource_type)


def _config(row: ConfigRow, with_synonyms: bool, with_documentation: bool) -> Message:
    synonyms = row.synonyms if with_synonyms else ()
    return {
        "name": row.name,
        "value": row.value,
        "read_only": row.read_only,
        "config_source": row.source,
        "is_sensitive": row.is_sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
            for synonym in synonyms
        ],
        "config_type": row.config_type,
        "documentation": row.documentation if with_documentation else None,
    }
