"""The settings of an entity below `/config`: read them, write them, and notify every broker."""

import logging

from klamm.errors import MalformedZnodeError
from klamm.zookeeper import znodes
from klamm.zookeeper.store import NoNodeError, Store

log = logging.getLogger("klamm.broker.config")


async def read_config(store: Store, entity_path: str) -> dict[str, str]:
    """The settings of an entity; none if it has no node, or one that cannot be read."""
    path = znodes.config_path(entity_path)
    try:
        return znodes.decode_config(path, (await store.get(path)).data)
    except NoNodeError:
        return {}
    except MalformedZnodeError as error:
        log.error("%s", error)
        return {}


async def write_config(store: Store, entity_path: str, settings: dict[str, str]) -> None:
    """Write the settings of an entity and notify every broker (CFG-2)."""
    path = znodes.config_path(entity_path)
    data = znodes.encode_config(settings)
    try:
        await store.set(path, data)
    except NoNodeError:
        await store.ensure_path(path.rpartition("/")[0])
        await store.create(path, data)
    change = znodes.encode_config_change(entity_path)
    await store.create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True)
