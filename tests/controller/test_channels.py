"""What brokers hear, and when, over real connections (section 16)."""

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.controller.lab import Lab, wait_until

pytestmark = pytest.mark.real


@pytest.mark.rule("CHAN-2", "CHAN-9", "CHAN-12", "CHAN-1")
def test_a_silent_broker_holds_up_nobody_but_itself(lab: Lab):
    lab.start(brokers=3)
    lab.brokers[2].script.withheld = {ApiKey.LEADER_AND_ISR}
    lab.create_topic("t", {0: [1, 2, 3]})
    lab.create_topic("u", {0: [1, 2, 3]})
    for broker in (1, 3):
        wait_until(lambda b=broker: lab.brokers[b].told(ApiKey.UPDATE_METADATA, "u", 0))
    assert lab.brokers[2].told(ApiKey.LEADER_AND_ISR, "t", 0)
    assert not lab.brokers[2].told(ApiKey.UPDATE_METADATA, "t", 0)
    lab.brokers[2].release()
    wait_until(lambda: lab.brokers[2].told(ApiKey.UPDATE_METADATA, "u", 0))
    order = [
        (request.api, topic)
        for request in lab.brokers[2].received
        for topic, _ in request.partitions()
    ]
    assert order == [
        (ApiKey.LEADER_AND_ISR, "t"),
        (ApiKey.UPDATE_METADATA, "t"),
        (ApiKey.LEADER_AND_ISR, "u"),
        (ApiKey.UPDATE_METADATA, "u"),
    ]


@pytest.mark.rule("CHAN-3", "CHAN-8", "CONF-1")
def test_a_request_is_sent_again_until_it_is_answered(lab: Lab):
    lab.start(brokers=2, request_timeout_ms=300)
    lab.brokers[1].script.withheld = {ApiKey.LEADER_AND_ISR}
    lab.create_topic("t", {0: [1, 2]})
    told = wait_until(
        lambda: (
            len(lab.brokers[1].told(ApiKey.LEADER_AND_ISR, "t", 0)) >= 3
            and lab.brokers[1].told(ApiKey.LEADER_AND_ISR, "t", 0)
        )
    )
    assert all(each == told[0] for each in told)
    lab.brokers[1].release()
    wait_until(lambda: lab.brokers[1].told(ApiKey.UPDATE_METADATA, "t", 0))


@pytest.mark.rule("CHAN-4", "CHAN-33", "LOGDIR-4")
def test_an_answer_with_an_error_is_an_answer(lab: Lab):
    node = lab.start(brokers=2)
    stale = ErrorCode.STALE_CONTROLLER_EPOCH
    lab.brokers[1].script.top_error = {
        ApiKey.LEADER_AND_ISR: stale,
        ApiKey.UPDATE_METADATA: stale,
    }
    lab.create_topic("t", {0: [1, 2]})
    lab.create_topic("u", {0: [1, 2]})
    wait_until(lambda: lab.brokers[1].told(ApiKey.UPDATE_METADATA, "u", 0))
    assert len(lab.brokers[1].told(ApiKey.LEADER_AND_ISR, "t", 0)) == 1
    wait_until(lambda: "broker 1 answered UpdateMetadata with error 11" in node.log)


@pytest.mark.rule("CHAN-5", "BRK-2", "BRK-4", "FENCE-9", "TRACE-12", "VER-9")
def test_a_bounced_broker_gets_a_new_channel_and_everything_again(lab: Lab):
    lab.start(brokers=3)
    lab.create_topic("t", {0: [1, 2, 3]})
    broker = lab.brokers[3]
    first_epoch = broker.epoch
    # Gone and back before the controller looks: it is busy with a broker that does not answer.
    broker.leave()
    broker.register()
    wait_until(
        lambda: any(r.body.broker_epoch == broker.epoch for r in list(broker.received)),
        "a request for the new incarnation",
    )
    assert broker.epoch > first_epoch
    last = wait_until(
        lambda: [
            request.partitions()["t", 0]
            for request in list(broker.received)
            if request.api is ApiKey.LEADER_AND_ISR and request.body.broker_epoch == broker.epoch
        ]
    )[-1]
    state = lab.state("t", 0)
    assert (last.leader, last.leader_epoch, list(last.isr)) == (
        state["leader"], state["leader_epoch"], state["isr"],
    )  # fmt: skip
    assert state["isr"] == [1, 2]


@pytest.mark.rule(
    "LOGDIR-1", "LOGDIR-2", "LOGDIR-3", "LOGDIR-5", "LOGDIR-6", "LOGDIR-8", "LOGDIR-9"
)
def test_a_failed_log_directory_moves_the_leadership_it_held(lab: Lab):
    lab.start(brokers=3)
    lab.create_topic("t", {0: [1, 2, 3], 1: [1, 2, 3]})
    lab.brokers[1].script.partition_error = {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    event = b'{"version":1,"broker":1,"event":1}'
    lab.zk.create("/log_dir_event_notification/log_dir_event_", event, sequence=True)
    state = lab.wait_state("t", 0, lambda s: s["leader"] == 2)
    assert (state["isr"], state["leader_epoch"]) == ([2, 3], 1)
    assert lab.state("t", 1)["leader"] == 1
    wait_until(lambda: not lab.zk.get_children("/log_dir_event_notification"))
    told = wait_until(
        lambda: [
            s for s in lab.brokers[2].told(ApiKey.UPDATE_METADATA, "t", 0) if s.offline_replicas
        ]
    )
    assert list(told[-1].offline_replicas) == [1]


@pytest.mark.rule("CHAN-32", "CHAN-18", "CHAN-29", "VER-17", "VER-18")
@pytest.mark.parametrize(
    ("protocol", "leader_and_isr", "update_metadata", "stop_replica"),
    [("3.9", 7, 8, 4), ("3.2", 6, 7, 3), ("2.8", 5, 7, 3), ("2.4", 4, 6, 2), ("2.2", 2, 5, 1)],
)
def test_versions_follow_the_inter_broker_protocol(
    lab: Lab, protocol: str, leader_and_isr: int, update_metadata: int, stop_replica: int
):
    lab.start(brokers=2, inter_broker_protocol_version=protocol)
    lab.create_topic("t", {0: [1, 2]})
    broker = lab.brokers[1]
    wait_until(lambda: broker.told(ApiKey.LEADER_AND_ISR, "t", 0))
    lab.zk.create("/admin/delete_topics/t")
    wait_until(lambda: not lab.zk.exists("/brokers/topics/t"))
    versions = {(request.api, request.version) for request in broker.received}
    assert versions == {
        (ApiKey.LEADER_AND_ISR, leader_and_isr),
        (ApiKey.UPDATE_METADATA, update_metadata),
        (ApiKey.STOP_REPLICA, stop_replica),
    }
