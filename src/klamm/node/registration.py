"""What a broker leaves in ZooKeeper: the paths everybody needs, the cluster's id, and itself.

(ZK-1, ZK-2, ZK-8, ZK-9; LIFE-1, LIFE-2, LIFE-5..8.)
"""

import asyncio
import base64
import contextlib
import logging
import os
import time
import uuid

from klamm.config.broker import BrokerConfig
from klamm.config.endpoints import ListenerEndpoint
from klamm.errors import ConfigError, MalformedZnodeError
from klamm.net.tls import client_context
from klamm.zookeeper import znodes
from klamm.zookeeper.connection import DigestLogin
from klamm.zookeeper.session import ZooKeeperAccess
from klamm.zookeeper.store import (
    Create,
    NodeExistsError,
    NoNodeError,
    SetData,
    Stat,
    Store,
    ZooKeeperCode,
)

log = logging.getLogger("klamm.broker")

_GRACE_MS = 2000


async def create_persistent_paths(store: Store) -> None:
    """Create the missing ones of the paths that every broker needs (ZK-2)."""
    for path in znodes.PERSISTENT_PATHS:
        await store.ensure_path(path)


async def cluster_id(store: Store) -> str:
    """The cluster id; the first broker creates it (LIFE-2)."""
    path = znodes.CLUSTER_ID
    try:
        return znodes.decode_cluster_id((await store.get(path)).data)
    except NoNodeError:
        pass
    drawn = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
    await store.ensure_path(path.rpartition("/")[0])
    try:
        await store.create(path, znodes.encode_cluster_id(drawn))
    except NodeExistsError:
        return znodes.decode_cluster_id((await store.get(path)).data)
    return drawn


async def generate_broker_id(store: Store, reserved_max: int) -> int:
    """A fresh id: the data version of a node that is set for this purpose only."""
    stat = await store.set(znodes.BROKER_SEQUENCE, b"")
    return reserved_max + stat.version


async def check_endpoints(
    store: Store, broker: int, endpoints: tuple[ListenerEndpoint, ...]
) -> None:
    """Refuse to start on an address that another live broker has registered (LIFE-5)."""
    ours = {(endpoint.host, endpoint.port) for endpoint in endpoints}
    names = await store.children(znodes.BROKER_IDS)
    others = [int(name) for name in names if name.isdecimal() and int(name) != broker]
    async for chunk in store.read_many(map(znodes.broker_path, others)):
        for path, data in zip(chunk.path, chunk.data, strict=True):
            if data is None:
                continue
            try:
                other = znodes.decode_broker(int(path.rpartition("/")[2]), data)
            except MalformedZnodeError as error:
                log.error("%s", error)
                continue
            for endpoint in other.endpoints:
                if (endpoint.host, endpoint.port) in ours:
                    raise ConfigError(
                        f"advertised.listeners: {endpoint.host}:{endpoint.port} is registered "
                        f"by broker {other.broker} already; each broker needs its own"
                    )


async def register(
    store: Store,
    registration: znodes.BrokerRegistration,
    *,
    previous_session: int | None,
) -> int:
    """Create the broker's ephemeral znode and return the broker epoch.

    A node of this process's previous session is replaced. One that belongs to another session may
    be that of a crashed predecessor: it is waited for until that session must have ended.
    """
    path = znodes.broker_path(registration.broker)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (store.session_timeout_ms + _GRACE_MS) / 1000
    while True:
        result = await store.multi(
            [
                Create(path, ephemeral=True),
                SetData(path, znodes.encode_broker(registration, int(time.time() * 1000)), 0),
            ]
        )
        if result.ok:
            stat = result.results[1].stat
            assert stat is not None, "a successful set has a stat"
            return stat.czxid
        if result.code is not ZooKeeperCode.NODE_EXISTS:
            raise ConfigError(f"{path} cannot be created: {result.code.name}")
        present = await store.exists(path)
        if present is None:
            continue
        if present.ephemeral_owner == store.session_id:
            return present.czxid
        if previous_session is not None and present.ephemeral_owner == previous_session:
            await _delete_if_there(store, path, present)
            continue
        if loop.time() > deadline:
            raise ConfigError(
                f"broker.id={registration.broker} is taken: {path} belongs to the ZooKeeper "
                f"session {present.ephemeral_owner:#x}, which is alive; choose another broker.id "
                "or stop the other broker"
            )
        await asyncio.sleep(0.1)


async def _delete_if_there(store: Store, path: str, present: Stat) -> None:
    with contextlib.suppress(NoNodeError):
        await store.delete(path, present.version)


def advertised_hostname() -> str:
    """The name that an endpoint without a host is registered under."""
    import socket

    return os.environ.get("HOSTNAME") or socket.getfqdn()


def zookeeper_access(config: BrokerConfig) -> ZooKeeperAccess:
    """How the processes of this node reach ZooKeeper (SEC-12)."""
    tls = config.zookeeper_tls
    sets_acls = (config.layers.text("zookeeper.set.acl") or "").strip().lower() == "true"
    login = config.zookeeper_login
    return ZooKeeperAccess(
        None if tls is None else client_context(tls),
        None if login is None else DigestLogin(*login),
        sets_acls,
    )
