"""Users in the store of brokers that are stopped."""

import os
from collections.abc import Mapping

from headrace.cli.secure import ADMIN
from headrace.cluster.store_reader import read_user_names, read_users
from headrace.coordination import layout
from headrace.coordination.access import ZooKeeperAccess
from headrace.coordination.port import Store
from headrace.security.users import credentials_of


class UserStore:
    def __init__(
        self, store: Store, settings: Mapping[str, Mapping[str, str]], versions: Mapping[str, int]
    ) -> None:
        self._store = store
        self._settings = settings
        self._versions = versions
        self.names = {name for name, each in settings.items() if credentials_of(each)}
        """The users that can log in."""

    @classmethod
    async def read(cls, store: Store) -> "UserStore":
        for path in (os.path.dirname(layout.USER_CONFIGS), layout.USER_CONFIGS):
            if await store.exists(path) is None:
                await store.create(path)
        settings, versions, _ = await read_users(store, await read_user_names(store))
        return cls(store, settings, versions)

    async def has_brokers(self) -> bool:
        """Whether brokers are registered. They would not notice a new user."""
        path = layout.BROKER_IDS
        return bool(await self._store.exists(path) and await self._store.children(path))

    async def create(self, name: str, credentials: Mapping[str, str]) -> None:
        path = layout.user_config_path(name)
        settings = layout.encode_config({**self._settings.get(name, {}), **credentials})
        if path in self._versions:
            # The user has quotas already.
            await self._store.set(path, settings, self._versions[path])
        else:
            await self._store.create(path, settings)


async def create_admin(connect: str, access: ZooKeeperAccess, password: str) -> bool:
    """Create the user `admin` if no user exists. Returns whether it exists now."""
    from headrace.coordination.zookeeper import ZooKeeperStore
    from headrace.security.new_user import new_credentials

    store = await ZooKeeperStore.open(connect, access=access)
    try:
        users = await UserStore.read(store)
        if users.names or await users.has_brokers():
            return ADMIN in users.names
        await users.create(ADMIN, new_credentials(password, os.urandom))
        return True
    finally:
        await store.close()
