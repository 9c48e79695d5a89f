"""What brokers hear, and when, over real connections (section 16)."""

from collections.abc import Callable, Iterator

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.support.lab import Lab, Script
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

#: The versions of LeaderAndIsr, UpdateMetadata and StopReplica that go with a protocol.
VERSIONS = {
    "3.9": (7, 8, 4),
    "3.2": (6, 7, 3),
    "2.8": (5, 7, 3),
    "2.4": (4, 6, 2),
    "2.2": (2, 5, 1),
}


@pytest.fixture(scope="module")
def labs(new_lab: Callable[[], Lab]) -> dict[str, Lab]:
    """A cluster for each protocol, with brokers 1 to 3; all nodes start at the same time."""
    labs = {protocol: new_lab() for protocol in VERSIONS}
    for protocol, lab in labs.items():
        lab.add_brokers(1, 2, 3)
        lab.add_node(100, request_timeout_ms=1000, inter_broker_protocol_version=protocol)
    return labs


@pytest.fixture
def lab(labs: dict[str, Lab]) -> Iterator[Lab]:
    """The cluster of the newest protocol; brokers answer as they should, before and after."""
    lab = labs["3.9"]
    lab.wait_controller(100)
    yield lab
    for broker in lab.brokers.values():
        broker.script = Script()
        broker.release()


@pytest.mark.rule("CHAN-2", "CHAN-9", "CHAN-12", "CHAN-1")
def test_a_silent_broker_holds_up_nobody_but_itself(lab: Lab):
    lab.brokers[2].script.withheld = {ApiKey.LEADER_AND_ISR}
    lab.create_topic("silent", {0: [1, 2, 3]})
    lab.create_topic("silent-too", {0: [1, 2, 3]})
    for broker in (1, 3):
        wait_until(lambda b=broker: lab.brokers[b].told(ApiKey.UPDATE_METADATA, "silent-too", 0))
    wait_until(lambda: lab.brokers[2].told(ApiKey.LEADER_AND_ISR, "silent", 0))
    assert not lab.brokers[2].told(ApiKey.UPDATE_METADATA, "silent", 0)
    lab.brokers[2].release()
    wait_until(lambda: lab.brokers[2].told(ApiKey.UPDATE_METADATA, "silent-too", 0))
    order = [
        (request.api, topic)
        for request in lab.brokers[2].received
        for topic, _ in request.partitions()
        if topic.startswith("silent")
    ]
    # On a slow machine the unanswered request may have been sent again.
    assert list(dict.fromkeys(order)) == [
        (ApiKey.LEADER_AND_ISR, "silent"),
        (ApiKey.UPDATE_METADATA, "silent"),
        (ApiKey.LEADER_AND_ISR, "silent-too"),
        (ApiKey.UPDATE_METADATA, "silent-too"),
    ]


@pytest.mark.rule("CHAN-3", "CHAN-8")
def test_a_request_is_sent_again_until_it_is_answered(lab: Lab):
    broker = lab.brokers[1]
    broker.script.withheld = {ApiKey.LEADER_AND_ISR}
    lab.create_topic("patient", {0: [1, 2]})
    wait_until(lambda: len(broker.told(ApiKey.LEADER_AND_ISR, "patient", 0)) >= 3)
    told = broker.told(ApiKey.LEADER_AND_ISR, "patient", 0)
    assert all(each == told[0] for each in told)
    broker.release()
    wait_until(lambda: broker.told(ApiKey.UPDATE_METADATA, "patient", 0))


@pytest.mark.rule("CHAN-4", "CHAN-33", "LOGDIR-4")
def test_a_response_with_an_error_is_a_response(lab: Lab):
    broker, stale = lab.brokers[1], ErrorCode.STALE_CONTROLLER_EPOCH
    broker.script.top_error = {ApiKey.LEADER_AND_ISR: stale, ApiKey.UPDATE_METADATA: stale}
    lab.create_topic("refused", {0: [1, 2]})
    lab.create_topic("refused-too", {0: [1, 2]})
    wait_until(lambda: broker.told(ApiKey.UPDATE_METADATA, "refused-too", 0))
    assert len(broker.told(ApiKey.LEADER_AND_ISR, "refused", 0)) == 1
    log = lab.nodes[100]
    wait_until(lambda: "broker 1 responded to LeaderAndIsr with error 11" in log.log)
    wait_until(lambda: "broker 1 responded to UpdateMetadata with error 11" in log.log)


@pytest.mark.rule("CHAN-5", "BRK-1", "BRK-2", "BRK-4", "FENCE-9", "TRACE-12", "VER-9")
def test_a_bounced_broker_gets_a_new_channel_and_everything_again(lab: Lab):
    lab.create_topic("bounced", {0: [1, 2, 3]})
    broker = lab.brokers[3]
    first_epoch = broker.epoch
    broker.bounce()
    assert broker.epoch > first_epoch
    told = wait_until(
        lambda: [
            request.partitions()["bounced", 0]
            for request in list(broker.received)
            if request.api is ApiKey.LEADER_AND_ISR and request.body.broker_epoch == broker.epoch
        ]
    )
    assert (told[-1].leader, told[-1].leader_epoch, list(told[-1].isr)) == (1, 1, [1, 2])
    state = lab.state("bounced", 0)
    assert (state["leader"], state["leader_epoch"], state["isr"]) == (1, 1, [1, 2])


@pytest.mark.rule(
    "LOGDIR-1", "LOGDIR-2", "LOGDIR-3", "LOGDIR-5", "LOGDIR-6", "LOGDIR-8", "LOGDIR-9"
)
def test_a_failed_log_directory_moves_the_leadership_it_held(lab: Lab):
    lab.create_topic("disk", {0: [1, 2, 3], 1: [1, 2, 3]})
    lab.brokers[1].script.partition_error = {("disk", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    event = b'{"version":1,"broker":1,"event":1}'
    lab.zk.create("/log_dir_event_notification/log_dir_event_", event, sequence=True)
    state = lab.wait_state("disk", 0, lambda s: s["leader"] == 2)
    assert (state["isr"], state["leader_epoch"]) == ([2, 3], 1)
    assert lab.state("disk", 1)["leader"] == 1
    wait_until(lambda: not lab.zk.get_children("/log_dir_event_notification"))
    told = wait_until(
        lambda: [
            s for s in lab.brokers[2].told(ApiKey.UPDATE_METADATA, "disk", 0) if s.offline_replicas
        ]
    )
    assert list(told[-1].offline_replicas) == [1]


@pytest.mark.rule("CHAN-32", "CHAN-18", "CHAN-29", "VER-17", "VER-18")
@pytest.mark.parametrize("protocol", VERSIONS)
def test_versions_follow_the_inter_broker_protocol(labs: dict[str, Lab], protocol: str):
    lab = labs[protocol]
    lab.wait_controller(100)
    lab.create_topic("versioned", {0: [1, 2]})
    broker = lab.brokers[1]
    wait_until(lambda: broker.told(ApiKey.LEADER_AND_ISR, "versioned", 0))
    lab.zk.create("/admin/delete_topics/versioned")
    wait_until(lambda: not lab.zk.exists("/brokers/topics/versioned"))
    apis = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)
    versions = {(request.api, request.version) for request in broker.received}
    assert versions == set(zip(apis, VERSIONS[protocol], strict=True))
