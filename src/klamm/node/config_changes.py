"""Configuration that changes while the broker runs: `/config/changes` and what it points at.

Each notification names an entity, which is read again; the last one processed is remembered, so
that nothing is applied twice and nothing is missed (CFG-2, CFG-3).
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

from klamm.errors import MalformedZnodeError, SessionLostError
from klamm.zookeeper import znodes
from klamm.zookeeper.configs import read_config
from klamm.zookeeper.store import NoNodeError, Store

log = logging.getLogger("klamm.broker.config")
_KEPT_MS: Final = 15 * 60 * 1000
#: The name of a notification; other children are ignored.
_NAME: Final = re.compile(r".*[0-9]{10}")

#: Called with the path of an entity below `/config` and its settings as they are now.
Apply = Callable[[str, dict[str, str]], Awaitable[None]]


class ConfigChanges:
    """Applies the notifications of `/config/changes`, also after a new session."""

    def __init__(self, store: Store, apply: Apply) -> None:
        self._store = store
        self._apply = apply
        self._processed = -1
        self._processing = asyncio.Lock()

    async def process(self) -> None:
        """Read the notifications, arming the watch, and apply those that are new.

        A notification whose session is lost meanwhile is applied with the next session.
        """
        async with self._processing:
            await self._remove_old(await self._process_new(watch=True))

    async def catch_up(self) -> None:
        """Apply the notifications that there are, before the state that they lead to is described.

        Another node may have made a change and said so before the watch has told this one. Without
        a session the state is described as it is known.
        """
        async with self._processing:
            with contextlib.suppress(SessionLostError):
                await self._process_new(watch=False)

    async def _process_new(self, *, watch: bool) -> list[str]:
        """Apply the notifications that are new; return the names of all, oldest first."""
        children = await self._store.children(znodes.CONFIG_CHANGES, watch=watch)
        names = sorted(filter(_NAME.fullmatch, children), key=znodes.sequence_number)
        for name in names:
            number = znodes.sequence_number(name)
            if number > self._processed:
                await self._process(f"{znodes.CONFIG_CHANGES}/{name}")
                self._processed = number
        return names

    async def _process(self, path: str) -> None:
        try:
            data = (await self._store.get(path)).data
            entity_path = znodes.decode_config_change(path, data)
        except NoNodeError:
            return
        except MalformedZnodeError as error:
            log.error("%s", error)
            return
        settings = await read_config(self._store, entity_path)
        # Values may be passwords and keys, so the log names only what is set.
        log.info("configuration of %s now sets %s", entity_path, ", ".join(sorted(settings)))
        await self._apply(entity_path, settings)

    async def _remove_old(self, names: list[str]) -> None:
        """Remove the old ones of the notifications, which are there oldest first."""
        now_ms = int(time.time() * 1000)
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await self._store.exists(path)
            if stat is None:
                continue  # removed by another node
            if now_ms - stat.ctime <= _KEPT_MS:
                return  # all that come after it are younger
            with contextlib.suppress(NoNodeError):
                await self._store.delete(path)
