"""Topics that were deleted while the controller could not reach this broker.

A controller announces a deletion once, to the brokers that are registered. A broker whose session
had ended, or whose controller dies before it has sent the announcement, is later told of the
topics that there are, not of those that are gone or queued for deletion (BRK-7): it would go on
naming the deleted ones to its clients, and take their logs for its own.

So each broker looks whenever it has registered or the controller has changed. A topic that no
controller has named since then is forgotten if ZooKeeper does not have it either, or has it among
those to be deleted. Then the broker looks for stray replicas.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import ClusterSnapshot, MetadataCache, SnapshotChange
from klamm.errors import SessionLostError
from klamm.names import counted
from klamm.slices import aside
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Store

log = logging.getLogger("klamm.broker.metadata")

#: The controller has this long to name its topics; those are not looked up. It is also the time
#: between two attempts while there is no session.
_PAUSE_S: Final = 1.0


class MissedDeletions:
    """Forgets deleted topics that no controller has told this broker to forget."""

    def __init__(
        self,
        identity: BrokerIdentity,
        store: Store,
        metadata: MetadataCache,
        control: asyncio.Lock,
        announce: Callable[[SnapshotChange], None],
        find_strays: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`control` is held while a request of the controller is carried out.

        `announce` tells the listeners of the metadata of a change; `find_strays` comes last.
        """
        self._identity = identity
        self._store = store
        self._metadata = metadata
        self._control = control
        self._announce = announce
        self._find_strays = find_strays
        self._latest = metadata.snapshot
        self._checked: tuple[int, int] | None = None
        self._checking: asyncio.Task[None] | None = None

    def on_metadata(self, change: SnapshotChange) -> None:
        """Start a check if this is the first metadata of a registration or of a controller."""
        before, self._latest = self._latest, change.snapshot
        epochs = self._identity.broker_epoch, self._identity.controller_epoch
        if epochs != self._checked:
            self._checked = epochs
            self.close()
            self._checking = asyncio.create_task(self._check(before))

    def close(self) -> None:
        """Cancel the check that is under way."""
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None

    async def _check(self, before: ClusterSnapshot) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                async with self._control:
                    await self._forget(before)
            except SessionLostError:
                continue
            break
        del before  # its memory is not needed while strays are looked for
        if self._find_strays is not None:
            await self._find_strays()

    async def _forget(self, before: ClusterSnapshot) -> None:
        snapshot = self._metadata.snapshot
        unnamed = await aside(snapshot.shared_topics, before)
        if not unnamed:
            return
        # The other way round, a deletion that ends between the two reads would be in neither.
        queued = unnamed.intersection(await self._store.children(znodes.DELETE_TOPICS))
        gone = queued | unnamed.difference(await self._store.children(znodes.TOPICS))
        if not gone:
            return
        log.warning(
            "[Broker id=%s] forgets %s whose deletion it missed: %s",
            self._identity.broker_id,
            counted(len(gone), "topic"),
            _some(gone),
        )
        change = snapshot.without(gone)
        self._latest = change.snapshot
        self._metadata.install(change)
        self._announce(change)


def _some(topics: Iterable[str], limit: int = 10) -> str:
    names = sorted(topics)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
