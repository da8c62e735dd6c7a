"""Recognises temporary files in the data directory.

`SystemFiles.replace_file` writes `<name>.<thread>.tmp`. The file remains if the process is killed,
or if the disk is full. Apache Kafka writes `<name>.tmp`.
"""

import re

from headrace.log.directory.incarnation import MARKER
from headrace.log.directory.recorded_partitions import LOST, TOPIC_IDS
from headrace.log.upkeep.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)

STRAYS = "headrace-strays"
"""Describes the store at the last start (`headrace.node.strays`)."""
_NAMES = (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    LOST,
    MARKER,
    META_PROPERTIES,
    RECOVERY_POINTS,
    STRAYS,
    TOPIC_IDS,
)
"""All files of the data directory that are replaced."""
# A thread is the address of its stack, in hexadecimal digits. A date begins with another digit.
_TEMPORARY = re.compile(rf"(?:{'|'.join(map(re.escape, _NAMES))})\.[7-9a-f][0-9a-f]{{9,11}}\.tmp")


def is_temporary(name: str) -> bool:
    """Whether Headrace created this file temporarily; never true for other files."""
    return _TEMPORARY.fullmatch(name) is not None
