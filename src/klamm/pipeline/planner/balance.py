"""Balance a plan that obeys the rules: replicas, bytes and leaders, with few bytes moved."""

from collections import deque
from itertools import pairwise
from typing import Final

import numpy as np

from klamm.core.columns import I32, I64, Mask
from klamm.pipeline.planner.state import HOLE, ReplicaPlan
from klamm.pipeline.planner.targets import F64, Target, pour

_ROUNDS: Final = 30
_CHAINS_MAX: Final = 400
_SWAPS_MAX: Final = 2000
_SWAP_SAMPLE: Final = 300
_FEW: Final = 16
#: With how many others an exchange is tried.
_PARTNERS: Final = 8


# --- replicas -------------------------------------------------------------------------------------


def balance_replicas(state: ReplicaPlan, target: Target, target_bytes: Target) -> None:
    """Move replicas from brokers above their target to brokers below it.

    Moves are made in bulk first; the rest one by one, through other brokers if needed.
    """
    for _ in range(_ROUNDS):
        excess, deficit = target.excess(state.load), target.deficit(state.load)
        amount = int(np.ceil(max(excess.sum(), deficit.sum())))
        if amount == 0 or not _move_many(state, target, target_bytes, amount):
            break
    for _ in range(_CHAINS_MAX):
        if target.is_met(state.load) or not _move_through_others(state, target):
            return


def _move_many(state: ReplicaPlan, target: Target, target_bytes: Target, amount: int) -> int:
    """Move replicas from the fullest brokers to the emptiest; returns how many."""
    spare = np.maximum(state.load - np.ceil(target.lower), 0)
    gives = pour(amount, state.load - target.share, np.minimum(spare, state.load))
    shed = _bytes_to_shed(state, target_bytes)
    taken: list[I64] = []
    origin: list[I32] = []
    is_taken = np.zeros(len(state.rows), np.bool_)
    needy = np.flatnonzero((state.load < target.lower) & (gives == 0)).astype(np.int32)
    for broker in np.flatnonzero(gives):
        here = np.flatnonzero(state.on(int(broker)) & ~state.fixed & ~is_taken)
        if 0 < len(needy) <= _FEW:
            # With few to choose from, a replica taken at random would often fit on none of them.
            here = here[_fits_instead(state, here, int(broker), needy).any(axis=1)]
        chosen = _choose(state, here, int(gives[broker]), float(shed[broker]))
        is_taken[chosen] = True
        taken.append(chosen)
        origin.append(np.full(len(chosen), broker, np.int32))
    rows = np.concatenate([np.empty(0, np.int64), *taken])
    brokers = np.concatenate([np.empty(0, np.int32), *origin])
    came_from = np.full(len(state.rows), HOLE, np.int32)
    came_from[rows] = brokers
    state.take(rows, brokers)
    # Donors are full as far as this deal goes; else what they gave would come back to them.
    barred = np.minimum(state.room, np.where(gives > 0, state.load, np.inf))
    room, state.room = state.room, barred
    failed = state.fill(rows, target)
    state.room = room
    state.put(failed, came_from[failed])
    return len(rows) - len(failed)


def _bytes_to_shed(state: ReplicaPlan, target: Target) -> F64:
    """The bytes that each broker has to lose so that all are within their limits."""
    amount = max(target.excess(state.bytes).sum(), target.deficit(state.bytes).sum())
    unit = max(amount / 1e6, 1.0)
    gap = (state.bytes - target.share) / unit
    return np.asarray(pour(int(amount / unit), gap, np.maximum(gap, 0)) * unit)


def _choose(state: ReplicaPlan, rows: I64, count: int, wanted_bytes: float) -> I64:
    """Choose rows whose bytes add up to about what is wanted.

    Rows of a similar size stand together; where the window begins decides how much it weighs.
    """
    rows = state.random.permutation(rows)
    rows = rows[np.argsort(state.weight[rows], kind="stable")]
    count = min(count, len(rows))
    total = np.concatenate([[0.0], np.cumsum(state.weight[rows])])
    window = total[count:] - total[: len(total) - count]
    start = min(int(np.searchsorted(window, wanted_bytes)), len(window) - 1)
    if window[start] == window[0]:
        # All have the same size: choose at random, since neighbours belong to the same topic.
        start = int(state.random.integers(0, np.searchsorted(window, window[start], "right")))
    return rows[start : start + count]


def _move_through_others(state: ReplicaPlan, target: Target) -> bool:
    """Move a replica from a broker with too many, or some to spare, to a broker with too few."""
    excess, deficit = target.excess(state.load), target.deficit(state.load)
    if excess.any():
        sources = np.flatnonzero(excess)
        is_goal = (state.load + 1 <= target.upper) & (state.load < target.share)
    else:
        sources = np.flatnonzero((state.load - 1 >= target.lower) & (state.load > target.share))
        is_goal = deficit > 0
    is_goal[sources] = False
    came: dict[int, tuple[int, int]] = {}
    queue = deque(
        sources[np.argsort(-(state.load - target.share)[sources], kind="stable")].tolist()
    )
    seen = set(queue)
    while queue:
        broker = queue.popleft()
        row_to = _ways_from(state, broker)
        for other in np.argsort(state.load - target.share, kind="stable").tolist():
            if row_to[other] < 0 or other in seen:
                continue
            came[other] = (broker, int(row_to[other]))
            if is_goal[other]:
                return _follow(state, came, other)
            seen.add(other)
            queue.append(other)
    return False


def _ways_from(state: ReplicaPlan, broker: int) -> I64:
    """For each broker a row that could move there from `broker`, or -1."""
    rows = np.flatnonzero(state.on(int(broker)) & ~state.fixed)
    if len(rows) > 2000:
        rows = state.random.choice(rows, 2000, replace=False)
    ways = np.full(state.brokers, -1, np.int64)
    if not len(rows):
        return ways
    fits = _fits_instead(state, rows, broker)
    found = fits.any(axis=0)
    ways[found] = rows[fits.argmax(axis=0)[found]]
    return ways


def _fits_instead(state: ReplicaPlan, rows: I64, broker: int, others: I32 | None = None) -> Mask:
    """Whether each row could be on each of the others, or of all brokers, instead of `broker`."""
    if others is None:
        others = np.arange(state.brokers, dtype=np.int32)
    gone = np.full(len(rows), broker, np.int32)
    state.take(rows, gone)
    fits = state.fits(rows, np.broadcast_to(others, (len(rows), len(others))))
    state.put(rows, gone)
    fits[:, others == broker] = False
    return fits


def _follow(state: ReplicaPlan, came: dict[int, tuple[int, int]], goal: int) -> bool:
    """Carry out a chain of moves, the last one first; a row can be in it only once."""
    chain = []
    broker = goal
    while broker in came:
        before, row = came[broker]
        chain.append((row, before, broker))
        broker = before
    if len({row for row, _, _ in chain}) < len(chain):
        return False
    for row, source, destination in chain:
        state.take(np.array([row]), np.array([source], np.int32))
        state.put(np.array([row]), np.array([destination], np.int32))
    return True


# --- bytes ----------------------------------------------------------------------------------------


def balance_bytes(state: ReplicaPlan, target: Target, target_bytes: Target) -> None:
    """Move or exchange replicas between the one that holds most bytes too many and the others."""
    for _ in range(_SWAPS_MAX):
        excess, deficit = target_bytes.excess(state.bytes), target_bytes.deficit(state.bytes)
        if not (excess.any() or deficit.any()):
            return
        gap = state.bytes - target_bytes.share
        if excess.any():
            source, need = int(excess.argmax()), float(excess.max())
            others = np.argsort(gap, kind="stable")[:_PARTNERS]
            pairs = [(source, int(other)) for other in others if gap[other] < 0]
        else:
            goal, need = int(deficit.argmax()), float(deficit.max())
            others = np.argsort(-gap, kind="stable")[:_PARTNERS]
            pairs = [(int(other), goal) for other in others if gap[other] > 0]
        if not any(_exchange(state, target, target_bytes, need, *pair) for pair in pairs):
            return


def _exchange(
    state: ReplicaPlan, target: Target, target_bytes: Target, need: float, source: int, goal: int
) -> bool:
    """Let `source` give a replica to `goal`, for a smaller one if numbers have to stay.

    The cheapest way that is enough is taken, else the one that helps most; none may do harm.
    """
    most = min(
        state.bytes[source] - target_bytes.lower[source],
        target_bytes.upper[goal] - state.bytes[goal],
    )
    giving = _sample(state, source, goal)
    gain = state.weight[giving]
    may_move = (
        state.load[source] - 1 >= target.lower[source]
        and state.load[goal] + 1 <= target.upper[goal]
    )
    if may_move and (best := _cheapest(gain, gain, need, most)) is not None:
        _move(state, int(giving[best]), source, goal)
        return True
    returning = _sample(state, goal, source)
    back = state.weight[returning]
    difference = (gain[:, None] - back[None, :]).ravel()
    cost = (gain[:, None] + back[None, :]).ravel()
    if (best := _cheapest(difference, cost, need, most)) is None:
        return False
    one, two = divmod(best, len(returning))
    _move(state, int(giving[one]), source, goal)
    _move(state, int(returning[two]), goal, source)
    return True


def _cheapest(gain: F64, cost: F64, need: float, most: float) -> int | None:
    """The cheapest of what is enough and not too much, or the most of what is less."""
    allowed = np.flatnonzero((gain > 0) & (gain <= most))
    if not len(allowed):
        return None
    enough = allowed[gain[allowed] >= need]
    if len(enough):
        return int(enough[cost[enough].argmin()])
    return int(allowed[gain[allowed].argmax()])


def _sample(state: ReplicaPlan, source: int, goal: int) -> I64:
    """Some rows that may move from the one to the other."""
    rows = np.flatnonzero(state.on(source) & ~state.on(goal) & ~state.fixed)
    if len(rows) > _SWAP_SAMPLE:
        rows = state.random.choice(rows, _SWAP_SAMPLE, replace=False)
    if not len(rows):
        return rows
    return rows[_fits_instead(state, rows, source, np.array([goal], np.int32))[:, 0]]


def _move(state: ReplicaPlan, row: int, source: int, goal: int) -> None:
    state.take(np.array([row]), np.array([source], np.int32))
    state.put(np.array([row]), np.array([goal], np.int32))


# --- leaders --------------------------------------------------------------------------------------


def balance_leaders(rows: I32, fixed: Mask, brokers: int, target: Target) -> I32:
    """Put another replica first where that evens out preferred leaders; moves no data.

    Leadership goes along the shortest chain of brokers from one with too much of it to one with
    too little, as much of it as the chain carries.
    """
    rows = rows.copy()
    load = np.bincount(rows[:, 0], minlength=brokers).astype(np.float64)
    edges = _edges(rows[~fixed], brokers)
    led = _rows_by_leader(rows, fixed, brokers)
    for _ in range(_CHAINS_MAX * 4):
        excess, deficit = target.excess(load), target.deficit(load)
        if not (excess.any() or deficit.any()):
            break
        if excess.any():
            sources = excess > 0
            goals = (load + 1 <= target.upper) & (load < target.share)
        else:
            sources = (load - 1 >= target.lower) & (load > target.share)
            goals = deficit > 0
        chain = _shortest(edges, sources, goals & ~sources)
        if chain is None:
            break
        first, last = chain[0], chain[-1]
        too_much, too_little = load[first] - target.share[first], target.share[last] - load[last]
        amount = max(1, int(min(abs(too_much), abs(too_little))))
        amount = min([amount, *(int(edges[a, b]) for a, b in pairwise(chain))])
        for a, b in pairwise(chain):
            at = np.flatnonzero((rows[led[a], 1:] == b).any(axis=1))[:amount]
            chosen = led[a][at]
            edges -= _edges(rows[chosen], brokers)
            slot = (rows[chosen] == b).argmax(axis=1)
            rows[chosen, slot] = a
            rows[chosen, 0] = b
            edges += _edges(rows[chosen], brokers)
            led[a] = np.delete(led[a], at)
            led[b] = np.sort(np.concatenate([led[b], chosen]))
        load[first] -= amount
        load[last] += amount
    return rows


def _rows_by_leader(rows: I32, fixed: Mask, brokers: int) -> list[I64]:
    """The rows that each broker leads and may pass on, in ascending order."""
    free = np.flatnonzero(~fixed)
    leader = rows[free, 0]
    order = np.argsort(leader, kind="stable")
    return np.split(free[order], np.searchsorted(leader[order], np.arange(1, brokers)))


def _edges(rows: I32, brokers: int) -> I64:
    """How many rows each broker leads that have each other broker among their replicas."""
    edges = np.zeros(brokers * brokers, np.int64)
    for other in rows[:, 1:].T:
        has_other = other != HOLE
        pair = rows[has_other, 0].astype(np.int64) * brokers + other[has_other]
        edges += np.bincount(pair, minlength=brokers * brokers)
    return edges.reshape(brokers, brokers)


def _shortest(edges: I64, sources: Mask, goals: Mask) -> list[int] | None:
    came: dict[int, int] = {}
    queue = deque(np.flatnonzero(sources).tolist())
    seen = set(queue)
    while queue:
        broker = queue.popleft()
        for other in np.flatnonzero(edges[broker]).tolist():
            if other in seen:
                continue
            seen.add(other)
            came[other] = broker
            if goals[other]:
                chain = [other]
                while chain[-1] in came:
                    chain.append(came[chain[-1]])
                return chain[::-1]
            queue.append(other)
    return None
