"""What happened to topics and partitions, event by event: the state of one shard of topics.

A shard gets the records in the order of `(controller_epoch, seq)`, reduced to its own topics, and
turns them into rows of tables. Rows that no later event can change are put out once; what is still
open is kept as state, which is bounded by the number of topics and partitions, not by time. Times
are microseconds since 1970.

The tables are defined by the functions of `klamm.pipeline` of the same names, which make them from
a whole history at once; here they are kept up to date.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from klamm.history.records import (
    CLEAN,
    CREATED,
    ELECTION_KINDS,
    EPOCH_RAISED,
    NOBODY,
    REASSIGNMENT,
    TOPIC_ENDINGS,
    UNCLEAN,
)
from klamm.pipeline.history.fold.distributions import Durations, TimeSeries
from klamm.pipeline.history.fold.reassignments import PartitionReassignments
from klamm.pipeline.history.fold.steps import Header, decision_row, step_row

Row: TypeAlias = dict[str, Any]
#: Decisions that are taken because the leader is gone.
AFTER_LOSS: Final = frozenset({CLEAN, UNCLEAN, NOBODY})
#: What is measured of a failover: all of it, until it was noticed, from then until it was over.
FAILOVER_MEASURES: Final = ("total", "noticing", "electing")


@dataclass(slots=True)
class PartitionHistory:
    """The state of a partition: open intervals, and counts."""

    topic: str
    partition: int
    #: The row of the timeline that is not over.
    step: Row | None = None
    previous_from: int | None = None
    #: The beginning of the present time without a leader.
    lost: Row | None = None
    #: A leader that was elected and that its controller could not announce.
    unannounced: int | None = None
    under: Row | None = None
    min_isr: int = 1
    unders: int = 0
    under_us: int = 0
    moves: PartitionReassignments = field(default_factory=PartitionReassignments)
    churn: Row | None = None
    leaders: list[int] = field(default_factory=list)
    lost_leaders: list[int] = field(default_factory=list)
    outages: int = 0
    outage_us: int = 0
    lack_us: int = 0
    lack: TimeSeries | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def to_json(self) -> Row:
        return {
            **{each: getattr(self, each) for each in _PLAIN},
            "moves": asdict(self.moves),
            "lack": None if self.lack is None else self.lack.to_json(),
        }

    @classmethod
    def from_json(cls, state: Row) -> "PartitionHistory":
        lack = state["lack"]
        return cls(
            **{each: state[each] for each in _PLAIN},
            moves=PartitionReassignments(**state["moves"]),
            lack=None if lack is None else TimeSeries(**lack),
        )


_PLAIN: Final = tuple(name for name in PartitionHistory.__slots__ if name not in ("moves", "lack"))


@dataclass(slots=True)
class TopicHistory:
    """The state of a topic: its present life, and the sums over its partitions."""

    topic: str
    life: Row | None = None
    partitions: int = 0
    #: Of closed rows of the timeline; and how many are open, with the sum of their beginnings.
    known_us: int = 0
    open_steps: int = 0
    open_from_us: int = 0
    #: Partitions that were there before they were first mentioned, and the sum of those times.
    earlier: int = 0
    earlier_from_us: int = 0
    affected: int = 0
    intervals: int = 0
    outage_us: int = 0
    noticing_us: int = 0
    longest_us: int = 0


@dataclass(slots=True)
class BrokerLosses:
    """What was lost with a broker, in intervals that are over."""

    partitions: int = 0
    intervals: int = 0
    outage_us: int = 0
    longest_us: int = 0


class TopicShard:
    """The state of some topics, and the rows that were finished since it was loaded."""

    def __init__(self, state: Row | None = None, min_isr: Mapping[str, int] | None = None) -> None:
        """`state` is what `to_json` gave; `min_isr` has topics that differ from Kafka's default."""
        state = state or {}
        self._min_isr = min_isr or {}
        self.topics = {each["topic"]: TopicHistory(**each) for each in state.get("topics", ())}
        self.partitions: dict[str, dict[int, PartitionHistory]] = {}
        for each in state.get("partitions", ()):
            loaded = PartitionHistory.from_json(each)
            self.partitions.setdefault(loaded.topic, {})[loaded.partition] = loaded
        self.by_broker = {
            int(broker): BrokerLosses(**each) for broker, each in state.get("by_broker", {}).items()
        }
        found = state.get("failovers", {})
        self.failovers = {name: Durations(found.get(name)) for name in FAILOVER_MEASURES}
        self.elections = {
            kind: TimeSeries(**each) for kind, each in state.get("elections", {}).items()
        }
        #: How many moves had an outcome, and the longest of them.
        self.moves: dict[str, list[float]] = state.get("moves", {})
        self._last_ended: int | None = state.get("last_ended")
        #: Finished rows by table.
        self.rows: dict[str, list[Row]] = {}
        #: By how many partitions each broker leads more or fewer, from when.
        self.leader_changes: dict[tuple[int, int], int] = {}
        self.history_from = 0
        self.history_until = 0

    def to_json(self) -> Row:
        """The state, without the rows."""
        return {
            "topics": [asdict(each) for each in self.topics.values()],
            "partitions": [each.to_json() for each in self._all()],
            "by_broker": {str(broker): asdict(each) for broker, each in self.by_broker.items()},
            "failovers": {name: each.to_json() for name, each in self.failovers.items()},
            "elections": {kind: each.to_json() for kind, each in self.elections.items()},
            "moves": self.moves,
            "last_ended": self._last_ended,
        }

    def apply(self, parts: Sequence[Row]) -> None:
        """Apply one event, whose parts come in order."""
        header = Header.of(parts[0])
        if header.term == "began":
            self._announced_all(header)
        decided: dict[tuple[str, int], list[Row]] = {}
        for record in parts:
            for decision in record["decisions"]:
                key = (decision["topic"], decision["partition"])
                decided.setdefault(key, []).append(decision)
                self._put("decisions", decision_row(header, record["part"], decision))
        moved: dict[tuple[str, int], list[Row]] = {}
        for record in parts:
            for move in record["moves"]:
                moved.setdefault((move["topic"], move["partition"]), []).append(move)
        for key in decided | moved:
            done = [each for each in decided.get(key, ()) if each["outcome"] == "done"]
            if not done and key not in moved:
                continue
            partition = self._partition(*key)
            self._moved(partition, header, moved.get(key, ()), done)
            if done:
                self._elected(partition, header, done)
                self._step(partition, step_row(header, done))
        for record in parts:
            for change in record["topic_changes"]:
                self._topic_changed(header, change)
        if header.term == "began":
            for partition in self._all():
                partition.moves.on_term(header.controller_epoch, header.at)
        elif header.term == "ended":
            self._last_ended = header.controller_epoch

    def open_rows(self) -> dict[str, list[Row]]:
        """Rows of open intervals, and of counts, as of now."""
        rows: dict[str, list[Row]] = {name: [] for name in _WITH_OPEN_ROWS}
        rows["availability_by_topic"] = [
            self._availability(each) for each in self.topics.values() if each.partitions
        ]
        rows["topic_life_cycles"] = [
            _life_row(each.life) for each in self.topics.values() if each.life is not None
        ]
        for each in self._all():
            place = {"topic": each.topic, "partition": each.partition}
            if each.step is not None:
                rows["timeline"].append(each.step)
            if each.lost is not None:
                rows["unavailability"].append(_outage_row(each.lost))
            if each.under is not None:
                rows["under_min_isr"].append(_under_row(each.under))
            if (move := each.moves.open_row()) is not None:
                rows["reassignments"].append(place | move)
            if each.churn is not None:
                rows["leadership_churn"].append(place | each.churn | {"leaders": len(each.leaders)})
        return rows

    def all_partitions(self) -> Iterable[PartitionHistory]:
        """Every partition that has state."""
        return self._all()

    # What an event does

    def _announced_all(self, header: Header) -> None:
        """A new controller announces every leader, also those that its predecessor could not."""
        announced_at = header.announced_at
        if announced_at is None:
            announced_at = header.at + header.takeover_us
        for partition in self._all():
            if partition.unannounced is not None:
                leader, partition.unannounced = partition.unannounced, None
                self._restored(partition, announced_at, leader)

    def _elected(self, partition: PartitionHistory, header: Header, done: Sequence[Row]) -> None:
        first_leader = done[0]["old_leader"]
        place = {"topic": partition.topic, "partition": partition.partition}
        event = {
            "at": header.at,
            "controller_epoch": header.controller_epoch,
            "seq": header.seq,
            "cause": header.cause,
        }
        for each in done:
            if each["kind"] in ELECTION_KINDS:
                old = each["old_leader"] if each["old_leader"] >= 0 else first_leader
                row = {
                    **event,
                    **place,
                    "kind": each["kind"],
                    "old_leader": old,
                    "new_leader": each["leader"],
                    "leader_epoch": each["leader_epoch"],
                    "isr": each["isr"],
                    "announced_at": header.announced_at,
                    "old_isr": each["old_isr"],
                    "replicas": each["replicas"],
                }
                self._put("elections", row)
                _count_election(partition, row)
                self.elections.setdefault(each["kind"], TimeSeries()).add(header.at)
            if each["kind"] not in (NOBODY, CREATED) and sorted(each["isr"]) != sorted(
                each["old_isr"]
            ):
                row = {
                    **event,
                    **place,
                    "kind": each["kind"],
                    "leader": each["leader"],
                    "leader_epoch": each["leader_epoch"],
                    "old_isr": each["old_isr"],
                    "isr": each["isr"],
                    "joined": [id for id in each["isr"] if id not in each["old_isr"]],
                    "left": [id for id in each["old_isr"] if id not in each["isr"]],
                    "replicas": each["replicas"],
                }
                self._put("isr_changes", row)

    def _moved(
        self,
        partition: PartitionHistory,
        header: Header,
        moves: Sequence[Row],
        done: Sequence[Row],
    ) -> None:
        milestones = [
            "leader_moved" if each["kind"] == REASSIGNMENT else "epoch_raised"
            for each in done
            if each["kind"] in (REASSIGNMENT, EPOCH_RAISED)
        ]
        for row in partition.moves.apply(
            header.at, header.controller_epoch, header.seq, moves, milestones
        ):
            place = {"topic": partition.topic, "partition": partition.partition}
            self._put("reassignments", place | row)
            count_move(self.moves, row)

    def _step(self, partition: PartitionHistory, row: Row) -> None:
        """Begin the next row of the partition's timeline."""
        topic = self._topic(partition.topic)
        is_first = partition.previous_from is None
        if partition.step is not None:
            self._close_step(partition, row["from"], topic_ended=False)
        if is_first:
            topic.partitions += 1
            if row["old_leader_epoch"] >= 0:
                topic.earlier += 1
                topic.earlier_from_us += row["from"]
        partition.step = {"topic": partition.topic, "partition": partition.partition, **row}
        topic.open_steps += 1
        topic.open_from_us += row["from"]
        self._led(row["from"], row["leader"], 1)
        self._lose_or_restore(partition, row)
        partition.previous_from = row["from"]
        self._watch_min_isr(partition, row)

    def _close_step(self, partition: PartitionHistory, at: int, *, topic_ended: bool) -> None:
        step, partition.step = partition.step, None
        assert step is not None, "an open row is closed"
        until = max(step["from"], at)
        self._put("timeline", step | {"until": until, "topic_ended": topic_ended})
        topic = self._topic(partition.topic)
        topic.open_steps -= 1
        topic.open_from_us -= step["from"]
        topic.known_us += until - step["from"]
        self._led(until, step["leader"], -1)
        if partition.under is not None:
            partition.under["until"] = until
        if missing := missing_replicas(step):
            partition.lack_us += (until - step["from"]) * missing
            partition.lack = partition.lack or TimeSeries(mode="peak")
            partition.lack.add_interval(step["from"], until, missing)
        if topic_ended and step["leader"] < 0 and step["state"] != "deleting":
            self._restored(partition, until, step["leader"])

    def _lose_or_restore(self, partition: PartitionHistory, row: Row) -> None:
        has_leader, is_deleting = row["leader"] >= 0, row["state"] == "deleting"
        is_lost = not AFTER_LOSS.isdisjoint(row["kinds"]) or not (has_leader or is_deleting)
        if is_lost and partition.lost is None:
            partition.lost = self._loss(partition, row)
        partition.unannounced = None
        if has_leader and row["announced_at"] is None:
            partition.unannounced = row["leader"]
        elif has_leader:
            self._restored(partition, row["announced_at"], row["leader"])
        elif is_deleting:
            self._restored(partition, row["arrived_at"], row["leader"])

    def _loss(self, partition: PartitionHistory, row: Row) -> Row:
        """The beginning of an interval: when the leader was last known to be alive.

        It cannot have been before it led. A controller that ended its term in order said so, and
        its broker, if that is gone as well, was there until then.
        """
        noticed_at, alive_at = row["arrived_at"], row["alive_at"]
        if row["seq"] == 1 and self._last_ended == row["controller_epoch"] - 1:
            alive_at = None
        start = noticed_at
        if alive_at is not None:
            start = min(noticed_at, max(alive_at, partition.previous_from or alive_at))
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "from": start,
            "noticed_at": noticed_at,
            "lost_leader": row["old_leader"],
            "controller_epoch": row["controller_epoch"],
            "seq": row["seq"],
            "cause": row["cause"],
        }

    def _restored(self, partition: PartitionHistory, at: int, leader: int) -> None:
        lost, partition.lost = partition.lost, None
        if lost is None:
            return
        row = _outage_row(lost, max(lost["noticed_at"], at), leader)
        self._put("unavailability", row)
        lasted = row["until"] - row["from"]
        if leader >= 0:
            noticing = lost["noticed_at"] - lost["from"]
            for measure, micros in zip(
                FAILOVER_MEASURES, (lasted, noticing, lasted - noticing), strict=True
            ):
                self.failovers[measure].add(micros)
        topic = self._topic(partition.topic)
        topic.affected += partition.outages == 0
        topic.intervals += 1
        topic.outage_us += lasted
        topic.noticing_us += lost["noticed_at"] - lost["from"]
        topic.longest_us = max(topic.longest_us, lasted)
        partition.outages += 1
        partition.outage_us += lasted
        if lost["lost_leader"] >= 0:
            losses = self.by_broker.setdefault(lost["lost_leader"], BrokerLosses())
            losses.partitions += _remember(partition.lost_leaders, lost["lost_leader"])
            losses.intervals += 1
            losses.outage_us += lasted
            losses.longest_us = max(losses.longest_us, lasted)

    def _watch_min_isr(self, partition: PartitionHistory, row: Row) -> None:
        min_isr = partition.min_isr = self._min_isr.get(partition.topic, 1)
        in_sync = len(row["isr"]) if row["leader"] >= 0 else 0
        under = partition.under
        if in_sync < min_isr and row["state"] != "deleting":
            if under is None:
                under = partition.under = {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "from": row["from"],
                    "min_isr": min_isr,
                    "in_sync": in_sync,
                }
            under["until"] = None
            under["in_sync"] = min(under["in_sync"], in_sync)
        elif under is not None:
            self._put("under_min_isr", _under_row(under))
            partition.unders += 1
            partition.under_us += under["until"] - under["from"]
            partition.under = None

    def _topic_changed(self, header: Header, change: Row) -> None:
        topic, kind, at = self._topic(change["topic"]), change["change"], header.at
        if topic.life is None or topic.life["end"] is not None:
            number = 1
            if topic.life is not None:
                self._put("topic_life_cycles", _life_row(topic.life))
                number = topic.life["life"] + 1
            topic.life = {"topic": topic.topic, "life": number, **_NEW_LIFE}
        life = topic.life
        if kind in ("created", "expanded"):
            life["partitions_added"] += change["partitions"]
        if kind == "created":
            life["created_with"] = change["partitions"]
        if kind == "deletion_paused":
            life["deletion_pauses"] += 1
        column = "ended_at" if kind in TOPIC_ENDINGS else f"{kind}_at"
        if column in life:
            life[column] = at if life[column] is None else min(life[column], at)
        if kind in TOPIC_ENDINGS:
            life["end"] = kind
            for partition in self.partitions.get(topic.topic, {}).values():
                if partition.step is not None:
                    self._close_step(partition, at, topic_ended=True)

    # Small things

    def _availability(self, topic: TopicHistory) -> Row:
        until = self.history_until
        open_lost = [
            each for each in self.partitions.get(topic.topic, {}).values() if each.lost is not None
        ]
        lasted = [max(0, until - each.lost["from"]) for each in open_lost if each.lost is not None]
        outage_us = topic.outage_us + sum(lasted)
        noticing_us = topic.noticing_us + sum(
            each.lost["noticed_at"] - each.lost["from"]
            for each in open_lost
            if each.lost is not None
        )
        observed_us = (
            topic.known_us
            + topic.open_steps * until
            - topic.open_from_us
            + topic.earlier_from_us
            - topic.earlier * self.history_from
        )
        return {
            "topic": topic.topic,
            "partitions": topic.partitions,
            "affected": topic.affected + sum(each.outages == 0 for each in open_lost),
            "intervals": topic.intervals + len(open_lost),
            "seconds": outage_us / 1e6,
            "noticing_seconds": noticing_us / 1e6,
            "electing_seconds": (outage_us - noticing_us) / 1e6,
            "longest_seconds": max([topic.longest_us, *lasted]) / 1e6,
            "still_without_leader": len(open_lost),
            "observed_seconds": observed_us / 1e6,
            "availability": max(0.0, 1 - outage_us / observed_us) if observed_us > 0 else 1.0,
        }

    def _topic(self, name: str) -> TopicHistory:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicHistory(name)
        return found

    def _partition(self, topic: str, partition: int) -> PartitionHistory:
        of_topic = self.partitions.setdefault(topic, {})
        found = of_topic.get(partition)
        if found is None:
            found = of_topic[partition] = PartitionHistory(topic, partition)
        return found

    def _all(self) -> list[PartitionHistory]:
        return [each for of_topic in self.partitions.values() for each in of_topic.values()]

    def _put(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)

    def _led(self, at: int, broker: int, by: int) -> None:
        if broker >= 0:
            key = (at, broker)
            self.leader_changes[key] = self.leader_changes.get(key, 0) + by


_WITH_OPEN_ROWS: Final = (
    "timeline",
    "unavailability",
    "under_min_isr",
    "reassignments",
    "leadership_churn",
    "topic_life_cycles",
    "availability_by_topic",
)
_NEW_LIFE: Final[Row] = {
    "created_at": None,
    "created_with": None,
    "partitions_added": 0,
    "deletion_queued_at": None,
    "deletion_started_at": None,
    "deletion_pauses": 0,
    "ended_at": None,
    "end": None,
}


def missing_replicas(step: Row) -> int:
    """The number of replicas that are not in sync; 0 while the partition is being deleted."""
    if step["state"] == "deleting":
        return 0
    in_sync = len(step["isr"]) if step["leader"] >= 0 else 0
    return max(0, len(step["replicas"]) - in_sync)


def seconds(start: int | None, end: int | None) -> float | None:
    """The seconds between two times, or None if one of them is unknown."""
    return None if start is None or end is None else (end - start) / 1e6


def count_move(counts: dict[str, list[float]], row: Row) -> None:
    """Count a reassignment by its outcome; an empty outcome means that it goes on."""
    count, longest = counts.get(row["outcome"] or "", (0, 0.0))
    counts[row["outcome"] or ""] = [count + 1, max(longest, row["seconds"] or 0.0)]


def _outage_row(lost: Row, until: int | None = None, leader: int | None = None) -> Row:
    end = None if leader is None else "elected" if leader >= 0 else "topic_ended"
    return {
        **lost,
        "until": until,
        "seconds": seconds(lost["from"], until),
        "noticing_seconds": seconds(lost["from"], lost["noticed_at"]),
        "electing_seconds": seconds(lost["noticed_at"], until),
        "new_leader": leader,
        "end": end,
    }


def _under_row(under: Row) -> Row:
    return {**under, "seconds": seconds(under["from"], under["until"])}


def _life_row(life: Row) -> Row:
    began = life["deletion_queued_at"]
    if began is None:
        began = life["deletion_started_at"]
    return {**life, "deletion_seconds": seconds(began, life["ended_at"])}


def _count_election(partition: PartitionHistory, row: Row) -> None:
    churn = partition.churn
    if churn is None:
        churn = partition.churn = {
            "elections": 0,
            "changes": 0,
            **dict.fromkeys(ELECTION_KINDS, 0),
            "first_at": row["at"],
            "last_at": row["at"],
        }
    if row["new_leader"] >= 0:
        _remember(partition.leaders, row["new_leader"])
    churn["elections"] += 1
    churn["changes"] += row["new_leader"] >= 0 and row["new_leader"] != row["old_leader"]
    churn[row["kind"]] += 1
    churn["first_at"] = min(churn["first_at"], row["at"])
    churn["last_at"] = max(churn["last_at"], row["at"])


def _remember(ids: list[int], id: int) -> bool:
    """Add an id; return whether it is new."""
    is_new = id not in ids
    if is_new:
        ids.append(id)
    return is_new
