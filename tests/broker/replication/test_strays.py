"""Stray replicas; that a whole cluster gets rid of them is shown by tests/simulation."""

import uuid
from dataclasses import dataclass

from klamm.broker.replication.strays import find_strays
from klamm.names import TopicPartition
from klamm.zookeeper.znodes import NO_PARTITIONS, TopicAssignment

THIS, OTHER = 1, 2
TOPIC_ID, OLDER_ID = uuid.UUID(int=7), uuid.UUID(int=6)


@dataclass
class Replica:
    """What is looked at of a log."""

    partition: TopicPartition
    topic_id: uuid.UUID | None = TOPIC_ID


def replicas(*partitions: int, topic_id: uuid.UUID | None = TOPIC_ID) -> list[Replica]:
    return [Replica(TopicPartition("orders", each), topic_id) for each in partitions]


def strays(logs: list[Replica], assignment: TopicAssignment) -> list[int]:
    return sorted(each.partition for each in find_strays(logs, assignment, THIS))


def test_a_replica_that_is_assigned_here_is_not_stray():
    assignment = TopicAssignment(TOPIC_ID, {0: [OTHER, THIS], 1: [THIS]})
    assert strays(replicas(0, 1), assignment) == []


def test_a_replica_that_a_reassignment_took_away_is_stray():
    assignment = TopicAssignment(TOPIC_ID, {0: [OTHER], 1: [THIS]})
    assert strays(replicas(0, 1), assignment) == [0]


def test_all_replicas_of_a_deleted_topic_are_stray():
    assert strays(replicas(0, 1), NO_PARTITIONS) == [0, 1]


def test_a_replica_of_an_older_topic_of_the_same_name_is_stray():
    assignment = TopicAssignment(TOPIC_ID, {0: [THIS]})
    assert strays(replicas(0, topic_id=OLDER_ID), assignment) == [0]


def test_a_replica_or_a_topic_without_an_id_goes_by_its_name():
    assert strays(replicas(0, topic_id=None), TopicAssignment(TOPIC_ID, {0: [THIS]})) == []
    assert strays(replicas(0), TopicAssignment(None, {0: [THIS]})) == []
