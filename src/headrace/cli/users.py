"""`headrace users`: users that can log in, and their passwords."""

import argparse
import asyncio
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.connection import add_action, run_action
from headrace.cli.credentials import read_password
from headrace.cli.failure import Failure
from headrace.cli.output import print_json, print_table
from headrace.cli.zookeeper_access import add_config_argument, read_config

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.coordination.port import Store

PASSWORD_BYTES = 18
"""Of randomness, in a generated password."""
SCRAM_BY_SIZE = {"256": "SCRAM-SHA-256", "512": "SCRAM-SHA-512"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = add_action(actions, "create", "create a user", _create, json=False)
    _add_password_arguments(create)
    create.add_argument(
        "--scram",
        choices=SCRAM_BY_SIZE,
        help="create a credential for SCRAM-SHA-256 or SCRAM-SHA-512 only (default: both)",
    )
    password = add_action(
        actions,
        "password",
        "replace a user's password, and close the user's connections",
        _password,
        json=False,
    )
    _add_password_arguments(password)
    add_action(actions, "list", "list users and their mechanisms", _list)
    delete = add_action(
        actions, "delete", "delete a user, and close the user's connections", _delete, json=False
    )
    delete.add_argument("name", metavar="NAME", help="name of the user")
    delete.add_argument(
        "--force",
        action="store_true",
        help="delete even the only user, or the only user of super.users",
    )
    bootstrap = actions.add_parser(
        "bootstrap",
        help="create the first user, or a missing super user, in the store of stopped brokers",
        description="Create the first user, or a missing super user, in the store of stopped "
        "brokers. Fails if this user exists: then use headrace users password.",
    )
    bootstrap.set_defaults(run_action=None)
    _add_password_arguments(bootstrap)
    where = bootstrap.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", metavar="DIR", help="data directory of a single broker")
    where.add_argument(
        "--zookeeper", metavar="HOST:PORT", help="ZooKeeper of a cluster, as in zookeeper.connect"
    )
    add_config_argument(where, "--zookeeper-config")


def _add_password_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the user")
    parser.add_argument(
        "--generate",
        action="store_true",
        help="generate a password and print it (default: read it from the terminal or from "
        "standard input)",
    )


def run(args: argparse.Namespace) -> int:
    if args.run_action is None:
        _bootstrap(args)
        return 0
    return run_action(args)


def _new_password(args: argparse.Namespace) -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES) if args.generate else read_password(args.name)


def _show(args: argparse.Namespace, password: str) -> None:
    if args.generate:
        print(password)


def _create(client: "Client", args: argparse.Namespace) -> None:
    if any(user.name == args.name for user in client.list_users()):
        raise Failure(f"User {args.name!r} already exists. Use headrace users password.")
    password = _new_password(args)
    client.set_password(args.name, password, SCRAM_BY_SIZE.get(args.scram))
    _show(args, password)


def _password(client: "Client", args: argparse.Namespace) -> None:
    if not any(user.name == args.name for user in client.list_users()):
        raise Failure(f"Unknown user {args.name!r}. Use headrace users create.")
    password = _new_password(args)
    client.set_password(args.name, password)
    _show(args, password)


def _list(client: "Client", args: argparse.Namespace) -> None:
    users = client.list_users()
    if args.json:
        print_json([{"name": user.name, "mechanisms": list(user.credentials)} for user in users])
        return
    if not users:
        print("No users.")
        return
    print_table(("name", "mechanisms"), [(user.name, list(user.credentials)) for user in users])


def _delete(client: "Client", args: argparse.Namespace) -> None:
    if not args.force:
        _check_other_users(client, args.name)
    client.delete_user(args.name)


def _check_other_users(client: "Client", name: str) -> None:
    """Raise Failure if no other user, or no other super user, could log in with a password."""
    from headrace.client import ConfigResource
    from headrace.model.acls import principals

    others = {user.name for user in client.list_users()} - {name}
    advice = "Create another first, or use --force."
    if not others:
        raise Failure(f"User {name!r} is the only user: no client could log in. {advice}")
    node_id = client.describe_cluster().brokers[0].node_id
    settings = client.describe_configs(ConfigResource("broker", str(node_id)), ["super.users"])
    super_users = principals(settings["super.users"].value or "")
    if f"User:{name}" in super_users and not any(f"User:{o}" in super_users for o in others):
        raise Failure(
            f"User {name!r} is the only user of super.users: no client could log in as one. "
            f"{advice}"
        )


def _bootstrap(args: argparse.Namespace) -> None:
    from headrace.coordination.database import StoreFileError
    from headrace.coordination.port import StoreError, StoreUnavailable
    from headrace.model.errors import ApiError
    from headrace.security.new_user import new_credentials
    from headrace.security.users import check_new_user

    try:
        check_new_user(args.name, 1)
        if args.data:
            _make_directory(args.data)
        password = _new_password(args)
        asyncio.run(_store_first_user(args, new_credentials(password, os.urandom)))
    except ApiError as error:
        raise Failure(error.message, 2) from None
    except UnicodeEncodeError:
        raise Failure(f"User name {args.name!r} is not UTF-8. Choose another one.", 2) from None
    except (StoreFileError, StoreError, StoreUnavailable) as error:
        raise Failure(f"The user was not created: {error}") from None
    _show(args, password)


def _make_directory(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"Cannot create {path}: {error.strerror}.") from None


async def _store_first_user(args: argparse.Namespace, credentials: dict[str, str]) -> None:
    from headrace.cli.stored_user import UserStore

    store = await _open_store(args)
    try:
        users = await UserStore.read(store)
        if args.name in users.names:
            raise Failure(
                f"User {args.name!r} already exists. Start the brokers and use headrace users "
                "password. If no super user can log in, bootstrap another name of super.users."
            )
        if await users.has_brokers():
            raise Failure("Brokers are running. Stop them, or use headrace users create.")
        await users.create(args.name, credentials)
    finally:
        await store.close()


async def _open_store(args: argparse.Namespace) -> "Store":
    if args.data is None:
        from headrace.coordination.access import access_of
        from headrace.coordination.zookeeper import ZooKeeperStore

        config = read_config(args.zookeeper_config)
        connect = args.zookeeper or config.get_optional_str("zookeeper.connect")
        if connect is None:
            raise Failure(f"{args.zookeeper_config}: zookeeper.connect is missing.")
        return await ZooKeeperStore.open(connect, access=access_of(config))
    from headrace.coordination.embedded import STORE_FILE, EmbeddedStore

    return await EmbeddedStore.open(os.path.join(args.data, STORE_FILE))
