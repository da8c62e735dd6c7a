"""Commands that use ZooKeeper directly: their credentials, and `headrace zookeeper secure`."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig
    from headrace.coordination.access import ZooKeeperAccess

DIGEST_FILE = "zookeeper.digest"
"""In the data directory of a cluster."""


def add_config_argument(parser: argparse._ActionsContainer, option: str) -> None:
    parser.add_argument(
        option,
        metavar="FILE",
        dest="zookeeper_config",
        help="properties file of a broker, with the address, the credentials and the TLS settings "
        "of ZooKeeper",
    )


def read_config(path: str | None) -> "BrokerConfig":
    """The settings in a broker's file; all defaults without a file."""
    from headrace.config.broker import BrokerConfig
    from headrace.config.properties import read_properties
    from headrace.config.setting import ConfigError

    if path is None:
        return BrokerConfig.load()
    try:
        return BrokerConfig.load(read_properties(Path(path).read_text(encoding="latin-1")))
    except OSError as error:
        raise Failure(f"Cannot read {path}: {error.strerror}.") from None
    except ConfigError as error:
        raise Failure(f"{path}: {error.message}") from None


def created_digest(path: str) -> "ZooKeeperAccess":
    """The credentials in this file, which is created if it does not exist."""
    from headrace.coordination.access import ZooKeeperAccess, create_digest, read_digest
    from headrace.coordination.port import StoreUnavailable

    try:
        create_digest(path, os.urandom)
        return ZooKeeperAccess(read_digest(path), sets_acls=True)
    except OSError as error:
        raise Failure(f"Cannot create {path}: {error.strerror}.") from None
    except StoreUnavailable as error:
        raise Failure(str(error)) from None


def secure_if_open(connect: str, access: "ZooKeeperAccess") -> int:
    """Set the ACLs of all nodes if the first is open; returns the number of nodes.

    Raises StoreUnavailable.
    """
    return asyncio.run(_secured(connect, access, undo=False, always=False))


def run_secure(args: argparse.Namespace) -> int:
    """`headrace zookeeper secure`."""
    from headrace.coordination.access import SET_ACL, access_of
    from headrace.coordination.port import StoreError, StoreUnavailable

    if args.zookeeper_config is None:
        raise Failure("headrace zookeeper secure requires --config FILE.", 2)
    config = read_config(args.zookeeper_config)
    connect = config.get_optional_str("zookeeper.connect")
    if connect is None:
        raise Failure(f"{args.zookeeper_config}: zookeeper.connect is missing.")
    try:
        access = access_of(config)
        if not access.digest:
            raise Failure(
                f"{args.zookeeper_config}: headrace.zookeeper.digest.file is missing. Without "
                "credentials, no broker could change the nodes."
            )
        count = asyncio.run(_secured(connect, access, undo=args.undo, always=True))
    except (StoreError, StoreUnavailable) as error:
        raise Failure(str(error)) from None
    if args.undo:
        print(f"Every client of ZooKeeper can read and change {count} nodes at {connect}.")
    else:
        print(f"Only these credentials can change {count} nodes at {connect}.")
        if not config.get_bool(SET_ACL):
            print(f"Set {SET_ACL}=true for all brokers, so that new nodes are secured as well.")
    return 0


async def _secured(connect: str, access: "ZooKeeperAccess", *, undo: bool, always: bool) -> int:
    from headrace.coordination.securing import is_open, secure_tree
    from headrace.coordination.zookeeper import ZooKeeperStore

    store = await ZooKeeperStore.open(connect, access=access)
    try:
        if always or await is_open(store):
            return await secure_tree(store, undo=undo)
        return 0
    finally:
        await store.close()
