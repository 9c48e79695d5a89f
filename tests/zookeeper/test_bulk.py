"""Bulk writes and deletions: packing, fencing, losers, order."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import FencedError
from klamm.zookeeper import bulk
from klamm.zookeeper.memory import MemoryZooKeeper
from klamm.zookeeper.store import (
    NO_VERSION,
    Check,
    Create,
    Delete,
    Fence,
    Op,
    Row,
    RowOutcome,
    SetData,
    Store,
    ZooKeeperCode,
)
from klamm.zookeeper.znodes import CONTROLLER_EPOCH
from tests.zookeeper.conftest import ZooKeeper

FENCE = Fence(0)


async def controller(zk: ZooKeeper) -> Store:
    store = (await zk.client()).store
    await store.create(CONTROLLER_EPOCH, b"0")
    return store


class Ledger:
    """Carries transactions out on a store in memory, and remembers them."""

    def __init__(self) -> None:
        self.store = MemoryZooKeeper().session()
        self.transactions: list[list[Op]] = []
        self.under_way = 0
        self.under_way_max = 0

    async def transact(self, ops: Sequence[Op]) -> bulk.WrittenBatch:
        self.transactions.append(list(ops))
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        result = await self.store.multi(ops)
        self.under_way -= 1
        return bulk.WrittenBatch.of(result)

    async def write(self, rows: Sequence[Row], fence: Fence | None = None) -> list[RowOutcome]:
        return await bulk.write_rows(rows, fence, self.transact)


# --- on both stores -------------------------------------------------------------------------------


@pytest.mark.rule("FENCE-1", "FENCE-3")
async def test_rows_are_written_behind_the_fence_and_report_their_versions(zk: ZooKeeper):
    store = await controller(zk)
    rows = [[Create(f"/a{i}"), Create(f"/a{i}/state", b"%d" % i)] for i in range(2500)]
    outcomes = await store.write_many(rows, FENCE)
    assert outcomes == [RowOutcome(ZooKeeperCode.OK, version=0)] * 2500
    sets = [[SetData(f"/a{i}/state", b"new", 0)] for i in range(2500)]
    assert await store.write_many(sets, FENCE) == [RowOutcome(ZooKeeperCode.OK, version=1)] * 2500
    assert await store.write_many([[Delete("/a0/state")]]) == [
        RowOutcome(ZooKeeperCode.OK, NO_VERSION)
    ]
    assert await store.write_many([[SetData("/a1/state", b"")]]) == [
        RowOutcome(ZooKeeperCode.OK, version=2)
    ]


@pytest.mark.rule("FENCE-4")
async def test_a_lost_fence_stops_everything(zk: ZooKeeper):
    store = await controller(zk)
    await store.set(CONTROLLER_EPOCH, b"1")
    drawn = 0

    def rows():
        nonlocal drawn
        for i in range(100_000):
            drawn += 1
            yield [Create(f"/a{i}")]

    with pytest.raises(FencedError, match="/controller_epoch is no longer at version 0"):
        await store.write_many(rows(), FENCE)
    assert drawn < 10_000
    assert await store.children("/") == ["controller_epoch"]


async def test_a_missing_epoch_fences_as_well(zk: ZooKeeper):
    store = (await zk.client()).store
    with pytest.raises(FencedError):
        await store.write_many([[Create("/a")]], FENCE)


@pytest.mark.rule("FENCE-5")
async def test_losers_come_back_as_values_and_hold_up_nobody(zk: ZooKeeper):
    store = await controller(zk)
    await store.create("/taken", b"kept")
    await store.create("/taken/child")
    rows: list[Row] = [[Create(f"/n{i}")] for i in range(1500)]
    rows[3] = [Create("/x"), Create("/taken")]
    rows[700] = [SetData("/taken", b"lost", 5)]
    rows[1200] = [Delete("/taken")]
    rows[1499] = [SetData("/missing", b"")]
    outcomes = await store.write_many(rows, FENCE)
    lost = {i: outcome for i, outcome in enumerate(outcomes) if not outcome.ok}
    assert lost == {
        3: RowOutcome(ZooKeeperCode.NODE_EXISTS, failed=1),
        700: RowOutcome(ZooKeeperCode.BAD_VERSION, failed=0),
        1200: RowOutcome(ZooKeeperCode.NOT_EMPTY, failed=0),
        1499: RowOutcome(ZooKeeperCode.NO_NODE, failed=0),
    }
    # A row that lost left nothing behind, not even what came before the loss.
    assert await store.exists("/x") is None
    assert (await store.get("/taken")).data == b"kept"
    assert len(await store.children("/")) == 2 + 1500 - 4


async def test_thousands_of_losers_cost_little(zk: ZooKeeper):
    store = await controller(zk)
    await store.create("/n")
    await store.write_many([Create(f"/n/{i}")] for i in range(0, 2000, 2))
    outcomes = await store.write_many(([Create(f"/n/{i}")] for i in range(2000)), FENCE)
    assert [outcome.ok for outcome in outcomes] == [False, True] * 1000


@pytest.mark.rule("PSM-12", "ZK-28")
async def test_operations_that_may_fail_do_not_cost_their_row(zk: ZooKeeper):
    store = await controller(zk)
    await store.create("/t")
    await store.create("/t/1", b"kept")
    rows: list[Row] = [
        [Create("/t", exist_ok=True), Create(f"/t/{i}", exist_ok=True), Create(f"/t/{i}/state")]
        for i in range(3)
    ]
    rows.append([Create("/t", exist_ok=True)])
    rows.append([Delete("/gone", missing_ok=True), SetData("/t/1", b"", 9)])
    rows.append([Delete("/gone", missing_ok=True)])
    outcomes = await store.write_many(rows, FENCE)
    assert [outcome.code for outcome in outcomes] == [ZooKeeperCode.OK] * 4 + [
        ZooKeeperCode.BAD_VERSION,
        ZooKeeperCode.OK,
    ]
    assert outcomes[4].failed == 1  # counted in the row as it was given
    assert sorted(await store.children("/t")) == ["0", "1", "2"]
    assert (await store.get("/t/1")).data == b"kept"
    assert await store.exists("/t/1/state")


async def test_rows_about_the_same_nodes_take_effect_in_order(zk: ZooKeeper):
    store = await controller(zk)
    await store.create("/blocker")
    # More rows than fit into one transaction, with a loser in the first.
    rows: list[Row] = [[Create("/a")], [Create("/blocker")]]
    rows += [[Create(f"/filler{i}")] for i in range(1200)]
    rows += [[SetData("/a", b"%d" % i, i)] for i in range(3)]
    rows += [[Create("/a/b")], [Delete("/a")], [Delete("/a/b")], [Delete("/a")]]
    outcomes = await store.write_many(rows, FENCE)
    assert [outcome.code for outcome in outcomes[-7:]] == [
        *[ZooKeeperCode.OK] * 4,
        ZooKeeperCode.NOT_EMPTY,
        *[ZooKeeperCode.OK] * 2,
    ]


async def test_large_rows_stay_below_the_limit_of_a_request(zk: ZooKeeper):
    store = await controller(zk)
    data = bytes(300_000)
    rows = [[Create(f"/big{i}", data)] for i in range(8)]
    assert all(outcome.ok for outcome in await store.write_many(rows, FENCE))


async def test_names_beyond_ascii_are_counted_by_their_bytes(zk: ZooKeeper):
    store = await controller(zk)
    rows = [[Create(f"/{'京' * 300}{i}")] for i in range(1500)]
    assert all(outcome.ok for outcome in await store.write_many(rows, FENCE))
    chunks = [chunk async for chunk in store.read_many(row[0].path for row in rows)]
    assert [v for chunk in chunks for v in chunk.version] == [0] * 1500


async def test_subtrees_are_deleted_with_everything_below(zk: ZooKeeper):
    store = await controller(zk)
    for topic in ("t", "u", "kept"):
        await store.ensure_path(f"/topics/{topic}/partitions")
        await store.write_many(
            [Create(f"/topics/{topic}/partitions/{i}"), Create(f"/topics/{topic}/partitions/{i}/s")]
            for i in range(700)
        )
    await store.delete_recursive(["/topics/t", "/topics/u", "/topics/missing"], FENCE)
    assert await store.children("/topics") == ["kept"]
    assert len(await store.children("/topics/kept/partitions")) == 700


async def test_a_fenced_deletion_of_a_subtree_deletes_nothing(zk: ZooKeeper):
    store = await controller(zk)
    await store.ensure_path("/a/b")
    with pytest.raises(FencedError):
        await store.delete_recursive(["/a"], Fence(7))
    assert await store.exists("/a/b")


async def test_a_subtree_that_grows_while_it_is_deleted_is_deleted(zk: ZooKeeper):
    store, other = await controller(zk), (await zk.client()).store
    await store.ensure_path("/a")

    async def grow():
        for i in range(50):
            outcome = await other.write_many([[Create("/a/x"), Create(f"/a/x/{i}")]])
            if outcome[0].code is ZooKeeperCode.NO_NODE:
                return

    await asyncio.gather(grow(), store.delete_recursive(["/a"]))
    assert await store.exists("/a") is None


# --- how it is done -------------------------------------------------------------------------------


async def test_transactions_are_closed_by_bytes_or_by_rows():
    ledger = Ledger()
    await ledger.write([[Create(f"/small{i}")] for i in range(2001)])
    assert [len(transaction) for transaction in ledger.transactions] == [1000, 1000, 1]
    ledger.transactions.clear()
    await ledger.write([[Create(f"/big{i}", bytes(200_000))] for i in range(5)])
    assert [len(transaction) for transaction in ledger.transactions] == [2, 2, 1]


async def test_every_transaction_begins_with_the_check_of_the_fence():
    ledger = Ledger()
    await ledger.store.create(CONTROLLER_EPOCH, b"")
    await ledger.write([[Create(f"/n{i}")] for i in range(2500)], FENCE)
    assert len(ledger.transactions) == 3
    assert all(ops[0] == Check(CONTROLLER_EPOCH, 0) for ops in ledger.transactions)


async def test_several_transactions_are_under_way_at_a_time():
    ledger = Ledger()
    await ledger.write([[Create(f"/n{i}")] for i in range(10_000)])
    assert ledger.under_way_max > 1


async def test_one_loser_does_not_cost_many_transactions():
    ledger = Ledger()
    await ledger.store.create("/n500")
    await ledger.write([[Create(f"/n{i}")] for i in range(1000)])
    assert len(ledger.transactions) < 10


async def test_many_losers_cost_less_than_three_small_transactions_each():
    ledger = Ledger()
    for i in range(0, 1000, 3):
        await ledger.store.create(f"/n{i}")
    await ledger.write([[Create(f"/n{i}")] for i in range(1000)])
    assert sum(map(len, ledger.transactions)) < 1000 * 5
    assert len(ledger.transactions) < 1000


async def test_nothing_is_sent_after_the_fence_was_lost():
    ledger = Ledger()
    await ledger.store.create(CONTROLLER_EPOCH, b"")
    with pytest.raises(FencedError):
        await ledger.write([[Create(f"/n{i}")] for i in range(50_000)], Fence(1))
    sent = len(ledger.transactions)
    await asyncio.sleep(0)
    assert len(ledger.transactions) == sent < 10


_PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/1", "/b/z"])
_VERSIONS = st.integers(-1, 2)
_OPS = st.one_of(
    st.builds(Create, _PATHS, st.just(b""), exist_ok=st.booleans()),
    st.builds(SetData, _PATHS, st.just(b""), _VERSIONS),
    st.builds(Delete, _PATHS, _VERSIONS, missing_ok=st.booleans()),
    st.builds(Check, _PATHS, _VERSIONS),
)


@given(st.lists(st.lists(_OPS, min_size=1, max_size=3), max_size=30), st.integers(1, 6))
def test_the_outcome_is_that_of_one_transaction_per_row_in_order(
    rows: list[list[Op]], transaction_rows: int
):
    async def scenario():
        ledger = Ledger()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bulk, "TRANSACTION_ROWS", transaction_rows)
            in_bulk = await ledger.write(rows)
        one_by_one = MemoryZooKeeper().session()
        expected = [await _write_alone(one_by_one, row) for row in rows]
        assert in_bulk == expected
        for path in ("/a", "/b", "/a/x", "/a/y", "/a/x/1", "/b/z"):
            stat, twin = await ledger.store.exists(path), await one_by_one.exists(path)
            assert (stat and stat.version) == (twin and twin.version)

    asyncio.run(scenario())


async def _write_alone(store: Store, row: list[Op]) -> RowOutcome:
    """The obvious way: one transaction, again without what may fail when it does."""
    left = list(enumerate(row))
    while left:
        result = await store.multi([op for _, op in left])
        if result.failed is None:
            return RowOutcome(ZooKeeperCode.OK, bulk.WrittenBatch.of(result).version[-1])
        place, op = left[result.failed]
        may_fail = (
            isinstance(op, Create) and op.exist_ok and result.code is ZooKeeperCode.NODE_EXISTS
        ) or (isinstance(op, Delete) and op.missing_ok and result.code is ZooKeeperCode.NO_NODE)
        if not may_fail:
            return RowOutcome(result.code, NO_VERSION, place)
        del left[result.failed]
    return RowOutcome(ZooKeeperCode.OK)
