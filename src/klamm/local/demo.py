"""The tour: a cluster in a real ZooKeeper, a broker lost, and leaders found for what it led.

Brokers are played: each one is a ZooKeeper session that holds a registration, and letting the
session go is its death. Everything else is the real thing, and every claim that is printed was
checked before; a claim that does not hold ends the tour.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from klamm.core.assignment import assign_replicas
from klamm.core.balance import is_imbalanced, needs_preferred_election
from klamm.core.columns import I8, I32, Mask, any_slot, contains, is_one_of, padded, unpad
from klamm.core.elections import elect_offline, elect_preferred, initialise, shrink_isr
from klamm.errors import FencedError, KlammError
from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import ZooKeeperStore, open_store
from klamm.zookeeper.store import Create, Fence, SetData, WatchEvent

RACKS: Final = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}
TOPICS: Final = ("audit", "clicks", "orders", "payments")
PARTITIONS: Final = 500
REPLICATION_FACTOR: Final = 3
LOST: Final = 1
_PATIENCE_S: Final = 20.0


def run() -> None:
    """Take the tour; raises when something is not as it should be."""
    guide = Guide(Console())
    asyncio.run(_tour(guide))
    guide.conclude()


class Guide:
    """Says what happens, and says nothing that was not checked."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = 0
        self._checked = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One stop of the tour, with the time it took."""
        self._number += 1
        self._console.print(f"\n[bold]{self._number}. {title}[/bold]")
        begun = time.perf_counter()
        yield
        self._console.print(f"   [dim]{time.perf_counter() - begun:.2f} s[/dim]")

    def say(self, text: str) -> None:
        self._console.print(f"   {text}")

    def check(self, claim: str, holds: bool | np.bool_) -> None:
        if not holds:
            raise KlammError(f"The demo expected this, and it was not so: {claim}")
        self._checked += 1
        self._console.print(f"   [green]✓[/green] {claim}")

    def conclude(self) -> None:
        self._console.print(f"\nAll of it held: {self._checked} checks in {self._number} steps.")

    def show_leaders(self, before: Partitions, after: Partitions) -> None:
        """How many partitions each broker leads."""
        table = Table("broker", "rack", "leads", "led before", box=None, padding=(0, 2, 0, 3))
        for broker, rack in RACKS.items():
            now, then = (int((each.leader == broker).sum()) for each in (after, before))
            table.add_row(str(broker), rack, str(now), str(then))
        self._console.print(table)


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """The partitions of a cluster as ZooKeeper has them; a row each."""

    name: list[tuple[str, int]]
    replicas: I32
    leader: I32
    isr: I32
    leader_epoch: I32
    recovery: I8
    version: I32

    def at(self, rows: Mask) -> Partitions:
        """Some of the rows, in the same order."""
        return Partitions(
            [name for name, chosen in zip(self.name, rows, strict=True) if chosen],
            self.replicas[rows],
            self.leader[rows],
            self.isr[rows],
            self.leader_epoch[rows],
            self.recovery[rows],
            self.version[rows],
        )


@dataclass(frozen=True, slots=True)
class Term:
    """One controller's time in office, and its licence to write."""

    epoch: int
    fence: Fence


async def _tour(guide: Guide) -> None:
    async with AsyncExitStack() as stack:
        with guide.step("A real ZooKeeper"):
            server = stack.enter_context(ZooKeeperServer())
            guide.say(f"listening at {server.address}, process {server.pid}")

        async def connect() -> ZooKeeperStore:
            store = await open_store(server.address)
            stack.push_async_callback(store.close)
            return store

        store = await connect()
        with guide.step(f"A cluster of {len(RACKS)} brokers in {len(set(RACKS.values()))} racks"):
            brokers = {broker: await connect() for broker in RACKS}
            term = await _populate(guide, store, brokers)
        with guide.step("Read back, in bulk and into columns"):
            healthy = await _read(store)
            _check_placement(guide, healthy)
        with guide.step(f"Broker {LOST} dies"):
            await _lose_broker(guide, store, brokers[LOST])
            after = await _elect(guide, store, term, healthy)
            guide.show_leaders(healthy, after)
        with guide.step(f"Broker {LOST} returns, and leads again what it is preferred for"):
            await _register(await connect(), LOST)
            balanced = await _restore(guide, store, term, healthy, after)
            guide.show_leaders(after, balanced)
        with guide.step("A controller that was replaced can do no harm"):
            await _depose(guide, store, await connect(), term, balanced)


# --- the cluster ----------------------------------------------------------------------------------


async def _populate(
    guide: Guide, store: ZooKeeperStore, brokers: dict[int, ZooKeeperStore]
) -> Term:
    for path in znodes.PERSISTENT_PATHS:
        await store.ensure_path(path)
    for broker, session in brokers.items():
        await _register(session, broker)
    await store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
    term = await _take_office(store, broker=2, last=Term(0, Fence(0)))
    placed = 0
    for start, topic in enumerate(TOPICS):
        replicas = assign_replicas(
            RACKS, PARTITIONS, REPLICATION_FACTOR, start=start, shift=start
        ).astype(np.int32)
        await _create_topic(store, topic, replicas, term)
        placed += len(replicas)
    guide.say(f"{placed} partitions with {REPLICATION_FACTOR} replicas each, in Kafka's own znodes")
    registered = await store.children(znodes.BROKER_IDS)
    guide.check("every broker is registered", {int(name) for name in registered} == set(RACKS))
    return term


async def _register(session: ZooKeeperStore, broker: int) -> None:
    endpoint = znodes.Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9090 + broker)
    registration = znodes.BrokerRegistration(broker, (endpoint,), rack=RACKS[broker])
    data = znodes.encode_broker(registration, int(time.time() * 1000))
    await session.create(znodes.broker_path(broker), data, ephemeral=True)


async def _take_office(store: ZooKeeperStore, broker: int, last: Term) -> Term:
    """Take the controller's role and raise its epoch, both or neither."""
    epoch = last.epoch + 1
    controller = znodes.encode_controller(broker, int(time.time() * 1000))
    result = await store.multi(
        (
            Create(znodes.CONTROLLER, controller, ephemeral=True),
            SetData(
                znodes.CONTROLLER_EPOCH,
                znodes.encode_controller_epoch(epoch),
                last.fence.version,
            ),
        )
    )
    if not result.ok:
        raise KlammError(f"Broker {broker} could not become controller: {result.code.name}")
    return Term(epoch, Fence(last.fence.version + 1))


async def _create_topic(store: ZooKeeperStore, topic: str, replicas: I32, term: Term) -> None:
    assignment = {partition: unpad(row) for partition, row in enumerate(replicas)}
    topic_id = znodes.new_topic_id(os.urandom)
    chosen = initialise(replicas, is_one_of(replicas, list(RACKS)))
    rows: list[tuple[Create, ...]] = [
        (
            Create(
                znodes.topic_path(topic),
                znodes.encode_topic(znodes.TopicAssignment(topic_id, assignment)),
            ),
            Create(znodes.partitions_path(topic)),
        )
    ]
    for partition, (leader, isr) in enumerate(zip(chosen.leader, chosen.isr, strict=True)):
        state = znodes.encode_state(int(leader), 0, unpad(isr), term.epoch)
        rows.append(
            (
                Create(znodes.partition_path(topic, partition)),
                Create(znodes.state_path(topic, partition), state),
            )
        )
    outcomes = await store.write_many(rows, term.fence)
    if not all(outcome.ok for outcome in outcomes):
        raise KlammError(f"The topic {topic} could not be created.")


async def _read(store: ZooKeeperStore) -> Partitions:
    """The whole cluster: all assignments in bulk, then all states in bulk."""
    names: list[tuple[str, int]] = []
    replicas: list[list[int]] = []
    topics = sorted(await store.children(znodes.TOPICS))
    async for chunk in store.read_many(znodes.topic_path(topic) for topic in topics):
        for path, data in zip(chunk.path, chunk.data, strict=True):
            topic = path.rpartition("/")[2]
            for partition, brokers in sorted(znodes.decode_topic(topic, data).partitions.items()):
                names.append((topic, partition))
                replicas.append(list(brokers))
    states: list[znodes.PartitionState] = []
    versions: list[int] = []
    async for chunk in store.read_many(znodes.state_path(*name) for name in names):
        for path, data in zip(chunk.path, chunk.data, strict=True):
            state = znodes.decode_state(path, data)
            if state is None:
                raise KlammError(f"{path} holds no state.")
            states.append(state)
        versions += chunk.version
    return Partitions(
        names,
        padded(replicas),
        np.array([state.leader for state in states], np.int32),
        padded((state.isr for state in states), width=REPLICATION_FACTOR),
        np.array([state.leader_epoch for state in states], np.int32),
        np.array([state.recovery for state in states], np.int8),
        np.array(versions, np.int32),
    )


async def _write(store: ZooKeeperStore, term: Term, decided: Partitions) -> None:
    """Write leadership, each row only if nobody has written it since, all behind the fence."""
    rows = [
        (
            SetData(
                znodes.state_path(*name),
                znodes.encode_state(int(leader), int(epoch), unpad(isr), term.epoch, int(recovery)),
                int(version),
            ),
        )
        for name, leader, epoch, isr, recovery, version in zip(
            decided.name,
            decided.leader,
            decided.leader_epoch,
            decided.isr,
            decided.recovery,
            decided.version,
            strict=True,
        )
    ]
    outcomes = await store.write_many(rows, term.fence)
    lost = sum(not outcome.ok for outcome in outcomes)
    if lost:
        raise KlammError(f"{lost} of {len(rows)} states had been changed by somebody else.")


# --- what happens to it ---------------------------------------------------------------------------


def _check_placement(guide: Guide, cluster: Partitions) -> None:
    guide.say(f"{len(cluster.name)} partitions of {len(TOPICS)} topics")
    rack_of = np.array(["", *(RACKS[broker] for broker in sorted(RACKS))])
    racks = np.sort(rack_of[cluster.replicas], axis=1)
    spread = (racks[:, 1:] != racks[:, :-1]).all()
    guide.check("no two replicas of a partition share a rack", spread)
    preferred = cluster.leader == cluster.replicas[:, 0]
    guide.check("every partition is led by its first replica", preferred.all())
    shares = np.bincount(cluster.leader, minlength=len(RACKS) + 1)[1:]
    guide.check(
        f"brokers lead about as much as one another ({shares.min()} to {shares.max()})",
        shares.max() - shares.min() <= len(TOPICS),
    )


async def _lose_broker(guide: Guide, store: ZooKeeperStore, session: ZooKeeperStore) -> None:
    """Let the broker's session go, and wait for the watch to tell of it."""
    await store.children(znodes.BROKER_IDS, watch=True)
    await session.close()
    async with asyncio.timeout(_PATIENCE_S):
        async for event in store.events():
            if isinstance(event, WatchEvent) and event.path == znodes.BROKER_IDS:
                break
    left = {int(name) for name in await store.children(znodes.BROKER_IDS)}
    guide.check("ZooKeeper's watch told of it", left == set(RACKS) - {LOST})


async def _elect(guide: Guide, store: ZooKeeperStore, term: Term, before: Partitions) -> Partitions:
    """Find leaders for what the broker led, and take it out of the other ISRs."""
    begun = time.perf_counter()
    online = is_one_of(before.replicas, sorted(set(RACKS) - {LOST}))
    led = before.leader == LOST
    chosen = elect_offline(
        before.replicas[led],
        before.isr[led],
        online[led],
        np.zeros(int(led.sum()), np.bool_),
        before.recovery[led],
    )
    shrunk = shrink_isr(before.leader, before.isr, LOST)
    leader, isr = shrunk.leader.copy(), shrunk.isr.copy()
    leader[led], isr[led] = chosen.leader, chosen.isr
    took_ms = (time.perf_counter() - begun) * 1000
    guide.say(f"{led.sum()} elections computed in {took_ms:.1f} ms")
    decided = replace(before, leader=leader, isr=isr, leader_epoch=before.leader_epoch + 1)
    await _write(store, term, decided.at(shrunk.was_member))

    after = await _read(store)
    guide.check("every partition has a leader that lives", is_one_of(after.leader, _left()).all())
    agreed = contains(before.isr, after.leader[:, None]).all()
    guide.check("each was in sync, so nothing that was committed is lost", agreed)
    guide.check("the dead broker is in no ISR", not is_one_of(after.isr, LOST).any())
    untouched = (after.version == before.version)[~shrunk.was_member].all()
    guide.check("partitions that it held no replica of were not touched", untouched)
    raised = after.leader_epoch == before.leader_epoch + shrunk.was_member
    guide.check("the leader epoch rose by one where anything changed, nowhere else", raised.all())
    return after


def _left() -> list[int]:
    return sorted(set(RACKS) - {LOST})


async def _restore(
    guide: Guide, store: ZooKeeperStore, term: Term, healthy: Partitions, after: Partitions
) -> Partitions:
    """Let the broker catch up, as its leaders would, and hand leadership back."""
    returning = any_slot(is_one_of(after.replicas, LOST))
    caught_up = replace(
        after,
        isr=padded(
            ([*unpad(isr), LOST] if back else unpad(isr))
            for isr, back in zip(after.isr, returning, strict=True)
        ),
    )
    await _write(store, term, caught_up.at(returning))

    now = await _read(store)
    known = np.ones(len(now.name), np.bool_)
    nothing = padded([[]] * len(now.name))
    imbalanced = is_imbalanced(now.replicas, nothing, now.leader, now.isr, known)
    guide.say(f"{imbalanced.sum()} partitions are led by another than their first replica")
    moved = needs_preferred_election(now.replicas, now.leader, now.isr, known, known, percentage=10)
    guide.check("the rebalance picks exactly these", (moved == imbalanced).all())
    rows = now.at(moved)
    chosen = elect_preferred(
        rows.replicas, rows.isr, is_one_of(rows.replicas, list(RACKS)), rows.recovery
    )
    guide.check("each of them can be handed back", chosen.won.all())
    await _write(
        store, term, replace(rows, leader=chosen.leader, leader_epoch=rows.leader_epoch + 1)
    )
    balanced = await _read(store)
    guide.check("everybody leads what it led at first", (balanced.leader == healthy.leader).all())
    return balanced


async def _depose(
    guide: Guide,
    store: ZooKeeperStore,
    successor: ZooKeeperStore,
    term: Term,
    cluster: Partitions,
) -> None:
    """Give the role to another, then let the old controller try to write."""
    await store.delete(znodes.CONTROLLER)
    newer = await _take_office(successor, broker=3, last=term)
    guide.say(f"broker 3 took the role with epoch {newer.epoch}")
    refused = False
    try:
        await _write(store, term, replace(cluster, leader=np.full_like(cluster.leader, 2)))
    except FencedError:
        refused = True
    guide.check("what its predecessor writes is refused", refused)
    now = await _read(store)
    guide.check("and nothing has changed", (now.version == cluster.version).all())
