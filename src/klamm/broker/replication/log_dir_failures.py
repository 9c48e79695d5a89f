"""What a broker does when one of its log directories fails (REC-7, LOGDIR-1)."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

from klamm.broker.identity import BrokerIdentity
from klamm.broker.replication.manager import ReplicaManager
from klamm.errors import SessionLostError
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Store

log = logging.getLogger("klamm.broker")

_RETRY_PAUSE_S: Final = 0.1


class LogDirFailureHandler:
    """Takes the replicas of a failed directory offline, and notifies the controller."""

    def __init__(self, identity: BrokerIdentity, replicas: ReplicaManager, store: Store) -> None:
        self._identity = identity
        self._replicas = replicas
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._notifications: set[asyncio.Task[None]] = set()

    def on_failure(self, path: Path) -> None:
        """Handle a failure soon, on the event loop; may be called on any thread."""
        self._loop.call_soon_threadsafe(self._handle, path)

    def _handle(self, path: Path) -> None:
        self._replicas.directory_failed(path)
        if not self._replicas.logs.has_online_directory:
            log.critical("all log directories have failed; this broker can do nothing more")
            os._exit(1)
        if self._identity.broker_epoch < 0:
            return  # The response to the first LeaderAndIsr will report the offline replicas.
        task = asyncio.create_task(self._notify_controller())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def _notify_controller(self) -> None:
        """Create a log directory event in ZooKeeper, trying until there is a session."""
        data = znodes.encode_log_dir_event(znodes.LogDirEvent(self._identity.broker_id))
        while True:
            try:
                await self._store.create(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True)
            except SessionLostError:
                await asyncio.sleep(_RETRY_PAUSE_S)
            else:
                return
