"""What only a real connection can show: addresses, time, threads, lost replies."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop
from kazoo.client import KazooClient

from klamm.errors import ConfigError, LocalProtocolError, SessionLostError, UnavailableError
from klamm.zookeeper.memory import MemoryZooKeeper
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import open_store, split_connect_string
from klamm.zookeeper.store import (
    Create,
    EventKind,
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SessionSuspended,
    SetData,
    Store,
    StoreEvent,
    WatchEvent,
)
from tests.support.ports import free_port
from tests.zookeeper.conftest import RealZooKeeper
from tests.zookeeper.proxy import Proxy

pytestmark = pytest.mark.real


@pytest.fixture
def real(zookeeper_server: ZooKeeperServer, runner: asyncio.Runner) -> Iterator[RealZooKeeper]:
    zookeeper = RealZooKeeper(zookeeper_server)
    yield zookeeper
    runner.run(zookeeper.close())


@pytest.mark.rule("ZK-1")
@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("h:2181", "h:2181", ""),
        ("h:2181/", "h:2181", ""),
        ("h:2181,i:2182/kafka/one/", "h:2181,i:2182", "/kafka/one"),
    ],
)
def test_a_connect_string_is_hosts_and_chroot(connect: str, hosts: str, chroot: str):
    assert split_connect_string(connect) == (hosts, chroot)


def test_a_server_that_lets_a_connection_hang_is_asked_again_long_before_the_session_timeout(
    zookeeper_server: ZooKeeperServer, runner: asyncio.Runner
):
    async def connect() -> None:
        proxy = Proxy(zookeeper_server.host, zookeeper_server.port)
        await proxy.start()
        proxy.swallow_replies = True
        opening = asyncio.create_task(open_store(proxy.address, 60_000, connect_timeout_s=20))
        await proxy.swallowed.wait()
        proxy.swallow_replies = False
        await (await opening).close()
        await proxy.close()

    runner.run(connect())


@pytest.mark.parametrize("connect", ["", "/chroot", "h:2181,,i:2181", "h:2181//x"])
def test_a_connect_string_that_makes_no_sense_is_refused(connect: str):
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        split_connect_string(connect)


async def test_nobody_at_the_address_is_an_error_that_names_it():
    address = f"127.0.0.1:{free_port()}"
    before = set(threading.enumerate())
    with pytest.raises(UnavailableError, match=address):
        await open_store(address, connect_timeout_s=0.2)
    assert not [t for t in set(threading.enumerate()) - before if "zk_loop" in t.name]


async def test_a_host_that_is_down_is_passed_over(zookeeper_server: ZooKeeperServer):
    down = f"127.0.0.1:{free_port()}"
    store = await open_store(f"{down},{zookeeper_server.address},{down}", connect_timeout_s=20)
    assert "zookeeper" in await store.children("/")
    await store.close()


def test_it_runs_on_uvloop(zookeeper_server: ZooKeeperServer):
    async def scenario() -> None:
        store = await open_store(f"{zookeeper_server.address}/uvloop")
        await store.write_many([Create(f"/n{i}", b"x")] for i in range(500))
        chunks = [chunk async for chunk in store.read_many(f"/n{i}" for i in range(500))]
        assert sum(len(chunk.path) for chunk in chunks) == 500
        await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_a_session_takes_one_thread_and_gives_it_back(zookeeper_server: ZooKeeperServer):
    before = set(threading.enumerate())
    store = await open_store(zookeeper_server.address)
    assert len(set(threading.enumerate()) - before) == 1
    await store.close()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if "asyncio" not in thread.name]


@pytest.mark.rule("ZK-23")
async def test_no_more_requests_are_pending_than_allowed(zookeeper_server: ZooKeeperServer):
    store = await open_store(zookeeper_server.address, max_in_flight=2)
    pending = store._connection._pending
    reads = [asyncio.create_task(store.exists("/")) for _ in range(20)]
    while not all(read.done() for read in reads):
        assert len(pending) <= 2
        await asyncio.sleep(0)
    await store.close()


async def test_a_session_that_is_cut_off_for_too_long_expires(zookeeper_server: ZooKeeperServer):
    proxy = Proxy(zookeeper_server.host, zookeeper_server.port)
    await proxy.start()
    store = await open_store(f"{proxy.address}/expiry", session_timeout_ms=1000)
    other = await open_store(f"{zookeeper_server.address}/expiry")
    events, other_events = store.events(), other.events()
    session_id = store.session_id
    await store.create("/e", ephemeral=True)
    await other.get("/e", watch=True)
    assert isinstance(await anext(other_events), SessionStarted)
    proxy.cut()
    async with asyncio.timeout(20):
        assert await anext(other_events) == WatchEvent(EventKind.DELETED, "/e")
        proxy.restore()
        seen = [await anext(events) for _ in range(3)]
    assert seen == [SessionStarted(session_id), SessionSuspended(), SessionExpired(session_id)]
    # A session that closes instead of renewing is not held up.
    await store.close()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    await other.close()
    await proxy.close()


@pytest.mark.rule("ZK-23", "PSM-20")
async def test_a_write_whose_reply_was_lost_is_sent_again_and_may_meet_itself(real: RealZooKeeper):
    client, other = await real.client(), (await real.client()).store
    store = client.store
    await store.create("/a", b"0")
    proxy = real._clients[client]
    proxy.swallow_replies = True
    write = asyncio.create_task(store.write_many([[SetData("/a", b"1", 0)]]))
    async with asyncio.timeout(20):
        while (await other.get("/a")).stat.version == 0:
            pass
    proxy.cut()
    assert await client.event() == SessionSuspended()
    proxy.swallow_replies = False
    proxy.restore()
    assert await client.event() == SessionResumed()
    # It was carried out, but what answers is the second attempt.
    (outcome,) = await write
    assert outcome.code.name == "BAD_VERSION"
    assert (await store.get("/a")).data == b"1"


async def test_bulk_reads_go_on_after_a_reconnection(real: RealZooKeeper):
    client = await real.client()
    store = client.store
    await store.create("/n")
    await store.write_many([Create(f"/n/{i}", b"x" * 500)] for i in range(5000))
    seen = 0
    async for chunk in store.read_many(f"/n/{i}" for i in range(5000)):
        if seen == 0:
            await real.disconnect(client)
            assert await client.event() == SessionSuspended()
            await real.reconnect(client)
        assert chunk.path == [f"/n/{i}" for i in range(seen, seen + len(chunk.path))]
        assert set(chunk.version) == {0}
        seen += len(chunk.path)
    assert seen == 5000


async def test_the_loss_of_a_session_in_the_middle_of_bulk_work_is_reported_once(
    real: RealZooKeeper,
):
    client = await real.client()
    store = client.store
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await real.disconnect(client)
    assert await client.event() == SessionSuspended()
    write = asyncio.create_task(store.write_many([Create(f"/n{i}")] for i in range(5000)))
    read = asyncio.create_task(anext(store.read_many(f"/n{i}" for i in range(5000))))
    await asyncio.sleep(0)
    await real.expire(client)
    await real.reconnect(client)
    for work in (write, read):
        with pytest.raises(SessionLostError):
            await work
    del write, read, work
    gc.collect()
    assert complaints == []


async def test_a_request_in_the_queue_fails_when_the_store_is_closed(real: RealZooKeeper):
    client = await real.client()
    await real.disconnect(client)
    assert await client.event() == SessionSuspended()
    waiting = asyncio.create_task(client.store.get("/a"))
    await asyncio.sleep(0)
    await client.store.close()
    with pytest.raises(SessionLostError):
        await waiting


async def test_a_node_larger_than_the_server_takes_is_refused_before_it_is_sent(
    real: RealZooKeeper,
):
    store = (await real.client()).store
    with pytest.raises(LocalProtocolError, match="/big"):
        await store.create("/big", bytes(1 << 20))
    # The connection is as good as before.
    await store.create("/big", bytes(1_000_000))


async def test_both_stores_fit_the_protocol(real: RealZooKeeper):
    client = await real.client()
    stores: list[Store] = [client.store, MemoryZooKeeper().session(session_timeout_ms=10_000)]
    assert {store.session_timeout_ms for store in stores} == {10_000}


async def test_the_session_of_an_event_loop_that_hangs_is_let_go(zookeeper_server):
    """kazoo's thread would keep it alive for good, and nobody could take over."""
    connect = f"{zookeeper_server.address}/hangs"
    store = await open_store(connect, session_timeout_ms=2000)
    await store.create("/hanging", ephemeral=True)
    witness = KazooClient(hosts=connect)
    await asyncio.to_thread(witness.start)
    gone = threading.Event()

    def watch(event: object) -> None:
        if not witness.exists("/hanging", watch):
            gone.set()

    await asyncio.to_thread(watch, None)
    assert not gone.is_set()
    assert gone.wait(30), "the loop hangs here, and its session goes on"
    events = store.events()
    assert isinstance(await anext(events), SessionStarted)
    assert any([isinstance(event, SessionExpired) async for event in _until_expired(events)])
    await asyncio.to_thread(witness.stop)
    witness.close()
    await store.close()


async def _until_expired(events: AsyncIterator[StoreEvent]) -> AsyncIterator[StoreEvent]:
    async for event in events:
        yield event
        if isinstance(event, SessionExpired):
            return
