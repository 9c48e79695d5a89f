"""Controllers that lose the role, the connection or the session at a bad moment, on real parts."""

import json

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from tests.known_bugs.stage import Stage
from tests.support.lab import topic_znode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


# Stale controller after the end of its session, with requests in flight


@pytest.mark.rule("ELEC-15", "ELEC-16", "RESIGN-1", "CHAN-5", "FENCE-9")
def test_requests_in_flight_are_lost_with_the_session_of_the_controller_that_sent_them(
    stage: Stage,
):
    """KAFKA-3083: a controller without a session went on telling brokers what it had decided."""
    stale, broker = stage.holder(), stage.brokers[2]
    broker.script.withheld = {ApiKey.LEADER_AND_ISR}
    stage.create_topic("in-flight", {0: [1, 2]})
    wait_until(lambda: broker.told(ApiKey.LEADER_AND_ISR, "in-flight", 0))
    stale_epoch = stage.epoch
    # Behind the request that is not answered, an UpdateMetadata waits.
    assert not broker.told(ApiKey.UPDATE_METADATA, "in-flight", 0)
    resignations = stale.log.count("resigned")
    stage.proxies[stale.id].expire()
    wait_until(lambda: stage.epoch == stale_epoch + 1)
    wait_until(lambda: stale.log.count("resigned") > resignations)
    heard = len(broker.received)
    broker.release()
    # Its rival, or itself with a new session.
    stage.holder()
    stage.wait_known("in-flight")
    late = [r for r in broker.received[heard:] if r.body.controller_epoch == stale_epoch]
    assert late == []
    # It takes part again, with a registration of its new session.
    stage.wait_registered(stale.id)


@pytest.mark.rule("ELEC-17", "ELEC-11", "ZK-9")
def test_sessions_may_end_again_and_again(stage: Stage):
    """KAFKA-4229, KAFKA-5473, KAFKA-7165: after some ends nobody could be controller any more."""
    for _ in range(3):
        holder, epoch = stage.holder(), stage.epoch
        before = stage.zk.exists(f"/brokers/ids/{holder.id}").czxid
        stage.proxies[holder.id].expire()
        wait_until(
            lambda n=holder, z=before: (
                (stat := stage.zk.exists(f"/brokers/ids/{n.id}")) and stat.czxid > z
            )
        )
        # Either may win: the other may still be coming back from the last expiry.
        wait_until(lambda e=epoch: stage.epoch > e, "the next term")
        stage.holder()


@pytest.mark.rule("ELEC-15", "ELEC-7")
def test_when_both_sessions_end_at_once_there_is_a_controller_again(stage: Stage):
    before = stage.epoch
    for proxy in stage.proxies.values():
        proxy.expire()
    wait_until(lambda: stage.epoch > before)
    stage.wait_registered(100, 101)
    stage.holder()
    stage.create_topic("after-both", {0: [1, 2]})


# Controller moved between two steps


@pytest.mark.rule("CHAN-14", "FENCE-4", "EVT-8", "DEL-33")
def test_a_controller_fenced_in_the_middle_of_a_deletion_wins_the_role_back_and_completes_it(
    stage: Stage,
):
    """Seen on 3.9.1: its state machines kept what they had not sent, and failed ever after."""
    stage.create_topic("halfway", {0: [1, 2]})
    stage.brokers[2].script.withheld = {ApiKey.STOP_REPLICA}
    stage.zk.create("/admin/delete_topics/halfway")
    wait_until(lambda: stage.brokers[2].told(ApiKey.STOP_REPLICA, "halfway", 0))
    moved_on = stage.epoch + 5
    stage.zk.set("/controller_epoch", str(moved_on).encode())
    # The next response leads to a write, and that to the discovery.
    stage.brokers[2].release()
    wait_until(lambda: stage.epoch > moved_on)
    wait_until(lambda: not stage.zk.exists("/brokers/topics/halfway"))
    wait_until(lambda: not stage.zk.exists("/admin/delete_topics/halfway"))
    stage.create_topic("halfway", {0: [2, 1]})
    assert stage.state("halfway", 0)["leader_epoch"] == 0
    stage.wait_known("halfway")


# Watches lost while reconnecting


@pytest.mark.rule("ZK-24", "ZK-25")
def test_what_changes_while_the_controller_reconnects_is_noticed(stage: Stage):
    holder, epoch = stage.holder(), stage.epoch
    stage.create_topic("watched", {0: [1, 2]})
    stage.create_topic("unwanted", {0: [1, 2]})
    stage.create_topic("balanced", {0: [1, 2]})
    assert stage.reassign("balanced", [2, 1]) == E.NONE
    stage.settle()
    proxy = stage.proxies[holder.id]
    proxy.cut()
    stage.zk.create("/brokers/topics/unseen", topic_znode({0: [3, 4]}))
    stage.zk.set("/brokers/topics/watched", topic_znode({0: [1, 2], 1: [2, 1]}))
    stage.zk.create("/admin/delete_topics/unwanted")
    rows = [{"topic": "balanced", "partition": 0}]
    election = json.dumps({"version": 1, "partitions": rows}).encode()
    stage.zk.create("/admin/preferred_replica_election", election)
    stage.request_reassignment("watched", [1, 3])
    stage.brokers[4].leave()
    wait_until(lambda: not stage.zk.exists("/brokers/ids/4"))
    proxy.restore()
    stage.wait_state("unseen", 0, lambda s: s["leader"] == 3 and s["isr"] == [3])
    stage.wait_state("watched", 1, lambda s: s["leader"] == 2)
    stage.wait_state("balanced", 0, lambda s: s["leader"] == 2)
    wait_until(lambda: stage.lists("watched") == ([1, 3, 2], [3], [2]))
    wait_until(lambda: not stage.zk.exists("/brokers/topics/unwanted"))
    wait_until(lambda: not stage.zk.exists("/admin/preferred_replica_election"))
    # The same term: nothing of it came from a takeover.
    assert (stage.controller_id(), stage.epoch) == (holder.id, epoch)
    # And each of these watches is set again.
    stage.brokers[4].register()
    stage.wait_state("unseen", 0, lambda s: s["isr"] == [3])
    wait_until(lambda: stage.brokers[4].told(ApiKey.LEADER_AND_ISR, "unseen", 0))
    assert stage.reassign("watched", None) == E.NONE
    assert not stage.zk.exists("/admin/reassign_partitions")


# Things that piled up while no controller was there


@pytest.mark.rule("FAILOVER-4", "FAILOVER-6", "FAILOVER-14", "FAILOVER-18", "FAILOVER-20")
def test_what_piled_up_while_there_was_no_controller_is_worked_off(stage: Stage):
    for topic in ("grown", "doomed", "shrunk", "moved"):
        stage.create_topic(topic, {0: [1, 2]})
    stage.create_topic("strayed", {0: [1, 2]})
    assert stage.reassign("strayed", [2, 1]) == E.NONE
    stage.settle()
    with stage.no_controller():
        for number in range(200):
            named = [{"topic": "shrunk", "partition": 0}, {"topic": f"x{number}", "partition": 1}]
            data = json.dumps({"version": 1, "partitions": named}).encode()
            stage.zk.create("/isr_change_notification/isr_change_", data, sequence=True)
            event = b'{"version":1,"broker":1,"event":1}'
            stage.zk.create("/log_dir_event_notification/log_dir_event_", event, sequence=True)
        state = stage.znode("/brokers/topics/shrunk/partitions/0/state")
        shrunk = json.dumps(state | {"isr": [1]}).encode()
        stage.zk.set("/brokers/topics/shrunk/partitions/0/state", shrunk)
        stage.zk.create("/brokers/topics/born", topic_znode({0: [3, 1]}))
        stage.zk.set("/brokers/topics/grown", topic_znode({0: [1, 2], 1: [2, 3]}))
        stage.zk.create("/admin/delete_topics/doomed")
        stage.zk.create("/admin/delete_topics/never-was")
        stage.request_reassignment("moved", [3, 2])
        rows = [{"topic": t, "partition": 0} for t in ("strayed", "born", "doomed", "never-was")]
        election = json.dumps({"version": 1, "partitions": rows}).encode()
        stage.zk.create("/admin/preferred_replica_election", election)
        stage.brokers[4].bounce()
    for parent in ("isr_change_notification", "log_dir_event_notification", "admin/delete_topics"):
        wait_until(lambda p=parent: not stage.zk.get_children(f"/{p}"), parent)
    wait_until(lambda: not stage.zk.exists("/admin/preferred_replica_election"))
    wait_until(lambda: not stage.zk.exists("/brokers/topics/doomed"))
    stage.wait_state("born", 0, lambda s: s["leader"] == 3)
    stage.wait_state("grown", 1, lambda s: s["leader"] == 2)
    stage.wait_state("strayed", 0, lambda s: s["leader"] == 2)
    wait_until(lambda: stage.lists("moved") == ([3, 2, 1], [3], [1]))
    for topic in ("born", "grown", "strayed", "shrunk", "moved"):
        stage.wait_known(topic)
    assert stage.reassign("moved", None) == E.NONE


# Reassignment resumed after failover with the target list changed


@pytest.mark.rule("REASG-29", "REASG-U3", "FAILOVER-18")
def test_a_move_is_resumed_by_a_successor_with_another_target(stage: Stage):
    stage.create_topic("retargeted", {0: [1, 2]})
    assert stage.reassign("retargeted", [3, 2]) == E.NONE
    assert stage.lists("retargeted") == ([3, 2, 1], [3], [1])
    with stage.no_controller():
        stage.request_reassignment("retargeted", [4, 2])
    wait_until(lambda: stage.lists("retargeted") == ([4, 2, 1], [4], [1]))
    wait_until(
        lambda: any(
            stop.delete_partition
            for stop in stage.brokers[3].told(ApiKey.STOP_REPLICA, "retargeted", 0)
        )
    )
    # After the replica has been stopped, the epoch rises: in the same event.
    stage.settle()
    response = stage.alter_partition(stage.holder(), "retargeted", 0, [1, 2, 4])
    assert response.error_code == E.NONE
    wait_until(lambda: stage.lists("retargeted") == ([4, 2], [], []))
    wait_until(lambda: not stage.zk.exists("/admin/reassign_partitions"))
    state = stage.wait_state("retargeted", 0, lambda s: s["isr"] == [2, 4])
    assert state["leader"] == 4
    stage.wait_known("retargeted")


# A broker bounced faster than its failure is noticed


@pytest.mark.rule("BRK-2", "BRK-4", "CHAN-5", "FENCE-9", "VER-9")
def test_what_waited_for_a_broker_is_not_told_to_its_next_life(stage: Stage):
    """KAFKA-7235, KAFKA-5845: the controller saw no difference, and orders of before came late."""
    broker = stage.brokers[3]
    broker.script.withheld = {ApiKey.LEADER_AND_ISR}
    stage.create_topic("bounced", {0: [1, 3], 1: [3, 1]})
    wait_until(lambda: broker.told(ApiKey.LEADER_AND_ISR, "bounced", 0))
    first_life = broker.epoch
    broker.bounce()
    # Noticed, when the first request for the new life is there.
    wait_until(lambda: broker.received[-1].body.broker_epoch == broker.epoch)
    heard = len(broker.received)
    broker.release()
    stage.wait_state("bounced", 1, lambda s: s["leader"] == 1)
    stage.wait_known("bounced")
    stage.wait_known("bounced", 1)
    later = broker.received[heard:]
    assert {request.body.broker_epoch for request in later} <= {broker.epoch}
    assert broker.epoch > first_life
    # The new life is told everything: whom it follows, and what the others lead.
    told = broker.told(ApiKey.LEADER_AND_ISR, "bounced", 0)[-1]
    assert (told.leader, list(told.isr)) == (1, [1])


@pytest.mark.rule("FENCE-14", "ISR-8", "SHUT-3")
def test_an_earlier_life_cannot_speak_for_the_next(stage: Stage):
    stage.create_topic("revived", {0: [3, 1]})
    broker = stage.brokers[3]
    first_life = broker.epoch
    broker.bounce()
    state = stage.wait_state("revived", 0, lambda s: s["leader"] == 1)
    holder = stage.holder()
    asked = holder.ask(ApiKey.CONTROLLED_SHUTDOWN, 2, broker_id=3, broker_epoch=first_life)
    assert asked.error_code == E.STALE_BROKER_EPOCH
    proposal = {
        "partition_index": 0,
        "leader_epoch": state["leader_epoch"],
        "new_isr": [3],
        "leader_recovery_state": 0,
        "partition_epoch": state["version"],
    }
    response = holder.ask(
        ApiKey.ALTER_PARTITION,
        1,
        broker_id=3,
        broker_epoch=first_life,
        topics=[{"topic_name": "revived", "partitions": [proposal]}],
    )
    assert response.error_code == E.STALE_BROKER_EPOCH
    assert stage.state("revived", 0) == state
