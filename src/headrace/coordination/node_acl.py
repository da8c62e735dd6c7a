"""The ACLs that Headrace gives to nodes in ZooKeeper."""

from enum import Enum

WRITE_PERMISSIONS = 0b11110
"""ZooKeeper's bits for: write, create, delete, set the ACL."""


class NodeAcl(Enum):
    OPEN = "open"
    """Every client of ZooKeeper can read and change the node."""
    READABLE = "readable"
    """Every client can read the node. Only clients with its creator's credentials can change it."""
    SECRET = "secret"
    """Only clients with its creator's credentials can read or change the node."""
