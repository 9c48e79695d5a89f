"""ACLs in a store: loaded, followed, changed, and closed where they cannot be read."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from klamm.broker.security import acl_znodes
from klamm.broker.security.acl_store import AclStore
from klamm.broker.security.authorizer import AclAuthorizer
from klamm.errors import MalformedZnodeError
from klamm.protocol.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from klamm.zookeeper.memory import MemoryZooKeeper
from klamm.zookeeper.store import Store

pytestmark = pytest.mark.rule("SEC-7")

READ = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermission.ALLOW)
WRITE = AccessControlEntry("User:alice", "*", AclOperation.WRITE, AclPermission.ALLOW)
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED)


def run(test: Callable[[Store, AclStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryZooKeeper().session()
        acls = AclStore(store, AclAuthorizer(allow_everyone_if_no_acl_found=True))
        await acls.load()
        await test(store, acls)

    asyncio.run(main())


def allows(acls: AclStore, operation: AclOperation = AclOperation.READ) -> bool:
    return acls.authorizer.allows("User:alice", "h", operation, ResourceType.TOPIC, "orders")


@pytest.mark.parametrize("pattern", [ORDERS, PREFIX])
def test_a_change_is_written_in_force_and_announced(pattern):
    async def test(store: Store, acls: AclStore) -> None:
        await acls.update(pattern, lambda held: held | {READ})
        assert acl_znodes.decode_entries(
            (await store.get(acl_znodes.acl_path(pattern))).data or b"", "p"
        ) == {READ}
        assert allows(acls)
        assert not allows(acls, AclOperation.WRITE)
        root = acl_znodes.changes_root(pattern.pattern)
        (name,) = await store.children(root)
        data = (await store.get(f"{root}/{name}")).data
        assert acl_znodes.decode_change(data or b"", f"{root}/{name}") == pattern
        await acls.update(pattern, lambda held: held | {READ})
        assert len(await store.children(root)) == 1, "nothing changed, so nothing is announced"
        await acls.update(pattern, lambda held: held - {READ})
        assert await store.exists(acl_znodes.acl_path(pattern)) is None

    run(test)


def test_another_brokers_change_is_followed():
    async def test(store: Store, acls: AclStore) -> None:
        other = AclStore(store, AclAuthorizer())
        await other.load()
        await other.update(ORDERS, lambda held: held | {WRITE})
        assert not allows(acls) or acls.authorizer.entries(ORDERS) == frozenset()
        await acls.on_changes(acl_znodes.LITERAL_CHANGES)
        assert acls.authorizer.entries(ORDERS) == {WRITE}
        await other.update(ORDERS, lambda held: held - {WRITE})
        await acls.on_changes(acl_znodes.LITERAL_CHANGES)
        assert acls.authorizer.entries(ORDERS) == frozenset()

    run(test)


def test_what_changed_without_a_session_is_seen_when_all_is_read_again():
    async def test(store: Store, acls: AclStore) -> None:
        await acls.update(ORDERS, lambda held: held | {READ})
        await store.delete(acl_znodes.acl_path(ORDERS))
        await store.create(acl_znodes.acl_path(PREFIX), acl_znodes.encode_entries([WRITE]))
        await acls.load()
        assert acls.authorizer.entries(ORDERS) == frozenset()
        assert acls.authorizer.entries(PREFIX) == {WRITE}

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b"no json",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        b'{"version":1,"acls":[{"principal":"User:a"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Maybe","operation":"Read","host":"*"}]}',
    ],
)
def test_a_znode_that_cannot_be_read_closes_its_resource_and_no_other(data):
    async def test(store: Store, acls: AclStore) -> None:
        assert allows(acls), "everyone is allowed where there is no ACL"
        await store.create(acl_znodes.acl_path(ORDERS), data)
        await acls.load()
        assert not allows(acls)
        assert acls.authorizer.allows(
            "User:alice", "h", AclOperation.READ, ResourceType.TOPIC, "other"
        )

    run(test)
    with pytest.raises(MalformedZnodeError):
        acl_znodes.decode_entries(data, "path")


def test_empty_data_is_no_acl():
    assert acl_znodes.decode_entries(b"", "path") == frozenset()
