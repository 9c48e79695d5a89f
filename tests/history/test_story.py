"""Stories: what a reader is told about a partition."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from klamm.core.effects import WriteOutcome
from klamm.core.events import (
    AlterPartition,
    ApiReassignment,
    AutoRebalance,
    BrokerChange,
    ControlledShutdown,
    PartitionProposal,
    StopReplicaResponseReceived,
    TopicChange,
    TopicDeletion,
)
from klamm.errors import ConfigError, KlammError
from klamm.history.partition_events import Gap, read_partition_events
from klamm.history.spool import read_spool
from klamm.history.story import run, split_name, story
from tests.support.procedure_store import state_path
from tests.support.recorded_controller import RecordedController


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RecordedController]:
    controller = RecordedController(tmp_path, brokers=(1, 2, 3, 4))
    yield controller
    controller.history.spool.close()


def told(controller: RecordedController, topic: str = "orders", partition: int = 0) -> list[str]:
    """The story without the times, which are of no interest here."""
    controller.history.spool.flush()
    batches = read_spool(controller.config.klamm_history_dir)
    texts = story(read_partition_events(batches, topic, partition), topic, partition)
    return [text.partition(" epoch ")[2] or text for text in texts]


def begin(controller: RecordedController, replicas: list[int]) -> None:
    controller.fail_over()
    controller.create_topic("orders", {0: replicas})
    controller.handle(TopicChange())


def lose(controller: RecordedController, *brokers: int) -> None:
    controller.lose(*brokers)
    controller.handle(BrokerChange())


def propose(controller: RecordedController, *isr: int) -> None:
    leader, leader_epoch, _ = controller.state("orders")
    proposal = PartitionProposal(
        "orders", None, 0, leader_epoch, isr, 0, controller.version("orders")
    )
    controller.handle(AlterPartition(leader, controller.registrations[leader].epoch, 3, [proposal]))


def test_a_sentence_begins_with_time_epoch_and_sequence(controller):
    begin(controller, [1, 2])
    controller.history.spool.flush()
    events = read_partition_events(read_spool(controller.config.klamm_history_dir), "orders", 0)
    assert list(story(events, "orders", 0)) == [
        "2001-09-09 01:46:40.005 epoch 1 #1: broker 1 became controller.",
        "2001-09-09 01:46:40.022 epoch 1 #2: topics appeared or vanished in ZooKeeper; "
        "orders-0 was created with leader 1, leader epoch 0, ISR 1,2.",
    ]


def test_a_failure_and_a_return(controller):
    begin(controller, [1, 2, 3])
    lose(controller, 1)
    controller.register(1)
    controller.handle(BrokerChange())
    propose(controller, 2, 3, 1)
    controller.handle(AutoRebalance())
    lose(controller, 3)
    assert told(controller)[2:] == [
        "1 #3: broker 1 disappeared; orders-0 got leader 2 (was 1), leader epoch 1, ISR 2,3.",
        "1 #5: broker 2 asked for an ISR; the ISR of orders-0 became 2,3,1 (1 joined).",
        "1 #6: leaders are being rebalanced; orders-0 went back to its preferred leader 1 (was 2),"
        " leader epoch 2, ISR 2,3,1.",
        "1 #7: broker 3 disappeared; a replica of orders-0 went offline (3 left): leader 1, "
        "leader epoch 3, ISR 2,1.",
    ]


def test_nobody_is_left_and_then_somebody_who_was_not_in_sync(controller):
    begin(controller, [1, 2])
    lose(controller, 2)
    lose(controller, 1)
    controller.allow_unclean_elections("orders")
    controller.register(2)
    controller.handle(BrokerChange())
    assert told(controller)[3:] == [
        "1 #4: broker 1 disappeared; a replica of orders-0 went offline: no leader (was 1), leader "
        "epoch 2, ISR 1; nobody could be elected for orders-0, it has no leader (was 1): ISR 1 of "
        "replicas 1,2.",
        "1 #5: broker 2 appeared; orders-0 got leader 2 although it was not in sync, so that "
        "records may be lost, leader epoch 3, ISR 2.",
    ]


def test_a_handover_and_a_bounce(controller):
    begin(controller, [1, 2])
    controller.handle(ControlledShutdown(1, controller.registrations[1].epoch))
    controller.register(2)
    controller.handle(BrokerChange())
    assert told(controller)[2:4] == [
        "1 #3: broker 1 asked to shut down; orders-0 was handed over to leader 2 (was 1), leader "
        "epoch 1, ISR 2.",
        "1 #4: broker 2 came back with a new registration; a replica of orders-0 went offline: no "
        "leader (was 2), leader epoch 2, ISR 2; orders-0 got leader 2, leader epoch 3, ISR 2.",
    ]


def test_a_reassignment_from_start_to_end(controller):
    begin(controller, [1, 2, 3])
    controller.handle(ApiReassignment({("orders", 0): [4, 2, 3]}))
    propose(controller, 1, 2, 3, 4)
    assert told(controller)[2:] == [
        "1 #3: a reassignment was asked for; orders-0 kept leader 1 under a new epoch, leader epoch"
        " 1, ISR 1,2,3; orders-0 is to move to replicas 4,2,3 (adding 4, removing 1).",
        "1 #4: broker 1 asked for an ISR; the ISR of orders-0 became 1,2,3,4 (4 joined); orders-0 "
        "got leader 4 (was 1) from among its new replicas, leader epoch 2, ISR 1,2,3,4; a replica "
        "of orders-0 went offline (1 left): leader 4, leader epoch 3, ISR 2,3,4; the move of "
        "orders-0 is complete: replicas 4,2,3.",
    ]


def test_a_move_that_is_replaced_found_and_cancelled(controller):
    begin(controller, [1, 2])
    controller.handle(ApiReassignment({("orders", 0): [3, 2]}))
    controller.handle(ApiReassignment({("orders", 0): [4, 2]}))
    controller.resign()
    controller.fail_over(epoch=2)
    controller.handle(ApiReassignment({("orders", 0): None}))
    texts = told(controller)
    assert texts[3].endswith("orders-0 is now to move to replicas 4,2 (adding 4, removing 1).")
    assert texts[4] == "1 #5: broker 1 gave up being controller (ZooKeeper session expired)."
    assert texts[5].startswith("2 #1: broker 1 became controller; ")
    assert "orders-0 is moving to replicas 4,2" in texts[5]
    assert texts[6].endswith("the move of orders-0 was cancelled: replicas 2,1.")


def test_a_deletion(controller):
    begin(controller, [1, 2])
    lose(controller, 2)
    controller.request_deletion("orders")
    controller.handle(TopicDeletion())
    controller.register(2)
    controller.handle(BrokerChange())
    for broker in (1, 2):
        controller.handle(StopReplicaResponseReceived(broker, 0, {("orders", 0): 0}))
    texts = told(controller)
    assert texts[3] == (
        "1 #4: the topic is to be deleted; a replica of orders-0 went offline: no leader (was 1), "
        "leader epoch 2, ISR 1; the deletion of topic orders has to wait."
    )
    assert texts[4] == "1 #5: broker 2 appeared; the deletion of topic orders began."
    assert texts[5] == (
        "1 #7: broker 2 answered about replicas to be deleted; topic orders was deleted."
    )


def test_a_write_that_was_refused_says_why(controller):
    begin(controller, [1, 2])
    controller.faults.refuse[state_path("orders", 0)] = [WriteOutcome.BAD_VERSION]
    lose(controller, 1)
    refusal = "; refused: orders-0 got leader 2 (was 1), leader epoch 1, ISR 2, because ZooKeeper "
    assert refusal in told(controller)[2]


def test_an_event_that_failed_says_so(controller):
    controller.fail_over()
    controller.create_topic("orders", {0: [1]})
    controller.fail_announcements()
    controller.handle(TopicChange())
    assert told(controller)[1].endswith(
        "; the event was not carried through (failed: RuntimeError('no way to announce'))."
    )


def test_other_partitions_are_not_part_of_the_story(controller):
    begin(controller, [1, 2])
    controller.create_topic("other", {0: [3]})
    controller.handle(TopicChange())
    lose(controller, 3)
    assert len(told(controller)) == 2


# Several spools


def test_spools_of_several_nodes_are_put_in_order_and_duplicates_dropped(tmp_path: Path):
    first, second = RecordedController(tmp_path / "1"), RecordedController(tmp_path / "2")
    begin(first, [1, 2])
    first.history.spool.close()
    shutil.copytree(first.config.klamm_history_dir, tmp_path / "copy")
    second.share_zookeeper_of(first)
    second.fail_over(epoch=2)
    lose(second, 1)
    second.history.spool.close()
    texts: list[str] = []
    spools = [
        second.config.klamm_history_dir,
        tmp_path / "copy",
        first.config.klamm_history_dir,
    ]
    run("orders-0", spools=spools, write=texts.append)
    heads = [" ".join(text.split()[2:5]) for text in texts]
    assert heads == ["epoch 1 #1:", "epoch 1 #2:", "epoch 2 #1:", "epoch 2 #2:"]


def rows(*keys: tuple[int, int, int, int], controller: RecordedController) -> list[pa.RecordBatch]:
    """The batches of an controller, with other epochs, sequences, parts and numbers of parts."""
    controller.history.spool.flush()
    (batch,) = read_spool(controller.config.klamm_history_dir)
    batch = batch.slice(0, 1)
    batches = []
    for key in keys:
        changed = batch
        for name, value in zip(("controller_epoch", "seq", "part", "parts"), key, strict=True):
            at = batch.schema.get_field_index(name)
            column = pa.array([value], batch.schema.field(name).type)
            changed = changed.set_column(at, batch.schema.field(name), column)
        batches.append(changed)
    return batches


def test_gaps_are_named(controller):
    controller.fail_over()
    some = rows((1, 2, 0, 1), (1, 5, 0, 1), (4, 1, 0, 1), (4, 2, 1, 2), controller=controller)
    events = list(read_partition_events(some, "orders", 0))
    assert [entry for entry in events if isinstance(entry, Gap)] == [
        Gap(1, 1, 1),
        Gap(1, 3, 4),
        Gap(2),
        Gap(3),
        Gap(4, 2, 2),
    ]
    texts = list(story(events, "orders", 0))
    assert texts[0] == "(Missing from the history, at least in part: epoch 1 #1.)"
    assert texts[2] == "(Missing from the history, at least in part: epoch 1 #3 to #4.)"
    assert "(Nothing is known of controller epoch 2.)" in texts


def test_a_partition_in_a_later_part_of_an_event_is_told_with_the_events_reason(
    controller: RecordedController,
):
    controller.fail_over()
    controller.create_topic("orders", {p: [1, 2] for p in range(5000)})
    controller.handle(TopicChange())
    lose(controller, 1)
    assert told(controller, partition=4999)[-1] == (
        "1 #3: broker 1 disappeared; orders-4999 got leader 2 (was 1), leader epoch 1, ISR 2."
    )


# The command


def test_the_json_has_the_events_with_their_sentences(controller):
    begin(controller, [1, 2])
    controller.history.spool.flush()
    output: list[str] = []
    run("orders-0", spools=[controller.config.klamm_history_dir], as_json=True, write=output.append)
    (document,) = output
    began, created = json.loads(document)
    assert began["term"] == "began"
    assert created["kind"] == "TopicChange"
    assert created["decisions"][0]["isr"] == [1, 2]
    assert created["text"].endswith("orders-0 was created with leader 1, leader epoch 0, ISR 1,2.")


def test_a_partition_that_was_never_heard_of_is_an_error(controller):
    begin(controller, [1, 2])
    controller.history.spool.flush()
    with pytest.raises(KlammError, match="nothing about orders-7"):
        run("orders-7", spools=[controller.config.klamm_history_dir])


def test_a_spool_that_is_not_there_is_named_with_the_key_that_says_where_it_is(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"klamm\.history\.dir"):
        run("orders-0", spools=[tmp_path / "nowhere"])


def test_a_name_is_a_topic_and_a_partition():
    assert split_name("a-b-12") == ("a-b", 12)
    for name in ("orders", "orders-", "-1", "orders-x"):
        with pytest.raises(ConfigError, match="TOPIC-PARTITION"):
            split_name(name)
