"""One broker: which parts there are, in which order they start, and in which they stop.

Start: data directory (locked), store, listeners (bound, silent), registration and image, logs,
then clients are served. Stop goes the other way, and the clean marker is the last thing written.
"""

import asyncio
import logging
import socket
from uuid import UUID

from headrace.config.broker import BrokerConfig
from headrace.config.changes import check_broker_config, check_topic_config
from headrace.controller.changes import ImageChange
from headrace.controller.service import Controller
from headrace.controller.topics_machine import TopicLimits
from headrace.coordination.embedded import EmbeddedStore
from headrace.env.clock import Clock, SystemClock
from headrace.env.files import Files, SystemFiles
from headrace.handlers.context import BrokerContext
from headrace.handlers.partitions import PartitionTable
from headrace.log.directory import LogDirectory
from headrace.log.state import LogSettings
from headrace.model.topics import TopicPartition, TopicState
from headrace.node.upkeep import Upkeep
from headrace.replication.partition import Partition
from headrace.runtime.worker import Worker
from headrace.server.server import Server

STORE_FILE = "headrace-store.db"
_log = logging.getLogger("headrace")
