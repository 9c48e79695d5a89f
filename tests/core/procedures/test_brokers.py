"""Brokers that come, go, bounce, and change."""

import pytest

from klamm.controller.metrics import gauges
from klamm.core import effects, events
from klamm.core.cluster import AdvertisedEndpoint
from klamm.core.transitions import ReplicaState
from tests.support.procedure_world import World, steady

THREE = {"t": {0: [1, 2, 3], 1: [2, 3, 1]}}


def performed(world: World, kind: type[effects.Effect]) -> list[effects.Effect]:
    return [effect for effect in world.performed if isinstance(effect, kind)]


@pytest.mark.rule("BRK-1", "BRK-2", "BRK-5", "BRK-6", "BRK-13")
def test_brokers_that_go_together_are_handled_together() -> None:
    world = steady([1, 2, 3, 4], {"t": {0: [1, 2, 3]}})
    world.lose(1, 2)
    world.settle()
    assert world.state("t") == (3, 1, [3])
    assert len(world.state_writes()) == 1
    (channels,) = performed(world, effects.ChangeChannels)
    assert list(channels.close) == [1, 2]
    assert world.cluster.live == {3, 4}


@pytest.mark.rule("BRK-1")
def test_nothing_happens_when_nothing_has_changed() -> None:
    world = steady([1, 2, 3], THREE)
    world.queue.append(events.BrokerChange())
    world.settle()
    assert len(world.performed) == 1


@pytest.mark.rule("BRK-2", "BRK-3", "CHAN-5")
def test_channels_are_changed_before_anything_is_told() -> None:
    world = steady([1, 2, 3], THREE)
    world.lose(1)
    world.register(4)
    world.settle()
    kinds = [type(effect) for effect in world.performed]
    assert kinds.index(effects.ChangeChannels) < kinds.index(effects.SendRequestBatch)
    assert 1 not in {r.to for r in world.requests}


@pytest.mark.rule("BRK-3", "BRK-4", "BRK-5")
def test_new_brokers_come_first_then_bounced_ones_then_the_dead() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}, "u": {0: [3, 2]}, "w": {0: [4]}})
    world.lose(1)
    world.bounce(3)
    world.register(4)
    world.settle()
    assert [write.path.split("/")[3] for write in world.state_writes()] == ["w", "u", "t"]


@pytest.mark.rule("BRK-7", "BRK-8", "BRK-12", "VER-10", "VER-41", "LOGDIR-7")
def test_a_broker_that_starts_is_told_everything_and_the_others_of_it() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}, "u": {0: [3]}, "going": {0: [1, 2]}})
    world.cluster.offline_dirs[2] = {0}
    world.lose(2)
    world.settle()
    world.silent.update((1, 2, 3))
    world.request_deletion("going")
    world.settle()
    world.forget_what_happened()
    world.register(2)
    world.settle()
    heard = [r for r in world.requests if r.to == 2]
    assert [r.api for r in heard[:2]] == ["UpdateMetadata", "LeaderAndIsr"]
    # Topics that are going are left out of the metadata, and only of that.
    assert set(heard[0].partitions) == {("t", 0), ("u", 0)}
    assert set(heard[1].partitions) == {("t", 0), ("going", 0)}
    first = next(r for r in world.requests if r.to == 1)
    assert (first.partitions, list(first.brokers)) == ({}, [1, 2, 3])
    assert 2 not in world.cluster.offline_dirs
    (watch,) = performed(world, effects.WatchBrokers)
    assert list(watch.ids) == [2]


@pytest.mark.rule("BRK-9")
def test_any_broker_that_starts_gives_all_waiting_partitions_another_chance() -> None:
    world = steady([1, 2, 3], {"t": {0: [1]}, "u": {0: [2, 3]}})
    world.report_isr("u", [2])
    world.lose(1, 2)
    world.settle()
    # Nobody has told the controller that losing records is fine with it now.
    world.settings.unclean_default = True
    world.register(1)
    world.settle()
    assert world.state("t") == (1, 2, [1])
    assert world.state("u") == (3, 2, [3])


@pytest.mark.rule("BRK-11", "DEL-27")
def test_a_broker_that_starts_lets_deletions_go_on() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.lose(2)
    world.settle()
    world.request_deletion("t")
    world.settle()
    assert world.cluster.ineligible_for_deletion == {"t"}
    world.register(2)
    world.settle()
    assert "t" not in world.cluster.topics


@pytest.mark.rule("BRK-13", "SHUT-5")
def test_a_broker_that_is_gone_is_no_longer_shutting_down() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.ask(events.ControlledShutdown(1, world.registrations[1].epoch))
    assert world.cluster.shutting_down == {1}
    world.lose(1)
    world.settle()
    assert world.cluster.shutting_down == set()


@pytest.mark.rule("BRK-14", "LEAD-11", "LEAD-E5")
def test_leaders_on_brokers_that_shut_down_count_as_lost_when_another_dies() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}, "u": {0: [3]}})
    world.report_isr("t", [1])
    # 1 cannot hand over, since 2 is not in sync; then 3, which has nothing to do with it, dies.
    error, remaining = world.ask(events.ControlledShutdown(1, world.registrations[1].epoch))
    assert (error, remaining) == (0, [("t", 0)])
    world.lose(3)
    world.settle()
    assert gauges(world.cluster).offline_partitions_count == 2
    assert world.state("t") == (1, 0, [1])


@pytest.mark.rule("BRK-15", "BRK-16", "RSM-15")
def test_followers_leave_the_isr_after_leaders_are_elected() -> None:
    world = steady([1, 2, 3], THREE)
    world.lose(1)
    world.settle()
    assert [write.path[-17:] for write in world.state_writes()] == [
        "/partitions/0/state"[-17:],
        "/partitions/1/state"[-17:],
    ]
    assert world.state("t", 0) == (2, 1, [2, 3])
    assert world.state("t", 1) == (2, 1, [2, 3])


@pytest.mark.rule("BRK-17", "DEL-25")
def test_lost_replicas_of_topics_on_their_way_out_are_failed_deletions() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.silent.update((1, 2))
    world.request_deletion("t")
    world.settle()
    world.lose(2)
    world.settle()
    assert world.cluster.ineligible_for_deletion == {"t"}
    row = world.cluster.row("t", 0)
    assert world.cluster.replica_state[row, :2].tolist() == [
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_INELIGIBLE,
    ]


@pytest.mark.rule("BRK-18", "VER-40")
def test_the_loss_of_an_idle_broker_is_announced_by_itself() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.lose(3)
    world.settle()
    assert [(r.to, r.api, r.partitions, list(r.brokers)) for r in world.requests] == [
        (1, "UpdateMetadata", {}, [1, 2]),
        (2, "UpdateMetadata", {}, [1, 2]),
    ]


@pytest.mark.rule("BRK-18", "VER-40")
def test_otherwise_what_is_told_of_partitions_tells_of_brokers_too() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.lose(1)
    world.settle()
    assert all(r.partitions for r in world.sent("UpdateMetadata"))


@pytest.mark.rule("BRK-20", "BRK-21")
def test_a_new_endpoint_is_passed_on_without_a_new_channel() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    moved = (AdvertisedEndpoint("PLAINTEXT", "elsewhere", 9999),)
    world.reregister(1, endpoints=moved)
    world.settle()
    assert world.cluster.brokers[1].endpoints == moved
    assert [(r.to, r.partitions) for r in world.sent("UpdateMetadata")] == [(1, {}), (2, {})]
    assert performed(world, effects.ChangeChannels) == []


@pytest.mark.rule("BRK-20", "BRK-1")
def test_a_bounce_is_noticed_although_the_new_registration_was_seen_before() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.lose(1)
    world.register(1, endpoints=(AdvertisedEndpoint("PLAINTEXT", "elsewhere", 9999),))
    world.queue.appendleft(events.BrokerModifications(1))
    world.settle()
    assert world.state("t") == (2, 1, [2])
    assert world.cluster.brokers[1].epoch == world.registrations[1].epoch


@pytest.mark.rule("BRK-20")
def test_another_rack_alone_is_not_noticed() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.reregister(1, rack="b")
    world.settle()
    assert world.cluster.brokers[1].rack is None
    assert world.requests == []


@pytest.mark.rule("BRK-22")
def test_changes_of_unknown_brokers_are_ignored() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.queue.append(events.BrokerModifications(9))
    world.settle()
    world.registrations[9] = world.registrations[1]
    world.queue.append(events.BrokerModifications(9))
    world.settle()
    assert world.requests == []


@pytest.mark.rule("BRK-3", "BRK-23", "FAILOVER-5")
def test_a_broker_without_the_features_of_the_cluster_is_left_out() -> None:
    world = World([1])
    world.features = {"f": 2}
    world.reregister(1, features=(("f", 1, 3),))
    world.register(2, features=(("f", 1, 1),))
    world.fail_over()
    world.settle()
    assert world.cluster.live == {1}
    world.register(3)
    world.settle()
    assert world.cluster.live == {1}
    assert {r.to for r in world.requests} == {1}
    assert any("features" in remark.text for remark in world.ctx.remarks)


@pytest.mark.rule("BRK-23")
def test_a_broker_that_comes_back_without_the_features_is_lost() -> None:
    world = World([1, 2])
    world.features = {"f": 2}
    for broker in (1, 2):
        world.reregister(broker, features=(("f", 1, 3),))
    world.fail_over()
    world.create_topic("t", {0: [1, 2]})
    world.settle()
    world.lose(1)
    world.register(1, features=())
    world.settle()
    assert world.cluster.live == {2}
    assert world.state("t") == (2, 1, [2])


@pytest.mark.rule("BRK-4", "VER-9")
def test_a_bounced_broker_that_shut_down_is_live_again() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.ask(events.ControlledShutdown(1, world.registrations[1].epoch))
    world.bounce(1)
    world.settle()
    assert world.cluster.live == {1, 2}
    assert world.cluster.brokers[1].epoch == world.registrations[1].epoch
