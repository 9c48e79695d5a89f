"""What a cluster looks like some time after the last fault, and whether it kept its promises."""

from collections.abc import Iterator
from typing import Any

from klamm.broker.log.log import Log
from klamm.broker.replication.partition import Role
from klamm.names import CONSUMER_OFFSETS, TopicPartition
from klamm.protocol.records import iterate_batches, iterate_records
from klamm.zookeeper import znodes
from tests.simulation.checks import Story
from tests.simulation.world import World


def ailments(world: World) -> Iterator[str]:
    """What keeps the cluster from being healthy."""
    nodes = world.zookeeper._nodes
    for number, machine in world.machines.items():
        if not machine.is_up:
            yield f"broker {number} is not running"
        elif not world.is_registered(number):
            yield f"broker {number} is not registered"
    if "/controller" not in nodes:
        yield "there is no controller"
    if "/admin/reassign_partitions" in nodes:
        yield "/admin/reassign_partitions is still there"
    topics = sorted(nodes["/brokers/topics"].children)
    partitions: dict[str, set[int]] = {}
    for topic in topics:
        assignment = znodes.decode_topic(topic, nodes[f"/brokers/topics/{topic}"].data)
        if any(assignment.adding.values()) or any(assignment.removing.values()):
            yield f"{topic} is being moved"
        partitions[topic] = set(assignment.partitions)
        for partition, replicas in assignment.partitions.items():
            yield from _of_partition(world, topic, partition, tuple(replicas))
            yield from _of_metadata(world, TopicPartition(topic, partition))
    if nodes["/admin/delete_topics"].children:
        yield f"{sorted(nodes['/admin/delete_topics'].children)} are still to be deleted"
    yield from _of_deleted_partitions(world, partitions)
    yield from _of_disks(world, set(topics))


def _of_partition(
    world: World, topic: str, partition: int, replicas: tuple[int, ...]
) -> Iterator[str]:
    name = f"{topic}-{partition}"
    story = world.checks.current_story(topic, partition)
    if story is None or story.leader < 0:
        yield f"{name} has no leader"
        return
    if set(story.isr) != set(replicas):
        yield f"{name} has replicas {list(replicas)}, but in sync are {list(story.isr)}"
    logs = {broker: world.checks.log_of(broker, topic, partition) for broker in replicas}
    for broker, log in logs.items():
        if log is None:
            yield f"{name} has no replica on {broker}"
            continue
        hosted = _hosted(world, broker, log)
        role = Role.LEADER if broker == story.leader else Role.FOLLOWER
        if hosted is None or hosted.role is not role or hosted.leader_epoch != story.epoch:
            yield f"{name} on {broker} is {hosted}, not {role.name} under epoch {story.epoch}"
    present = [log for log in logs.values() if log is not None]
    ends = {(log.end_offset, log.high_watermark) for log in present}
    # Groups go on committing; everybody else has stopped.
    if topic != CONSUMER_OFFSETS and (len(ends) > 1 or any(end != high for end, high in ends)):
        yield f"{name} ends at {sorted(ends)}"


def _of_metadata(world: World, name: TopicPartition) -> Iterator[str]:
    """Every broker tells clients of every partition, with the leader that ZooKeeper names."""
    story = world.checks.current_story(name.topic, name.partition)
    for number, machine in world.machines.items():
        node: Any = machine.node
        if story is None or not machine.is_up or not hasattr(node, "_broker"):
            continue
        known = node._broker.metadata.snapshot.partition(name)
        if known is None:
            yield f"broker {number} has not heard of {name}"
        elif (known.leader, known.leader_epoch) != (story.leader, story.epoch):
            yield (
                f"broker {number} takes {known.leader} for the leader of {name} under epoch "
                f"{known.leader_epoch}, not {story.leader} under epoch {story.epoch}"
            )


def _hosted(world: World, broker: int, log: Log) -> Any:
    node: Any = world.machines[broker].node
    return node._broker.data.replicas._partitions.get(log.partition)


def _of_deleted_partitions(world: World, topics: dict[str, set[int]]) -> Iterator[str]:
    """No broker tells its clients of a partition that there is not."""
    for number, machine in world.machines.items():
        node: Any = machine.node
        if not machine.is_up or not hasattr(node, "_broker"):
            continue
        for topic in node._broker.metadata.snapshot.topics():
            told = {each.partition for each in topic.partitions()}
            for partition in sorted(told - topics.get(topic.name, set())):
                yield f"broker {number} tells of {topic.name}-{partition}, which is gone"


def _of_disks(world: World, topics: set[str]) -> Iterator[str]:
    """No broker has a replica of a topic that was deleted, nor one that it is not assigned."""
    for number, machine in world.machines.items():
        node: Any = machine.node
        if not machine.is_up or not hasattr(node, "_broker"):
            continue
        for log in node._broker.data.logs.logs():
            is_gone = log.partition.topic not in topics
            if is_gone or number not in world.checks.story_of(log).replicas:
                yield f"broker {number} still has {log.partition}"


def broken_promises(world: World) -> Iterator[str]:
    """What clients were told that is not so, once the cluster is healthy again."""
    for (_, partition), story in sorted(world.checks.stories.items()):
        topic = story.name.rpartition("-")[0]
        if topic in world.checks.unclean_topics or not story.acknowledged:
            continue
        if world.checks.current_story(topic, partition) is not story:
            continue
        for broker in story.isr:
            log = world.checks.log_of(broker, topic, partition)
            if log is not None:
                yield from _of_replica(story, broker, log)


def _of_replica(story: Story, broker: int, log: Log) -> Iterator[str]:
    records = dict(_records(log))
    for offset, value in story.acknowledged.items():
        if records.get(offset) != value:
            yield (
                f"{story.name} on {broker}: {value!r} was acknowledged at {offset}, but there is "
                f"{records.get(offset)!r}"
            )
            return
    for offset, value in story.read.items():
        if records.get(offset) != value:
            yield (
                f"{story.name} on {broker}: {value!r} was read at {offset}, but there is "
                f"{records.get(offset)!r}"
            )
            return
    yield from _of_order(story, broker, records)


def _of_order(story: Story, broker: int, records: dict[int, bytes]) -> Iterator[str]:
    """An idempotent producer's records come once each and in order."""
    last: dict[str, int] = {}
    for offset in sorted(records):
        producer, _, number = records[offset].decode().partition("/")
        if not producer.startswith("idempotent"):
            continue
        if int(number) <= last.get(producer, 0):
            yield (
                f"{story.name} on {broker}: {producer}/{number} at {offset} comes after "
                f"{producer}/{last[producer]}"
            )
            return
        last[producer] = int(number)


def _records(log: Log) -> Iterator[tuple[int, bytes]]:
    offset = log.start_offset
    while offset < log.end_offset:
        content = log.read(offset, 1 << 20, log.end_offset, at_least_one=True).bytes()
        before = offset
        for batch in iterate_batches(content, may_end_early=True):
            for record in iterate_records(batch):
                yield record.offset, record.value or b""
            offset = batch.header.last_offset + 1
        if offset == before:
            return
