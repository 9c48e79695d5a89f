"""One history from beginning to end: a cluster, its clients, its faults, and what came of it."""

import asyncio
import gc
import hashlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from klamm.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.simulation.checks import Checks
from tests.simulation.clients import Administrator, Member, Producer
from tests.simulation.faults import ORDERS, Trouble
from tests.simulation.health import ailments, broken_promises
from tests.simulation.plan import Plan, draw
from tests.simulation.transactions import (
    LEDGER,
    CommittedReader,
    Ledger,
    Writer,
    broken_transactions,
    unfinished,
)
from tests.simulation.wiring import simulated_edges
from tests.simulation.world import World, told, without_collector

RISKY = "risky"
#: How long a cluster may take to become healthy after the last fault, in its own time.
HEALTHY_WITHIN_S = 40.0
_MEMORY = Path("/dev/shm")

Variant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a history."""

    plan: Plan
    failure: str | None
    events: int
    seconds: float
    #: Of every line of its log.
    digest: str
    lines: tuple[str, ...] = ()


def run(plan: Plan | str, *, variant: Variant | None = None, tell: bool = False) -> Outcome:
    """Let a history happen; the same plan gives the same one, byte for byte."""
    outcome = _let_happen(draw(plan) if isinstance(plan, str) else plan, variant, tell)
    with _unfinished_business():
        gc.collect()
    return outcome


@contextmanager
def _unfinished_business() -> Iterator[None]:
    """What was under way when a history ended is never awaited, nor closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _let_happen(plan: Plan, variant: Variant | None, tell: bool) -> Outcome:
    memory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="klamm-simulation-") as directory:
        checks = Checks()
        world = World(plan.seed, Path(directory), checks, plan.brokers)
        disabled = logging.root.manager.disable
        with ExitStack() as stack:
            stack.enter_context(without_collector())
            if variant is not None:
                stack.enter_context(variant())
            stack.enter_context(checks.probes())
            stack.enter_context(simulated_edges(world))
            if tell:
                stack.enter_context(told(world))
            else:
                logging.disable(logging.CRITICAL)
            try:
                world.run(lambda: _main(world, plan))
            finally:
                outcome = Outcome(
                    plan,
                    checks.failure,
                    world.events,
                    world.loop.time(),
                    hashlib.sha256("\n".join(world.lines).encode()).hexdigest(),
                    tuple(world.lines),
                )
                with _unfinished_business():
                    world.close()
                logging.disable(disabled)
    return outcome


async def _main(world: World, plan: Plan) -> None:
    checks = world.checks
    for machine in world.machines.values():
        machine.start()
    admin = Administrator(world, "admin")
    await admin.process.start(_create_topics(admin, plan))
    producers = [
        Producer(world, "plain", ORDERS, acks=-1, idempotent=False, pause_s=0.25),
        Producer(world, "idempotent", ORDERS, acks=-1, idempotent=True, pause_s=0.25),
        Producer(world, "hasty", RISKY, acks=1, idempotent=False, pause_s=0.4),
    ]
    members = [Member(world, name, "readers", ORDERS) for name in ("reader1", "reader2")]
    ledger = Ledger(world)
    writers: list[Writer] = []
    if plan.transactions:
        writers = [Writer(world, name, ledger) for name in ("writer1", "writer2")]
        CommittedReader(world, "auditor", ledger).start()
    for client in (*producers, *members, *writers):
        client.start()
    try:
        async with asyncio.timeout(HEALTHY_WITHIN_S):
            await Trouble(world, plan, admin).run()
    except TimeoutError:
        checks.fail("the faults do not end")
    world.note("PLAN", "no more faults")
    await _recover(world)
    for client in (*producers, *writers):
        client.is_stopping = True

    def is_well() -> bool:
        return (
            all(client.has_stopped for client in (*producers, *writers))
            and all(member.is_settled for member in members)
            and next(ailments(world), None) is None
            and not unread(world, members)
            and not (writers and next(unfinished(world), None))
        )

    if not await world.until(is_well, HEALTHY_WITHIN_S):
        still = [*ailments(world)]
        still += [
            f"{each.name} is still writing"
            for each in (*producers, *writers)
            if not each.has_stopped
        ]
        still += unfinished(world) if writers else ()
        still += [f"{each.name} has no assignment" for each in members if not each.is_settled]
        still += [f"{ORDERS}-{each} is not read to its end" for each in unread(world, members)]
        checks.fail(f"not healthy after {HEALTHY_WITHIN_S:.0f} s: " + "; ".join(still))
    for broken in broken_promises(world):
        checks.fail(broken)
    for broken in broken_transactions(world, ledger) if writers else ():
        checks.fail(broken)


def unread(world: World, members: list[Member]) -> list[int]:
    """Partitions that nobody in the group has read to their end."""
    found = []
    for partition in range(2):
        story = world.checks.current_story(ORDERS, partition)
        log = world.checks.log_of(story.leader, ORDERS, partition) if story else None
        read = max(member.positions.get(partition, 0) for member in members)
        if log is None or read < log.end_offset:
            found.append(partition)
    return found


async def _create_topics(admin: Administrator, plan: Plan) -> None:
    orders = [list(replicas) for replicas in plan.orders]
    safe = {"min.insync.replicas": str(plan.min_isr)}
    created = [await admin.create(ORDERS, orders, safe, attempts=30)]
    everybody = sorted(admin.world.machines)
    unclean = {"unclean.leader.election.enable": "true"}
    admin.world.checks.unclean_topics.add(RISKY)
    admin.world.checks.kept_topics |= {ORDERS, CONSUMER_OFFSETS}
    created.append(await admin.create(RISKY, [everybody[:2]], unclean, attempts=30))
    if plan.transactions:
        admin.world.checks.kept_topics |= {LEDGER, TRANSACTION_STATE}
        two = {"min.insync.replicas": "2"}
        created.append(await admin.create(LEDGER, [everybody[:3]] * 2, two, attempts=30))
    if any(created):
        admin.world.checks.fail(f"the topics cannot be created: {created}")


async def _recover(world: World) -> None:
    """Put right what does not come right by itself: machines that are off, disks that failed."""
    for machine in world.machines.values():
        if not machine.is_up:
            machine.start()
    await asyncio.sleep(0)
