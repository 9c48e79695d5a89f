"""ACLs in ZooKeeper: loaded at the start, followed by notifications, changed by compare and set.

A pattern whose znode cannot be read is closed to everybody until it can: ACLs that were lost might
have denied something.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

from klamm.broker.security import acl_znodes
from klamm.broker.security.authorizer import AclAuthorizer
from klamm.errors import MalformedZnodeError, UnavailableError
from klamm.protocol.acls import (
    ANY_HOST,
    ANYBODY,
    RESOURCE_TYPES,
    AccessControlEntry,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
)
from klamm.zookeeper.store import BadVersionError, NodeExistsError, NoNodeError, Store
from klamm.zookeeper.znodes import sequence_number

log = logging.getLogger("klamm.broker.security")

_TRIES: Final = 10
_PAUSE_S: Final = (0.1, 0.15)
_READS_AT_A_TIME: Final = 100
_CLOSED: Final = AccessControlEntry(ANYBODY, ANY_HOST, AclOperation.ALL, AclPermission.DENY)
CHANGE_ROOTS: Final = (acl_znodes.LITERAL_CHANGES, acl_znodes.EXTENDED_CHANGES)

Entries = frozenset[AccessControlEntry]


class AclStore:
    """Keeps an authorizer in step with ZooKeeper."""

    def __init__(self, store: Store, authorizer: AclAuthorizer) -> None:
        self.authorizer = authorizer
        self._store = store
        self._processed = dict.fromkeys(CHANGE_ROOTS, -1)

    async def load(self) -> None:
        """Create what is missing, arm the watches, then read every ACL (SEC-7)."""
        for path in acl_znodes.STRUCTURE:
            await self._store.ensure_path(path)
        for root in CHANGE_ROOTS:
            names = await self._store.children(root, watch=True)
            numbers = [sequence_number(name) for name in names]
            self._processed[root] = max([self._processed[root], *numbers])
        found = await self._stored_patterns()
        for gone in set(self.authorizer.patterns()) - set(found):
            self.authorizer.put(gone, ())
        for at in range(0, len(found), _READS_AT_A_TIME):
            await asyncio.gather(*map(self._reload, found[at : at + _READS_AT_A_TIME]))

    async def _stored_patterns(self) -> list[ResourcePattern]:
        return [
            ResourcePattern(type_, name, pattern)
            for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
            for type_ in RESOURCE_TYPES
            for name in await self._store.children(acl_znodes.type_path(pattern, type_))
        ]

    async def on_changes(self, root: str) -> None:
        """Read the notifications below `root`, arming the watch, and follow those that are new."""
        names = await self._store.children(root, watch=True)
        for name in sorted(names, key=sequence_number):
            number = sequence_number(name)
            if number > self._processed[root]:
                self._processed[root] = number
                await self._follow(f"{root}/{name}")
        await self._remove_old(root, names)

    async def _follow(self, path: str) -> None:
        try:
            data = (await self._store.get(path)).data
            await self._reload(acl_znodes.decode_change(data or b"", path))
        except NoNodeError:
            return
        except MalformedZnodeError as error:
            log.error("%s", error)

    async def _reload(self, pattern: ResourcePattern) -> None:
        entries, _ = await self._read(pattern)
        self.authorizer.put(pattern, entries)

    async def _read(self, pattern: ResourcePattern) -> tuple[Entries, int | None]:
        """The entries of a pattern and the version of its znode; None if it has none."""
        path = acl_znodes.acl_path(pattern)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return frozenset(), None
        try:
            return acl_znodes.decode_entries(node.data or b"", path), node.stat.version
        except MalformedZnodeError as error:
            log.error("%s; until it can be read, %s is closed to everybody", error, pattern)
            return frozenset({_CLOSED}), node.stat.version

    async def update(self, pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> None:
        """Change the entries of a pattern in ZooKeeper, here, and then at the other brokers."""
        for _ in range(_TRIES):
            held, version = await self._read(pattern)
            wanted = change(held)
            if wanted == held:
                self.authorizer.put(pattern, held)
                return
            if await self._write(pattern, wanted, version):
                self.authorizer.put(pattern, wanted)
                await self._store.create(
                    f"{acl_znodes.changes_root(pattern.pattern)}/{acl_znodes.CHANGE_PREFIX}",
                    acl_znodes.encode_change(pattern),
                    sequential=True,
                )
                return
            await asyncio.sleep(random.uniform(*_PAUSE_S))
        raise UnavailableError(f"the ACLs of {pattern} are changed by others all the time")

    async def _write(
        self, pattern: ResourcePattern, wanted: Iterable[AccessControlEntry], version: int | None
    ) -> bool:
        """Write unless the znode has changed meanwhile; return whether it was written."""
        path = acl_znodes.acl_path(pattern)
        entries = frozenset(wanted)
        try:
            if not entries:
                if version is not None:
                    await self._store.delete(path, version)
            elif version is None:
                await self._store.create(path, acl_znodes.encode_entries(entries))
            else:
                await self._store.set(path, acl_znodes.encode_entries(entries), version)
        except (BadVersionError, NoNodeError, NodeExistsError):
            return False
        return True

    async def _remove_old(self, root: str, names: Iterable[str]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for name in names:
            stat = await self._store.exists(f"{root}/{name}")
            if stat is not None and now_ms - stat.ctime > acl_znodes.CHANGE_LIFE_MS:
                with contextlib.suppress(NoNodeError):
                    await self._store.delete(f"{root}/{name}")
