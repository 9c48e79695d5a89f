"""Replicas while they are being planned: rows of broker places, loads, and moves between them.

Brokers are known by their place in the list of those that stay; the rest of the plan deals with
ids. A row holds its replicas in slots; an empty slot is a hole that wants a broker.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from klamm.core.columns import I32, I64, Mask, count
from klamm.pipeline.planner.targets import F64, Target, pour

HOLE: Final = -1
_TRIES: Final = 12


@dataclass(slots=True, eq=False)
class ReplicaPlan:
    """The replicas of all partitions, and what brokers hold."""

    rows: I32  # broker places; HOLE where one is missing, or none is wanted
    wanted: I64  # replicas of each row
    fixed: Mask  # rows that must stay as they are
    weight: F64  # bytes of one replica of each row
    rack: I32  # of brokers
    random: np.random.Generator
    load: F64  # replicas of brokers
    bytes: F64  # bytes of brokers
    room: F64  # most replicas of brokers
    room_bytes: F64

    @classmethod
    def of(
        cls,
        rows: I32,
        wanted: I64,
        fixed: Mask,
        weight: F64,
        rack: I32,
        room: F64,
        room_bytes: F64,
        seed: int,
    ) -> "ReplicaPlan":
        state = cls(
            rows,
            wanted,
            fixed,
            weight,
            rack,
            np.random.default_rng(seed),
            np.zeros(len(rack)),
            np.zeros(len(rack)),
            room,
            room_bytes,
        )
        state.load, state.bytes = held_by(rows, weight, len(rack))
        return state

    @property
    def brokers(self) -> int:
        return len(self.rack)

    @property
    def racks(self) -> int:
        return int(self.rack.max()) + 1

    def holes(self) -> I64:
        """How many replicas each row lacks."""
        return np.asarray(self.wanted - count(self.rows))

    def on(self, broker: int) -> Mask:
        """The rows that have a replica on this broker."""
        found: Mask = np.zeros(len(self.rows), np.bool_)
        for places in self.rows.T:
            found |= places == broker
        return found

    def racks_of(self, rows: I64) -> I32:
        """The rack of each slot; HOLE where there is no replica."""
        places = self.rows[rows]
        return np.where(places == HOLE, HOLE, self.rack[places])

    def distinct_racks(self, rows: I64) -> I64:
        """In how many racks each row has a replica."""
        racks = np.sort(self.racks_of(rows), axis=1)
        is_new = racks != HOLE
        is_new[:, 1:] &= racks[:, 1:] != racks[:, :-1]
        return np.asarray(is_new.sum(axis=1))

    def racks_lacking(self, rows: I64) -> I64:
        """How many racks more each row has to be in, as Kafka's rule wants it."""
        return np.asarray(np.minimum(self.wanted[rows], self.racks) - self.distinct_racks(rows))

    def fits(self, rows: I64, brokers: I32) -> Mask:
        """Whether each row may get a replica on each broker of the same row of `brokers`."""
        places = self.rows[rows]
        is_here = (places[:, None, :] == brokers[:, :, None]).any(axis=2)
        racks = self.racks_of(rows)
        in_used_rack = (racks[:, None, :] == self.rack[brokers][:, :, None]).any(axis=2)
        holes = self.wanted[rows] - (places != HOLE).sum(axis=1)
        may_repeat = holes > self.racks_lacking(rows)
        has_room = (self.load[brokers] < self.room[brokers]) & (
            self.bytes[brokers] + self.weight[rows][:, None] <= self.room_bytes[brokers]
        )
        return np.asarray(~is_here & (~in_used_rack | may_repeat[:, None]) & has_room)

    def put(self, rows: I64, brokers: I32) -> None:
        """Fill one hole of each row."""
        slot = (self.rows[rows] == HOLE).argmax(axis=1)
        self.rows[rows, slot] = brokers
        self.load += np.bincount(brokers, minlength=self.brokers)
        self.bytes += np.bincount(brokers, weights=self.weight[rows], minlength=self.brokers)

    def take(self, rows: I64, brokers: I32) -> None:
        """Make a hole of each row's replica on its broker."""
        slot = (self.rows[rows] == brokers[:, None]).argmax(axis=1)
        self.rows[rows, slot] = HOLE
        self.load -= np.bincount(brokers, minlength=self.brokers)
        self.bytes -= np.bincount(brokers, weights=self.weight[rows], minlength=self.brokers)

    def fill(self, rows: I64, target: Target) -> I64:
        """Fill one hole in each of these rows; returns those for which no broker was found.

        Large rows come first and brokers take turns, so that each gets large and small ones. What
        does not fit is dealt again a few times; each remaining row gets the emptiest broker.
        """
        rows = rows[np.argsort(-self.weight[rows], kind="stable")]
        for attempt in range(_TRIES):
            if not len(rows):
                return rows
            given = pour(len(rows), target.share - self.load, self.room - self.load)
            deck = _interleave(given)
            if attempt:
                deck = self.random.permutation(deck)
            hand = rows[: len(deck)]
            fits = self.fits(hand, deck[:, None])[:, 0]
            fits &= self._within_room(hand, deck, fits)
            self.put(hand[fits], deck[fits])
            rows = np.concatenate([hand[~fits], rows[len(deck) :]])
        return self._fill_by_choice(rows, target)

    def _within_room(self, rows: I64, brokers: I32, chosen: Mask) -> Mask:
        """Which of the chosen still fit when all before them were accepted."""
        if np.isinf(self.room_bytes).all():
            return chosen
        order = np.argsort(brokers, kind="stable")
        weight = np.where(chosen, self.weight[rows], 0)[order]
        running = np.cumsum(weight)
        start = np.searchsorted(brokers[order], np.arange(self.brokers))
        before = np.concatenate([[0.0], running])[start]
        fits = np.empty(len(rows), np.bool_)
        own = brokers[order]
        fits[order] = running - before[own] + self.bytes[own] <= self.room_bytes[own]
        return fits

    def _fill_by_choice(self, rows: I64, target: Target) -> I64:
        """Give each row the emptiest broker that it fits on, a few rows at a time."""
        failed = []
        every = np.arange(self.brokers, dtype=np.int32)
        step = max(1, min(len(rows) // 64, 1000))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            fits = self.fits(some, np.broadcast_to(every, (len(some), self.brokers)))
            score = np.where(fits, self.load - target.share, np.inf)
            found = fits.any(axis=1)
            self.put(some[found], score[found].argmin(axis=1).astype(np.int32))
            failed.append(some[~found])
        return np.concatenate([np.empty(0, np.int64), *failed])


# Arrays of all slots of ten million rows, in eight bytes each, would fill the driver, so these
# functions look at one column after the other.


def held_by(
    rows: I32, weight: F64, brokers: int, some: Mask | slice = slice(None)
) -> tuple[F64, F64]:
    """The replicas and the bytes that each broker, by its place, has of all rows or of some."""
    load, bytes_ = np.zeros(brokers), np.zeros(brokers)
    weight = weight[some]
    for column in rows.T:
        places = column[some]
        is_there = places != HOLE
        load += np.bincount(places[is_there], minlength=brokers)
        bytes_ += np.bincount(places[is_there], weights=weight[is_there], minlength=brokers)
    return load, bytes_


def places_of(rows: I32, ids: I32) -> I32:
    """The place of each broker among `ids`, which are sorted; HOLE where it is none of them."""
    places = np.full(rows.shape, HOLE, np.int32)
    for slot, column in enumerate(rows.T):
        at = np.minimum(np.searchsorted(ids, column), len(ids) - 1)
        is_known = ids[at] == column
        places[is_known, slot] = at[is_known]
    return places


def _interleave(given: I64) -> I32:
    """Each broker as often as it is given, spread evenly over the whole."""
    broker = np.repeat(np.arange(len(given), dtype=np.int32), given)
    start = np.cumsum(given) - given
    turn = (np.arange(len(broker)) - start[broker] + 0.5) / given[broker]
    return np.asarray(broker[np.argsort(turn, kind="stable")])
