"""What requests about topics are refused with: Kafka's code and words."""

import pytest

from klamm.controller.requests.topic_checks import TopicRefusedError, check_expansion, check_name
from klamm.core.cluster import ClusterState, RegisteredBroker
from klamm.protocol.codes import ErrorCode


@pytest.fixture
def cluster() -> ClusterState:
    cluster = ClusterState()
    for broker in (1, 2, 3):
        cluster.brokers[broker] = RegisteredBroker(broker, epoch=broker)
    return cluster


@pytest.mark.parametrize(
    ("added", "more", "message"),
    [
        ({2: [9]}, 1, "Unknown broker(s) in replica assignment: 9."),
        ({2: [1]}, 2, "Increasing the number of partitions by 2 but 1 assignments provided."),
        ({2: []}, 1, "Cannot have replication factor of 0 for partition id 2."),
        (
            {2: [1, 2], 3: [3, 3]},
            2,
            "Duplicate brokers not allowed in replica assignment: 3, 3 for partition id 3.",
        ),
        (
            {2: [1], 3: [1, 2], 4: [1, 2, 3]},
            3,
            "Inconsistent replication factor between partitions, partition 0 has 2 while "
            "partitions [2, 4] have replication factors [1, 3], respectively.",
        ),
    ],
)
def test_partitions_that_cannot_be_added_are_named(cluster, added, more, message):
    with pytest.raises(TopicRefusedError) as refused:
        check_expansion(cluster.brokers, added, more, factor=2)
    assert (refused.value.code, str(refused.value)) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        message,
    )


def test_partitions_like_the_first_can_be_added(cluster):
    check_expansion(cluster.brokers, {2: [1, 3], 3: [2, 1]}, 2, factor=2)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
def test_names_that_no_topic_can_have_are_refused(name):
    with pytest.raises(TopicRefusedError, match="Topic name is invalid: ") as refused:
        check_name(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_other_names_are_fine(name):
    check_name(name)
