"""Topics that appear, grow or vanish in ZooKeeper."""

from collections.abc import Iterable, Mapping

import numpy as np

from klamm.core.cluster import Topic, TopicRead
from klamm.core.columns import I32, is_one_of
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    NewTopicIds,
    Procedure,
    ReadPartitionChildren,
    ReadTopicNames,
    ReadTopics,
    WriteOutcome,
    WriteTopic,
    WriteTopics,
)
from klamm.core.procedures.partitions import Strategy, change_partition_states
from klamm.core.procedures.replicas import change_replica_states
from klamm.core.transitions import PartitionState, ReplicaState


def on_topic_change(ctx: Context) -> Procedure[None]:
    """Add topics that are new in ZooKeeper and remove those that vanished (TOPIC-1..10)."""
    cluster = ctx.cluster
    names: set[str] = yield ReadTopicNames()
    vanished = sorted(cluster.topics.keys() - names)
    if vanished:
        ctx.say(LoggerName.CONTROLLER, Level.WARNING, f"topics vanished: {vanished}")
        for name in vanished:
            cluster.remove_topic(name)
    new = sorted(names - cluster.topics.keys())
    if new:
        reads: dict[str, TopicRead] = yield ReadTopics(new)
        ctx.say(LoggerName.CONTROLLER, Level.INFO, f"new topics: {new}")
        rows = yield from add_topics(ctx, reads)
        yield from create_partitions(ctx, rows)


def add_topics(ctx: Context, reads: Mapping[str, TopicRead]) -> Procedure[I32]:
    """Add topics and their partitions to the cluster state; those without an id get one (TOPIC-4).

    A topic with the id of another topic is left out. A topic without partitions may be an
    unreadable znode, which is not overwritten with an id.
    """
    cluster = ctx.cluster
    known = {}
    for name, read in reads.items():
        owner = cluster.topic_names.get(read.topic_id) if read.topic_id else None
        if owner is None:
            cluster.add_topic(name, read.topic_id)
            known[name] = read
        else:
            text = f"topic {name} is ignored: its id {read.topic_id} is that of {owner}"
            ctx.say(LoggerName.CONTROLLER, Level.ERROR, text)
    rows = cluster.add_partitions(known)
    if ctx.settings.topic_ids:
        yield from _give_ids(
            ctx, [name for name, read in known.items() if read.replicas and read.topic_id is None]
        )
    return rows


def _give_ids(ctx: Context, names: list[str]) -> Procedure[None]:
    if not names:
        return
    cluster = ctx.cluster
    ids: list[str] = yield NewTopicIds(len(names))
    outcomes: list[WriteOutcome] = yield WriteTopics(
        [
            WriteTopic(name, topic_id, cluster.assignments(name))
            for name, topic_id in zip(names, ids, strict=True)
        ]
    )
    for name, topic_id, outcome in zip(names, ids, outcomes, strict=True):
        if outcome == WriteOutcome.DONE:
            cluster.set_topic_id(name, topic_id)
        else:
            ctx.say(LoggerName.CONTROLLER, Level.ERROR, f"topic {name} did not get an id")


def create_partitions(ctx: Context, rows: I32) -> Procedure[None]:
    """Bring new partitions online (TOPIC-6..9)."""
    yield from replace_controller_only(ctx, rows)
    yield from change_partition_states(ctx, rows, PartitionState.NEW)
    row, broker = ctx.cluster.replicas_of(rows)
    yield from change_replica_states(ctx, row, broker, ReplicaState.NEW)
    yield from change_partition_states(ctx, rows, PartitionState.ONLINE, Strategy.OFFLINE)
    yield from change_replica_states(ctx, row, broker, ReplicaState.ONLINE)


def on_partition_modifications(ctx: Context, name: str) -> Procedure[None]:
    """Add the new partitions of a topic; other changes of its znode are ignored (TOPIC-11..16)."""
    cluster = ctx.cluster
    reads: dict[str, TopicRead] = yield ReadTopics([name])
    topic = cluster.topics.get(name)
    if topic is None:
        return
    read = reads[name]
    if topic.id is None and read.topic_id is not None and read.topic_id not in cluster.topic_names:
        cluster.set_topic_id(name, read.topic_id)
    added = sorted(read.replicas.keys() - set(topic.numbers.tolist()))
    if not added:
        return
    if name in cluster.queued_for_deletion:
        yield from _refuse_expansion(ctx, topic, read)
        return
    ctx.say(LoggerName.CONTROLLER, Level.INFO, f"new partitions of {name}: {added}")
    rows = cluster.add_partitions({name: read.only(added)})
    yield from create_partitions(ctx, rows)


def _refuse_expansion(ctx: Context, topic: Topic, read: TopicRead) -> Procedure[None]:
    """Restore the assignment of a topic that is being deleted, without the added partitions
    (TOPIC-14).
    """
    existing: set[int] = yield ReadPartitionChildren(topic.name)
    known = ctx.cluster.assignments(topic.name)
    kept = existing & read.replicas.keys() & known.keys()
    ctx.say(LoggerName.CONTROLLER, Level.ERROR, f"{topic.name} is being deleted and cannot grow")
    yield WriteTopic(topic.name, topic.id, {number: known[number] for number in sorted(kept)})


# Nodes that hold no data


def replace_controller_only(ctx: Context, rows: I32) -> Procedure[None]:
    """Replace nodes without the broker role in the replica lists of new partitions.

    Brokers of Apache Kafka do not know such nodes and may place replicas there, which would stay
    offline. Each such replica goes to the broker with the fewest replicas, in another rack if
    possible, and keeps its place in the list. Where no broker is left the list gets shorter, but
    never empty.
    """
    cluster = ctx.cluster
    idle = [id for id, broker in cluster.brokers.items() if broker.controller_only]
    if not idle:
        return
    touched = rows[is_one_of(cluster.replicas[rows], idle).any(axis=1)]
    if not len(touched):
        return
    load = _replicas_by_broker(ctx)
    replaced = {}
    for row in touched.tolist():
        assignment = cluster.assignment(row)
        replicas = _without(ctx, assignment.replicas, set(idle), load)
        if replicas:
            replaced[row] = type(assignment)(replicas)
    text = "replicas on nodes that only compete for the controller's role are moved"
    ctx.say_of(LoggerName.CONTROLLER, Level.WARNING, touched, text)
    for topic, of_topic in cluster.topics_by_row(np.array(list(replaced), np.int32)):
        content = cluster.assignments(topic.name)
        for row in of_topic.tolist():
            content[int(cluster.partition[row])] = replaced[row]
        outcome: WriteOutcome = yield WriteTopic(topic.name, topic.id, content)
        if outcome == WriteOutcome.DONE:
            for row in of_topic.tolist():
                cluster.set_assignment(row, replaced[row])


def _replicas_by_broker(ctx: Context) -> dict[int, int]:
    """How many replicas each live broker that holds data has."""
    cluster = ctx.cluster
    brokers, counts = np.unique(cluster.replicas[cluster.all_rows()], return_counts=True)
    held = dict(zip(brokers.tolist(), counts.tolist(), strict=True))
    able = [id for id in cluster.live if not cluster.brokers[id].controller_only]
    return {id: held.get(id, 0) for id in able}


def _without(
    ctx: Context, replicas: Iterable[int], idle: set[int], load: dict[int, int]
) -> tuple[int, ...]:
    """The list with another broker in the place of each idle one; updates `load`."""
    cluster = ctx.cluster
    chosen = list(replicas)
    for slot, broker in enumerate(chosen):
        if broker not in idle:
            continue
        others = set(chosen) - idle
        racks = {cluster.brokers[id].rack for id in others & cluster.brokers.keys()} - {None}
        candidates = sorted(
            load.keys() - others, key=lambda id: (cluster.brokers[id].rack in racks, load[id], id)
        )
        if candidates:
            chosen[slot] = candidates[0]
            load[candidates[0]] += 1
    return tuple(broker for broker in chosen if broker not in idle)
