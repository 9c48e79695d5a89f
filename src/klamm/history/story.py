"""What the controller decided about a partition, and why, in plain sentences."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import ConfigError, KlammError
from klamm.history.records import (
    ASKED_BY,
    CLEAN,
    CONTROLLED_SHUTDOWN,
    CREATED,
    EPOCH_RAISED,
    ISR_CHANGED,
    NOBODY,
    PREFERRED,
    REASSIGNMENT,
    REPLICA_OFFLINE,
    UNCLEAN,
)
from klamm.history.spool import read_spool

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.history.partition_events import Gap, Row

DEFAULT_TOPIC: Final = "__klamm_history"

#: The cause of an event that names no broker and begins no controller term.
_REASONS: Final = {
    "TopicChange": "topics appeared or vanished in ZooKeeper",
    "PartitionModifications": "the topic's partitions were changed in ZooKeeper",
    "TopicDeletion": "the topic is to be deleted",
    "ZkReassignment": "a reassignment was asked for in ZooKeeper",
    "ApiReassignment": "a reassignment was asked for",
    "ReassignmentIsrChange": "a leader changed an ISR during a reassignment",
    "ZkPreferredElection": "preferred leaders were asked for in ZooKeeper",
    "ElectLeaders": "an election was asked for",
    "AutoRebalance": "leaders are being rebalanced",
    "IsrChangeNotification": "its leader said in ZooKeeper that the ISR had changed",
    "LogDirEventNotification": "a broker lost a log directory",
    "UncleanElectionEnabled": "unclean elections were switched on",
    "TopicUncleanElectionEnabled": "unclean elections were switched on for the topic",
}
_REASONS_WITH_BROKER: Final = {
    "AlterPartition": "broker {} asked for an ISR",
    "ControlledShutdown": "broker {} asked to shut down",
    "LeaderAndIsrAnswered": "broker {} said which partitions it can serve",
    "StopReplicaAnswered": "broker {} answered about replicas to be deleted",
    "BrokerModifications": "broker {} changed its registration",
}
_BROKER_CHANGES: Final = {
    "started": "broker {} appeared",
    "failed": "broker {} disappeared",
    "bounced": "broker {} came back with a new registration",
    "shutting_down": "broker {} asked to shut down",
}
_STATE: Final = "leader epoch {epoch}, ISR {isr}"
_DECISIONS: Final = {
    CREATED: f"{{name}} was created with {{leader}}, {_STATE}",
    CLEAN: f"{{name}} got {{leader}}{{was}}, {_STATE}",
    UNCLEAN: f"{{name}} got {{leader}}{{was}} although it was not in sync, so that records may be "
    f"lost, {_STATE}",
    PREFERRED: f"{{name}} went back to its preferred {{leader}}{{was}}, {_STATE}",
    REASSIGNMENT: f"{{name}} got {{leader}}{{was}} from among its new replicas, {_STATE}",
    CONTROLLED_SHUTDOWN: f"{{name}} was handed over to {{leader}}{{was}}, {_STATE}",
    REPLICA_OFFLINE: f"a replica of {{name}} went offline{{change}}: {{leader}}{{was}}, {_STATE}",
    ISR_CHANGED: "the ISR of {name} became {isr}{change}",
    EPOCH_RAISED: f"{{name}} kept {{leader}} under a new epoch, {_STATE}",
    NOBODY: "nobody could be elected for {name}, it has {leader}{was}: ISR {isr} of replicas "
    "{replicas}",
}
_OTHER_DECISION: Final = f"{{name}}: {{kind}}, {{leader}}{{was}}, {_STATE}"
_TOPIC_CHANGES: Final = {
    "deletion_queued": "the deletion of topic {} was accepted",
    "deletion_started": "the deletion of topic {} began",
    "deletion_paused": "the deletion of topic {} has to wait",
    "deleted": "topic {} was deleted",
    "vanished": "topic {} was gone from ZooKeeper",
}
_NEW_PARTITIONS: Final = {
    "created": "topic {} was created, partitions: {}",
    "expanded": "topic {} was expanded, new partitions: {}",
}
#: Up to this many decisions or moves of an event are told one by one, more are counted.
TOLD_ONE_BY_ONE: Final = 3
_REFUSALS: Final = {
    "bad_version": "ZooKeeper had a newer state, so it was read and decided again",
    "no_node": "its state was gone from ZooKeeper",
    "exists": "ZooKeeper had a state of it already",
    "failed": "ZooKeeper did not carry it out",
}


def story(events: "Iterable[Row | Gap]", topic: str, partition: int) -> Iterator[str]:
    """A sentence for each event about the partition, and for each gap."""
    return (text for _, text in _told(events, f"{topic}-{partition}"))


def _told(events: "Iterable[Row | Gap]", name: str) -> "Iterator[tuple[Row | Gap, str]]":
    for entry in events:
        if not isinstance(entry, dict):
            yield entry, _gap(entry)
        elif entry["term"] or _clauses(entry, name):
            yield entry, _sentence(entry, name)


def run(
    name: str | None,
    *,
    transactional_id: str | None = None,
    spools: Sequence[Path] = (),
    bootstrap_servers: str = "127.0.0.1:9092",
    history_topic: str = DEFAULT_TOPIC,
    security: ClientSecurity = PLAINTEXT,
    as_json: bool = False,
    write: Callable[[str], Any] = print,
) -> None:
    """Tell the story of TOPIC-PARTITION or of a transactional id; of neither: who asked for what.

    It comes from spools, or else from the history topics. As JSON it is a list: each event with its
    columns, or each record of a broker with its fields (docs/history.md), and the sentence as
    `text`. In the story of a partition a gap has `gap` and `text` only, and an administrative
    request about the topic `request` and `text`.
    """
    from klamm.history.broker_story import read_broker_rows, requests_about, transaction_story

    _check_spools(spools)
    events: list[dict[str, Any]] = []
    if name is not None:
        batches = (
            _from_spools(spools)
            if spools
            else _from_topic(bootstrap_servers, history_topic, security)
        )
        events = _rows(_told(_events(batches, name), name))
    rows = read_broker_rows(spools, bootstrap_servers, history_topic, security)
    if transactional_id is not None:
        entries = transaction_story(rows, transactional_id)
    elif name is None:
        entries = requests_about(rows)
    else:
        entries = with_requests(events, requests_about(rows, split_name(name)[0]))
    _show(entries, as_json, write)


def _show(entries: Sequence[dict[str, Any]], as_json: bool, write: Callable[[str], Any]) -> None:
    if as_json:
        write(orjson.dumps(entries, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())
        return
    for entry in entries:
        write(entry["text"])


def with_requests(
    events: list[dict[str, Any]], asked: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The events in their order, with each request before the first event that came after it."""
    merged: list[dict[str, Any]] = []
    requests = deque(asked)
    for entry in events:
        while requests and "at" in entry and _moment(requests[0]) <= entry["at"]:
            merged.append({"request": requests[0], "text": requests.popleft()["text"]})
        merged.append(entry)
    merged += ({"request": each, "text": each["text"]} for each in requests)
    return merged


def _moment(request: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(request["at"])


def story_rows(batches: "Iterable[pa.RecordBatch]", name: str) -> list[dict[str, Any]]:
    """The entries of the story of TOPIC-PARTITION, as `klamm story --json` has them."""
    return _rows(_told(_events(batches, name), name))


def stories_since(
    spools: Sequence[Path], names: Iterable[str], since: datetime
) -> dict[str, list[str]]:
    """The sentences about each TOPIC-PARTITION from a moment on; those without any are left out."""
    batches = list(_from_spools(spools))
    found: dict[str, list[str]] = {}
    for name in names:
        try:
            rows = story_rows(batches, name)
        except KlammError:
            continue
        sentences = [row["text"] for row in rows if "gap" not in row and row["at"] >= since]
        if sentences:
            found[name] = sentences
    return found


def _events(batches: "Iterable[pa.RecordBatch]", name: str) -> "list[Row | Gap]":
    from klamm.history.partition_events import read_partition_events

    topic, partition = split_name(name)
    events = list(read_partition_events(batches, topic, partition))
    if not any(isinstance(entry, dict) and _clauses(entry, name) for entry in events):
        raise KlammError(f"The history says nothing about {name}.")
    return events


def _rows(told: "Iterable[tuple[Row | Gap, str]]") -> list[dict[str, Any]]:
    return [
        entry | {"text": text} if isinstance(entry, dict) else {"gap": asdict(entry), "text": text}
        for entry, text in told
    ]


def event_sentence(row: "Row", decisions: "Sequence[Row]", total: int) -> str:
    """An event in a sentence: why it came, and what was decided, one by one or counted.

    `decisions` are the first of the event's decisions, `total` says how many there are.
    """
    clauses = [_reason(row)]
    if total <= TOLD_ONE_BY_ONE:
        clauses += [_decision(each, f"{each['topic']}-{each['partition']}") for each in decisions]
    else:
        clauses.append(f"{total:,} decisions about partitions")
    moves = row["moves"]
    if len(moves) <= TOLD_ONE_BY_ONE:
        clauses += [_move(each, f"{each['topic']}-{each['partition']}") for each in moves]
    else:
        clauses.append(f"{len(moves):,} moves: {moves[0]['phase']}")
    for change in row["topic_changes"]:
        text = _TOPIC_CHANGES.get(change["change"]) or _NEW_PARTITIONS[change["change"]]
        clauses.append(text.format(change["topic"], change["partitions"]))
    text = "; ".join(clauses)
    if row["outcome"] != "done":
        text += f"; the event was not carried through ({row['outcome']})"
    return text[:1].upper() + text[1:] + "."


def split_name(name: str) -> tuple[str, int]:
    """`orders-0` as topic and partition; the topic may have hyphens itself."""
    topic, hyphen, number = name.rpartition("-")
    if not (topic and hyphen and number.isdecimal()):
        raise ConfigError(
            f"{name} is not a partition; expected is TOPIC-PARTITION, as in orders-0, or "
            "--transactional-id ID"
        )
    return topic, int(number)


def _from_spools(spools: Sequence[Path]) -> "Iterator[pa.RecordBatch]":
    for directory in spools:
        yield from read_spool(directory)


def _check_spools(spools: Sequence[Path]) -> None:
    for directory in spools:
        if not directory.is_dir():
            raise ConfigError(
                f"There is no spool {directory}; klamm.history.dir says where each node has its own"
            )


def _from_topic(
    bootstrap_servers: str, history_topic: str, security: ClientSecurity
) -> "Iterator[pa.RecordBatch]":
    from klamm.history.topic import read_topic

    return read_topic(bootstrap_servers, history_topic, security)


# Sentences


def _sentence(row: "Row", name: str) -> str:
    at: datetime = row["at"]
    head = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
    text = "; ".join([_reason(row), *_clauses(row, name)])
    if row["outcome"] != "done":
        text += f"; the event was not carried through ({row['outcome']})"
    return f"{head} epoch {row['controller_epoch']} #{row['seq']}: {text}."


def _gap(gap: "Gap") -> str:
    if gap.last is None:
        return f"(Nothing is known of controller epoch {gap.controller_epoch}.)"
    events = f"#{gap.first}" if gap.first == gap.last else f"#{gap.first} to #{gap.last}"
    return f"(Missing from the history, at least in part: epoch {gap.controller_epoch} {events}.)"


def _reason(row: "Row") -> str:
    if row["term"] == "began":
        return f"broker {row['controller']} became controller"
    if row["term"] == "ended":
        return f"broker {row['controller']} gave up being controller ({row['cause']})"
    changes = [
        _BROKER_CHANGES[change["change"]].format(change["broker"])
        for change in row["broker_changes"]
        if change["change"] in _BROKER_CHANGES
    ]
    if changes:
        return ", ".join(changes)
    kind: str = row["kind"]
    if kind in _REASONS_WITH_BROKER and row["brokers"]:
        return _REASONS_WITH_BROKER[kind].format(row["brokers"][0])
    cause, asked_by, requester = str(row["cause"]).partition(ASKED_BY)
    return f"{_REASONS.get(kind) or cause}{asked_by}{requester}"


def _clauses(row: "Row", name: str) -> list[str]:
    """One clause for each decision about the partition and its topic."""
    return [
        *(_decision(decision, name) for decision in row["decisions"]),
        *(_move(move, name) for move in row["moves"]),
        *(
            _TOPIC_CHANGES[change["change"]].format(change["topic"])
            for change in row["topic_changes"]
            if change["change"] in _TOPIC_CHANGES
        ),
    ]


def _decision(decision: "Row", name: str) -> str:
    old, new = decision["old_leader"], decision["leader"]
    text = _DECISIONS.get(decision["kind"], _OTHER_DECISION).format(
        name=name,
        kind=decision["kind"],
        leader=f"leader {new}" if new >= 0 else "no leader",
        was=f" (was {old})" if old not in (-1, new) else "",
        epoch=decision["leader_epoch"],
        isr=_ids(decision["isr"]),
        change=_isr_change(decision),
        replicas=_ids(decision["replicas"]),
    )
    if decision["outcome"] != "done":
        return f"refused: {text}, because {_REFUSALS[decision['outcome']]}"
    return text


def _isr_change(decision: "Row") -> str:
    old, new = decision["old_isr"], decision["isr"]
    joined, left = [b for b in new if b not in old], [b for b in old if b not in new]
    parts = []
    if joined:
        parts.append(f"{_ids(joined)} joined")
    if left:
        parts.append(f"{_ids(left)} left")
    return f" ({', '.join(parts)})" if parts else ""


def _move(move: "Row", name: str) -> str:
    replicas, adding, removing = move["replicas"], move["adding"], move["removing"]
    match move["phase"]:
        case "completed":
            return f"the move of {name} is complete: replicas {_ids(replicas)}"
        case "cancelled":
            return f"the move of {name} was cancelled: replicas {_ids(replicas)}"
        case "dropped":
            return f"the move of {name} ended with its topic"
        case phase:
            target = [id for id in replicas if id not in removing]
            how = {"started": "is to move", "replaced": "is now to move"}.get(phase, "is moving")
            return (
                f"{name} {how} to replicas {_ids(target)} (adding {_ids(adding)}, removing "
                f"{_ids(removing)})"
            )


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "nobody"
