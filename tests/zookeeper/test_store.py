"""What a store promises, on a real ZooKeeper and on the one in memory."""

import asyncio

import pytest

from klamm.errors import FencedError, SessionLostError
from klamm.zookeeper import znodes
from klamm.zookeeper.store import (
    NO_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    EventKind,
    Fence,
    NodeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SessionSuspended,
    SetData,
    WatchEvent,
    ZooKeeperCode,
)
from tests.zookeeper.conftest import ZooKeeper

CREATED, DELETED = EventKind.CREATED, EventKind.DELETED
CHANGED, CHILDREN = EventKind.CHANGED, EventKind.CHILDREN

# --- nodes ----------------------------------------------------------------------------------------


async def test_a_node_is_read_as_it_was_written(zk: ZooKeeper):
    store = (await zk.client()).store
    created = await store.create("/a", b"one")
    assert created.path == "/a"
    node = await store.get("/a")
    assert node.data == b"one"
    assert node.stat._replace(ctime=0, mtime=0) == created.stat._replace(ctime=0, mtime=0)


async def test_no_data_is_not_the_same_as_empty_data(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/none")
    await store.create("/empty", b"")
    assert (await store.get("/none")).data is None
    assert (await store.get("/empty")).data == b""


async def test_each_write_raises_the_version_and_the_transaction_of_the_last_change(zk: ZooKeeper):
    store = (await zk.client()).store
    created = (await store.create("/a")).stat
    assert created.version == 0
    assert created.czxid == created.mzxid
    first = await store.set("/a", b"1", version=0)
    second = await store.set("/a", b"2")
    assert (first.version, second.version) == (1, 2)
    assert created.mzxid < first.mzxid < second.mzxid
    assert created.czxid == first.czxid == second.czxid


async def test_a_node_that_is_created_again_has_a_larger_czxid(zk: ZooKeeper):
    store = (await zk.client()).store
    before = (await store.create("/a")).stat
    await store.delete("/a")
    after = (await store.create("/a")).stat
    assert after.czxid > before.czxid
    assert after.version == 0


async def test_children_are_counted_and_listed(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/a")
    for name in ("x", "y", "z"):
        await store.create(f"/a/{name}")
    await store.delete("/a/y")
    assert sorted(await store.children("/a")) == ["x", "z"]
    stat = (await store.get("/a")).stat
    assert (stat.children_count, stat.children_version) == (2, 4)
    assert stat.version == 0


async def test_refusals_are_exceptions_that_name_the_node(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/a", b"")
    await store.create("/a/b", b"")
    with pytest.raises(NodeExistsError, match="/a: NODE_EXISTS"):
        await store.create("/a", b"")
    with pytest.raises(NoNodeError, match="/x/y: NO_NODE"):
        await store.create("/x/y", b"")
    with pytest.raises(NoNodeError, match="/x"):
        await store.get("/x")
    with pytest.raises(NoNodeError):
        await store.children("/x")
    with pytest.raises(NoNodeError):
        await store.set("/x", b"")
    with pytest.raises(NoNodeError):
        await store.delete("/x")
    with pytest.raises(BadVersionError):
        await store.set("/a", b"", version=1)
    with pytest.raises(BadVersionError):
        await store.delete("/a/b", version=1)
    with pytest.raises(NotEmptyError):
        await store.delete("/a")
    assert await store.exists("/x") is None


async def test_ensure_path_creates_what_is_missing_and_nothing_else(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/a", b"kept")
    await store.ensure_path("/a/b/c")
    await store.ensure_path("/a/b/c")
    assert (await store.get("/a")).data == b"kept"
    assert (await store.get("/a/b/c")).data is None


@pytest.mark.rule("ZK-2", "ZK-3")
async def test_the_persistent_nodes_of_a_broker_can_be_made_by_all_brokers_at_once(zk: ZooKeeper):
    stores = [(await zk.client()).store for _ in range(3)]
    await asyncio.gather(
        *(store.ensure_path(path) for store in stores for path in znodes.PERSISTENT_PATHS)
    )
    for path in (*znodes.PERSISTENT_PATHS, "/admin"):
        node = await stores[0].get(path)
        assert node.data is None
        assert node.stat.ephemeral_owner == 0


async def test_sequential_nodes_are_numbered_in_order_of_creation(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/s")
    first = await store.create("/s/n_", sequential=True)
    await store.delete(first.path)
    second = await store.create("/s/n_", sequential=True)
    assert (first.path, second.path) == ("/s/n_0000000000", "/s/n_0000000001")
    assert znodes.sequence_number(second.path) == 1


@pytest.mark.rule("ZK-1")
async def test_a_chroot_is_created_and_hides_the_rest(zk: ZooKeeper):
    outside = (await zk.client()).store
    inside = await zk.client("/deep/chroot")
    store = inside.store
    assert (await store.create("/a", b"1")).path == "/a"
    assert (await outside.get("/deep/chroot/a")).data == b"1"
    assert await store.children("/", watch=True) == ["a"]
    await store.exists("/b", watch=True)
    result = await store.multi([Create("/b"), Create("/c-", sequential=True)])
    assert [r.path for r in result.results] == ["/b", "/c-0000000002"]
    events = [await inside.event(), await inside.event()]
    assert events == [WatchEvent(CREATED, "/b"), WatchEvent(CHILDREN, "/")]


# --- ephemeral nodes ------------------------------------------------------------------------------


async def test_an_ephemeral_node_names_its_session_and_goes_with_it(zk: ZooKeeper):
    one, two = await zk.client(), await zk.client()
    created = await one.store.create("/e", b"", ephemeral=True)
    assert created.stat.ephemeral_owner == one.store.session_id
    await two.store.get("/e", watch=True)
    await one.store.close()
    assert await two.event() == WatchEvent(DELETED, "/e")
    assert await two.store.exists("/e") is None


async def test_an_ephemeral_node_has_no_children(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/e", ephemeral=True)
    with pytest.raises(NodeError) as refused:
        await store.create("/e/child")
    assert refused.value.code is ZooKeeperCode.NO_CHILDREN_FOR_EPHEMERALS


@pytest.mark.rule("ZK-8")
async def test_a_broker_registers_by_a_create_and_a_set_whose_stat_has_the_epoch(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.ensure_path("/brokers/ids")
    path = znodes.broker_path(1)
    result = await store.multi([Create(path, ephemeral=True), SetData(path, b"{}", 0)])
    assert result.ok
    stat = result.results[1].stat
    assert stat is not None
    assert stat.version == 1
    assert stat.ephemeral_owner == store.session_id
    assert stat.czxid == stat.mzxid
    assert (await store.get(path)).stat.czxid == stat.czxid


# --- transactions ---------------------------------------------------------------------------------


async def test_a_transaction_happens_as_a_whole(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/old", b"")
    ops = [Create("/a", b"1"), SetData("/a", b"2", 0), Delete("/old"), Check("/a", 1)]
    result = await store.multi(ops)
    assert result.ok
    assert result.code is ZooKeeperCode.OK
    assert [r.code for r in result.results] == [ZooKeeperCode.OK] * 4
    assert result.results[0].path == "/a"
    node = await store.get("/a")
    assert (node.data, node.stat.version) == (b"2", 1)
    assert node.stat.czxid == node.stat.mzxid
    assert await store.exists("/old") is None


async def test_a_failed_transaction_leaves_no_trace_and_names_the_culprit(zk: ZooKeeper):
    client = await zk.client()
    store = client.store
    await store.create("/a", b"1")
    await store.create("/a/b")
    before = (await store.get("/a", watch=True)).stat
    await store.children("/a", watch=True)
    ops = [
        SetData("/a", b"2"),
        Create("/a/c"),
        Delete("/a/b"),
        SetData("/a", b"3", 7),
        Delete("/a"),
    ]
    result = await store.multi(ops)
    assert not result.ok
    assert result.failed == 3
    assert result.code is ZooKeeperCode.BAD_VERSION
    assert [r.code for r in result.results] == [
        ZooKeeperCode.OK,
        ZooKeeperCode.OK,
        ZooKeeperCode.OK,
        ZooKeeperCode.BAD_VERSION,
        ZooKeeperCode.RUNTIME_INCONSISTENCY,
    ]
    assert await store.get("/a") == (b"1", before)
    assert await store.children("/a") == ["b"]
    await client.no_more_events()


@pytest.mark.rule("ELEC-4", "ELEC-5", "VER-8", "ZK-7", "VER-45")
async def test_only_one_of_two_candidates_takes_the_controller_role(zk: ZooKeeper):
    one, two = (await zk.client()).store, (await zk.client()).store
    epoch_zero = znodes.encode_controller_epoch(0)
    assert (await one.create(znodes.CONTROLLER_EPOCH, epoch_zero)).stat.version == 0

    def election(broker: int) -> list[Create | SetData]:
        return [
            Create(znodes.CONTROLLER, znodes.encode_controller(broker, 0), ephemeral=True),
            SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(1), 0),
        ]

    won = await one.multi(election(1))
    stat = won.results[1].stat
    assert stat is not None
    assert stat.version == 1
    lost = await two.multi(election(2))
    assert (lost.code, lost.failed) == (ZooKeeperCode.NODE_EXISTS, 0)
    # The epoch alone would have stopped the second, too.
    await one.delete(znodes.CONTROLLER)
    late = await two.multi(election(2))
    assert (late.code, late.failed) == (ZooKeeperCode.BAD_VERSION, 1)
    assert await two.exists(znodes.CONTROLLER) is None


@pytest.mark.rule("FENCE-2", "FENCE-3", "FENCE-5", "FENCE-15", "FENCE-7")
async def test_a_lost_check_can_be_told_from_a_lost_write(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create(znodes.CONTROLLER_EPOCH, b"0")
    await store.create("/state", b"")
    conflict = await store.multi([Check(znodes.CONTROLLER_EPOCH, 0), SetData("/state", b"x", 9)])
    assert [r.code for r in conflict.results] == [ZooKeeperCode.OK, ZooKeeperCode.BAD_VERSION]
    await store.set(znodes.CONTROLLER_EPOCH, b"1")
    fenced = await store.multi([Check(znodes.CONTROLLER_EPOCH, 0), SetData("/state", b"x", 0)])
    assert [r.code for r in fenced.results] == [
        ZooKeeperCode.BAD_VERSION,
        ZooKeeperCode.RUNTIME_INCONSISTENCY,
    ]


# --- watches --------------------------------------------------------------------------------------


@pytest.mark.rule("ZK-24")
async def test_a_watch_is_armed_by_a_read_and_fires_once(zk: ZooKeeper):
    client = await zk.client()
    store = client.store
    await store.create("/a", b"0")
    await store.set("/a", b"1")
    await store.get("/a", watch=True)
    await store.set("/a", b"2")
    await store.set("/a", b"3")
    assert await client.event() == WatchEvent(CHANGED, "/a")
    await client.no_more_events()


async def test_two_reads_of_a_node_arm_one_watch(zk: ZooKeeper):
    client = await zk.client()
    await client.store.create("/a")
    await client.store.get("/a", watch=True)
    await client.store.exists("/a", watch=True)
    await client.store.set("/a", b"1")
    assert await client.event() == WatchEvent(CHANGED, "/a")
    await client.no_more_events()


async def test_a_missing_node_is_watched_for_with_exists_but_not_with_get(zk: ZooKeeper):
    client = await zk.client()
    assert await client.store.exists("/a", watch=True) is None
    with pytest.raises(NoNodeError):
        await client.store.get("/b", watch=True)
    await client.store.create("/b")
    await client.store.create("/a")
    assert await client.event() == WatchEvent(CREATED, "/a")
    await client.no_more_events()


async def test_a_child_watch_sees_children_come_and_go_but_not_their_data(zk: ZooKeeper):
    client = await zk.client()
    store = client.store
    await store.create("/p", b"")
    await store.children("/p", watch=True)
    await store.set("/p", b"1")
    await store.create("/p/c", b"")
    assert await client.event() == WatchEvent(CHILDREN, "/p")
    await store.children("/p", watch=True)
    await store.set("/p/c", b"1")
    await store.delete("/p/c")
    assert await client.event() == WatchEvent(CHILDREN, "/p")
    await client.no_more_events()


async def test_the_deletion_of_a_node_fires_all_its_watches_with_one_event(zk: ZooKeeper):
    client = await zk.client()
    store = client.store
    await store.create("/p", b"")
    await store.create("/p/c", b"")
    await store.children("/p", watch=True)
    await store.get("/p/c", watch=True)
    await store.children("/p/c", watch=True)
    await store.delete("/p/c")
    assert await client.event() == WatchEvent(DELETED, "/p/c")
    assert await client.event() == WatchEvent(CHILDREN, "/p")
    await client.no_more_events()


async def test_events_arrive_in_the_order_of_the_changes(zk: ZooKeeper):
    watcher, writer = await zk.client(), await zk.client()
    paths = [f"/n{i}" for i in range(50)]
    for path in paths:
        await writer.store.create(path)
        await watcher.store.get(path, watch=True)
    for path in reversed(paths):
        await writer.store.set(path, b"x")
    seen = [await watcher.event() for _ in paths]
    assert seen == [WatchEvent(CHANGED, path) for path in reversed(paths)]


async def test_who_sees_the_new_data_has_been_told_of_the_change_before(zk: ZooKeeper):
    watcher, writer = await zk.client(), await zk.client()
    await writer.store.create("/a", b"old")
    told: list[object] = []
    consumer = asyncio.create_task(_collect(watcher.event, told))
    for _ in range(20):
        await watcher.store.get("/a", watch=True)
        told.clear()
        change = asyncio.create_task(writer.store.set("/a", b"new"))
        while (await watcher.store.get("/a")).data == b"old":
            pass
        assert told == [WatchEvent(CHANGED, "/a")]
        await change
        await writer.store.set("/a", b"old")
    consumer.cancel()


async def _collect(next_event, told: list[object]):
    while True:
        told.append(await next_event())


# --- bulk reads and watches -----------------------------------------------------------------------


async def test_bulk_reads_keep_the_order_and_mark_what_is_missing(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/n")
    paths = [f"/n/{i}" for i in range(2500)]
    # Data of very different sizes, so that chunks are of different sizes as well.
    await store.write_many([Create(path, b"x" * (i % 97))] for i, path in enumerate(paths) if i % 5)
    await store.set("/n/7", b"changed")
    await store.create("/n/null")
    seen: dict[str, tuple[bytes | None, int]] = {}
    async for chunk in store.read_many(iter([*paths, "/n/null"])):
        assert chunk.zxid > 0
        seen |= zip(chunk.path, zip(chunk.data, chunk.version, strict=True), strict=True)
    assert list(seen) == [*paths, "/n/null"]
    expected = {p: (b"x" * (i % 97), 0) if i % 5 else (None, -1) for i, p in enumerate(paths)}
    assert seen == expected | {"/n/7": (b"changed", 1), "/n/null": (None, 0)}


async def test_paths_are_drawn_on_only_as_chunks_are_consumed(zk: ZooKeeper):
    store = (await zk.client()).store
    drawn = 0

    def paths():
        nonlocal drawn
        for i in range(100_000):
            drawn += 1
            yield f"/missing/{i}"

    async for chunk in store.read_many(paths()):
        assert chunk.version[0] == NO_VERSION
        break
    assert drawn < 20_000


async def test_bulk_reads_of_nothing_are_nothing(zk: ZooKeeper):
    store = (await zk.client()).store
    assert [chunk async for chunk in store.read_many([])] == []
    assert await store.write_many([]) == []


async def test_children_of_many_nodes_are_listed_in_bulk(zk: ZooKeeper):
    store = (await zk.client()).store
    await store.create("/a")
    await store.write_many(
        [Create(f"/a/{i}"), Create(f"/a/{i}/x"), Create(f"/a/{i}/y")] for i in range(300)
    )
    paths = [*(f"/a/{i}" for i in range(300)), "/a/0/x", "/missing"]
    found: list[list[str] | None] = []
    async for chunk in store.children_many(paths):
        found += [names and sorted(names) for names in chunk.children]
    assert found == [["x", "y"]] * 300 + [[], None]


async def test_many_watches_are_armed_at_once_after_a_bulk_read(zk: ZooKeeper):
    client, writer = await zk.client(), (await zk.client()).store
    store = client.store
    await store.create("/n")
    paths = [f"/n/{i}" for i in range(1000)]
    await store.write_many([Create(path, b"")] for path in paths)
    chunks = [chunk async for chunk in store.read_many(paths)]
    # Between the reading and the arming, one changes and one goes.
    await writer.set("/n/3", b"x")
    await writer.delete("/n/4")
    await asyncio.gather(*(store.watch_data(chunk.path, chunk.zxid) for chunk in chunks))
    assert await client.event() == WatchEvent(CHANGED, "/n/3")
    assert await client.event() == WatchEvent(DELETED, "/n/4")
    await client.no_more_events()
    await writer.set("/n/3", b"y")
    await writer.set("/n/999", b"y")
    await writer.delete("/n/5")
    assert await client.event() == WatchEvent(CHANGED, "/n/999")
    assert await client.event() == WatchEvent(DELETED, "/n/5")
    await client.no_more_events()


async def test_more_watches_than_fit_into_a_request_are_armed(zk: ZooKeeper):
    client = await zk.client()
    store = client.store
    await store.create("/n")
    paths = [f"/n/{'x' * 200}-{i}" for i in range(6000)]
    await store.write_many([Create(path)] for path in paths)
    zxid = (await store.get("/n")).stat.pzxid
    await store.watch_data(paths, zxid)
    for path in (paths[0], paths[-1]):
        await store.set(path, b"x")
        assert await client.event() == WatchEvent(CHANGED, path)


# --- the session ----------------------------------------------------------------------------------


@pytest.mark.rule("ZK-23")
async def test_requests_wait_for_the_connection_to_come_back(zk: ZooKeeper):
    client = await zk.client()
    await client.store.create("/a", b"1")
    await zk.disconnect(client)
    assert await client.event() == SessionSuspended()
    reads = [asyncio.create_task(client.store.get("/a")) for _ in range(3)]
    write = asyncio.create_task(client.store.set("/a", b"2"))
    await asyncio.sleep(0)
    assert not any(task.done() for task in (*reads, write))
    await zk.reconnect(client)
    assert await client.event() == SessionResumed()
    assert [node.data for node in await asyncio.gather(*reads)] == [b"1"] * 3
    assert (await write).version == 1


async def test_watches_survive_a_reconnection_and_report_what_was_missed(zk: ZooKeeper):
    client, other = await zk.client(), (await zk.client()).store
    store = client.store
    for path in ("/changed", "/deleted", "/later", "/parent", "/quiet", "/gone"):
        await store.create(path, b"")
    for path in ("/changed", "/deleted", "/later"):
        await store.get(path, watch=True)
    for path in ("/created", "/created-later"):
        await store.exists(path, watch=True)
    for path in ("/parent", "/quiet", "/gone"):
        await store.children(path, watch=True)
    await zk.disconnect(client)
    assert await client.event() == SessionSuspended()
    await other.set("/changed", b"1")
    await other.delete("/deleted")
    await other.create("/created")
    await other.create("/parent/child")
    await other.delete("/gone")
    await zk.reconnect(client)
    assert await client.event() == SessionResumed()
    missed = {await client.event() for _ in range(5)}
    assert missed == {
        WatchEvent(CHANGED, "/changed"),
        WatchEvent(DELETED, "/deleted"),
        WatchEvent(CREATED, "/created"),
        WatchEvent(CHILDREN, "/parent"),
        WatchEvent(DELETED, "/gone"),
    }
    await client.no_more_events()
    await other.set("/later", b"1")
    await other.create("/created-later")
    await other.create("/quiet/child")
    assert [await client.event() for _ in range(3)] == [
        WatchEvent(CHANGED, "/later"),
        WatchEvent(CREATED, "/created-later"),
        WatchEvent(CHILDREN, "/quiet"),
    ]


async def test_watches_survive_several_reconnections(zk: ZooKeeper):
    client, other = await zk.client(), (await zk.client()).store
    await client.store.create("/a", b"")
    await client.store.get("/a", watch=True)
    for _ in range(3):
        await zk.disconnect(client)
        assert await client.event() == SessionSuspended()
        await zk.reconnect(client)
        assert await client.event() == SessionResumed()
    await other.set("/a", b"1")
    assert await client.event() == WatchEvent(CHANGED, "/a")
    await client.no_more_events()


@pytest.mark.rule("ELEC-15", "ELEC-17")
async def test_no_new_session_is_opened_before_the_loss_was_acknowledged(zk: ZooKeeper):
    client, other = await zk.client(), await zk.client()
    store = client.store
    lost = store.session_id
    before = await store.create("/e", b"", ephemeral=True)
    await store.get("/e", watch=True)
    await other.store.get("/e", watch=True)
    await zk.expire(client)
    assert await other.event() == WatchEvent(DELETED, "/e")
    assert await client.event() == SessionSuspended()
    assert await client.event() == SessionExpired(lost)
    with pytest.raises(SessionLostError):
        await store.get("/e")
    with pytest.raises(SessionLostError):
        await store.write_many([[Create("/x")]])
    assert store.session_id == lost

    await store.renew()
    assert store.session_id != lost
    assert await client.event() == SessionStarted(store.session_id)
    after = await store.create("/e", b"", ephemeral=True)
    assert after.stat.czxid > before.stat.czxid
    assert after.stat.ephemeral_owner == store.session_id
    # The watches of the old session went with it.
    await store.set("/e", b"1")
    await client.no_more_events()


async def test_what_waits_for_a_response_fails_when_the_session_is_lost(zk: ZooKeeper):
    client = await zk.client()
    await zk.disconnect(client)
    assert await client.event() == SessionSuspended()
    waiting = asyncio.create_task(client.store.get("/a"))
    await asyncio.sleep(0)
    await zk.expire(client)
    await zk.reconnect(client)
    with pytest.raises(SessionLostError):
        await waiting
    assert await client.event() == SessionExpired(client.store.session_id)


async def test_a_living_session_can_be_given_up_for_a_new_one(zk: ZooKeeper):
    client, other = await zk.client(), await zk.client()
    await client.store.create("/e", ephemeral=True)
    await other.store.get("/e", watch=True)
    old = client.store.session_id
    await client.store.renew()
    assert await other.event() == WatchEvent(DELETED, "/e")
    assert client.store.session_id != old
    assert await client.event() == SessionStarted(client.store.session_id)


async def test_requests_of_a_session_that_is_given_up_fail_although_there_is_a_new_one(
    zk: ZooKeeper,
):
    store, other = (await zk.client()).store, (await zk.client()).store
    under_way = asyncio.create_task(store.create("/e", ephemeral=True))
    renewal = asyncio.create_task(store.renew())
    await asyncio.sleep(0)
    with pytest.raises(SessionLostError):
        await store.create("/f", ephemeral=True)
    with pytest.raises(SessionLostError):
        await under_way
    await renewal
    assert await other.exists("/e") is None
    assert await other.exists("/f") is None


async def test_a_closed_store_ends_its_events_and_refuses_requests(zk: ZooKeeper):
    client = await zk.client()
    await client.store.close()
    await client.events_end()
    with pytest.raises(SessionLostError):
        await client.store.get("/")


async def test_a_fenced_write_by_a_controller_that_was_replaced_while_cut_off_fails(zk: ZooKeeper):
    old, new = await zk.client(), (await zk.client()).store
    await new.create(znodes.CONTROLLER_EPOCH, b"1")
    await new.create("/state", b"")
    await zk.disconnect(old)
    assert await old.event() == SessionSuspended()
    write = asyncio.create_task(old.store.write_many([[SetData("/state", b"old")]], Fence(0)))
    await new.set(znodes.CONTROLLER_EPOCH, b"2")
    await zk.reconnect(old)
    with pytest.raises(FencedError):
        await write
    assert (await new.get("/state")).data == b""
