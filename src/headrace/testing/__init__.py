"""Shipped to users: brokers as pytest fixtures, and simulated twins.

    from headrace.testing import RunningBroker

    with RunningBroker.start() as broker:
        use(broker.address)

Under pytest the fixtures `headrace_broker` (fresh for each test) and `headrace_session_broker`
(one for the whole run) are there as soon as Headrace is installed.
"""

from headrace.testing.broker import BrokerFailed, RunningBroker

__all__ = ["BrokerFailed", "RunningBroker"]
