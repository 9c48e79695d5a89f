"""One run: a cluster, clients that use it, faults that befall it, and what is left in the end."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.chaos.actions import Actions, Groups
from tests.chaos.clients import OffsetWatch, StallWatch, Writer, read_everything
from tests.chaos.faults import Faults
from tests.chaos.plan import Plan
from tests.chaos.recording import Ending, History, Name, Recorder
from tests.chaos.world import World, written

#: How long a cluster may take to become whole when the faults have stopped.
SETTLE_S: Final = 90.0
_DRAIN_S: Final = 60.0
_POLL_S: Final = 0.2
_WRITERS: Final = {
    "idempotent-1": (True, 80.0),
    "idempotent-2": (True, 40.0),
    "plain": (False, 40.0),
}


def run(
    plan: Plan,
    seconds: float,
    directory: Path,
    *,
    brokers: int,
    zookeepers: int,
    say: Callable[[str], None],
) -> None:
    """Carry out a plan; the rows are in `history.jsonl`, the brokers in `cluster`."""
    with contextlib.ExitStack() as stack:
        recorder = Recorder(directory / "history.jsonl")
        stack.callback(recorder.close)
        world = stack.enter_context(World(directory / "cluster", brokers, zookeepers))
        say("the cluster is whole")
        began_at = time.monotonic()

        def tell(text: str) -> None:
            say(f"{time.monotonic() - began_at:6.1f} s  {text}")

        stalls = StallWatch(recorder)
        stack.callback(stalls.stop)
        groups = Groups(world.bootstrap, recorder)
        stack.callback(groups.stop)
        watch = OffsetWatch(list(Groups.MEMBERS), world.bootstrap, written(), recorder)
        stack.callback(watch.stop)
        writers = [
            Writer(name, world.bootstrap, written(), recorder, is_idempotent=idempotent, rate=rate)
            for name, (idempotent, rate) in _WRITERS.items()
        ]
        try:
            _disturb(plan, seconds, world, groups, recorder, tell)
            ending = _settle(world, tell)
        finally:
            unanswered = {
                name: writer.stop() for name, writer in zip(_WRITERS, writers, strict=True)
            }
        for name, left in unanswered.items():
            if left:
                ending.append(f"{name} was not told what became of {left} records")
        settled_s = time.monotonic() - began_at
        for kept in read_everything(world.bootstrap, world.leader_ports()):
            recorder.add(kept)
        _wait_read(recorder.history, tell)
        for leader in world.leaders():
            recorder.add(leader)
        recorder.add(Ending(settled_s, world.topics(), tuple(ending), tuple(world.tracebacks())))


def spools(directory: Path) -> list[Path]:
    """The histories that the brokers of a run have written."""
    return [spool for spool in sorted(directory.glob("cluster/*/history")) if any(spool.iterdir())]


def _disturb(
    plan: Plan,
    seconds: float,
    world: World,
    groups: Groups,
    recorder: Recorder,
    tell: Callable[[str], None],
) -> None:
    stop = threading.Event()
    actions = Actions(world, groups, recorder, tell, stop)
    threads = [
        threading.Thread(target=Faults(world, recorder, tell, stop).run, args=(plan.faults,)),
        threading.Thread(target=actions.run, args=(plan.actions,)),
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    try:
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _settle(world: World, tell: Callable[[str], None]) -> list[str]:
    """Stop all faults; what is still wrong after a while."""
    tell("the faults stop")
    world.undo()
    wrong = world.wait_whole(None, SETTLE_S)
    tell("; ".join(wrong[:3]) or "the cluster is whole")
    return wrong


def _wait_read(history: History, tell: Callable[[str], None]) -> None:
    """Wait until the groups have read everything, or have had enough time to."""
    ends: dict[Name, int] = defaultdict(int)
    for kept in history.kept:
        ends[kept.topic, kept.partition] = max(ends[kept.topic, kept.partition], kept.offset)
    deadline = time.monotonic() + _DRAIN_S
    seen = 0
    read: dict[tuple[str, str, int], int] = defaultdict(lambda: -1)
    while time.monotonic() < deadline:
        rows = history.reads[seen:]
        seen += len(rows)
        for row in rows:
            key = row.group, row.topic, row.partition
            read[key] = max(read[key], row.offset)
        if all(read[group, *name] >= end for group in Groups.MEMBERS for name, end in ends.items()):
            tell("the groups have read everything")
            return
        time.sleep(_POLL_S)
    tell("the groups have not read everything")
