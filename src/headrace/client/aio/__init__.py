"""The client for asyncio programs: `async with headrace.client.aio.connect(address) as client`."""

from headrace.client.aio.client import Client, connect
from headrace.client.aio.delivery import Delivery
from headrace.client.aio.groups import GroupConsumer
from headrace.client.aio.streams import Consumer, Producer

__all__ = ["Client", "Consumer", "Delivery", "GroupConsumer", "Producer", "connect"]
