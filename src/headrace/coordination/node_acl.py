"""The ACLs that Headrace gives to nodes in ZooKeeper."""

from enum import Enum

WRITE_PERMISSIONS = 0b11110
"""ZooKeeper's bits for: write, create, delete, set the ACL."""


class NodeAcl(Enum):
    OPEN = "open"
    """Every client of ZooKeeper can read and change the node."""
    READABLE = "readable"
    """Every client can read it, only the credentials of its creator can change it."""
    SECRET = "secret"
    """Only the credentials of its creator can read or change it."""
