"""The quota for changes of topics, controller_mutation_rate (KIP-599).

Counts the partitions that a request creates or deletes, on the controller. Requests with newer
versions are rejected per topic while the client is beyond its quota. Older ones are executed, and
the client waits afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.runtime.quota import in_ms
from headrace.wire.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS

REJECTED_SINCE = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED."""


@contextmanager
def counted(broker: BrokerContext, context: RequestContext, partitions: int) -> Iterator[None]:
    """Count the partitions of one topic, unless the change fails.

    Raises THROTTLING_QUOTA_EXCEEDED if the client is beyond its quota.
    """
    quotas = broker.quotas
    bucket = None
    if quotas.is_active and not context.is_internal:
        client_id = (context.client_id or "").encode("utf-8", "replace")
        bucket = quotas.limits_of(context.principal, client_id).mutations
    if bucket is None:
        yield
        return
    now = quotas.monotonic()
    if context.api_version >= REJECTED_SINCE[context.api_key]:
        wait_s = bucket.wait_s(now)
        if wait_s > 0:
            context.throttle_ms = max(context.throttle_ms, in_ms(wait_s))
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
            )
        bucket.charge(partitions, now)
    else:
        context.throttle_ms = max(context.throttle_ms, in_ms(bucket.charge(partitions, now)))
    try:
        yield
    except BaseException:
        bucket.charge(-partitions, quotas.monotonic())
        raise


def throttle_time(context: RequestContext, response: bytes) -> int:
    """The throttle time in the controller's response: this broker does not read for that long."""
    if context.api_key not in REJECTED_SINCE:
        return 0
    # It is the first field after the correlation id, and the tags of a flexible header.
    at = 5 if APIS[context.api_key].is_flexible(context.api_version) else 4
    return int.from_bytes(response[at : at + 4], "big", signed=True)
