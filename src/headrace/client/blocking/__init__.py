"""The client for programs without an event loop: `headrace.client` exports its names."""

from headrace.client.blocking.client import Client, connect
from headrace.client.blocking.delivery import Delivery
from headrace.client.blocking.groups import GroupConsumer
from headrace.client.blocking.streams import Consumer, Producer

__all__ = ["Client", "Consumer", "Delivery", "GroupConsumer", "Producer", "connect"]
