"""A few histories, and that they can be told, repeated, cut down, and find what is wrong."""

import os
import random
import subprocess
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.clients import Member
from tests.simulation.history import run
from tests.simulation.plan import FAULTS, REQUESTS, draw
from tests.simulation.story import tell
from tests.simulation.variants import VARIANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_nothing_is_wrong(seed):
    outcome = run(seed)
    assert outcome.failure is None, tell(outcome)
    assert outcome.events >= 500


def test_nothing_is_wrong_with_seeds_that_nobody_has_tried(capsys):
    seeds = [str(int.from_bytes(os.urandom(4), "big")) for _ in range(3)]
    with capsys.disabled():
        print(f"\nfresh seeds: {' '.join(seeds)}", flush=True)
    for seed in seeds:
        outcome = run(seed)
        assert outcome.failure is None, tell(outcome)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param("1038973076", id="down while its topic was reassigned, then deleted"),
        pytest.param("77000980", id="down, and the topic is created again under its name"),
        pytest.param("77000259", id="the controller dies before it sends StopReplica"),
        pytest.param("730001152", id="its metadata names the topic, which was deleted meanwhile"),
        pytest.param("814000344", id="its metadata names the topic, which is to be deleted"),
    ],
)
def test_a_stray_replica_is_moved_aside(seed):
    outcome = run(seed)
    assert outcome.failure is None, tell(outcome)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param("64", id="a deletion that has begun ends the reassignment of its topic"),
        pytest.param("940000208", id="a cancelled reassignment keeps a replica that is in sync"),
        pytest.param("94052756", id="a partition that was not heard of is not deleted"),
        pytest.param("910000031", id="a watermark that a session's first fetch raises is told"),
        pytest.param("612000131", id="a crash within a slice keeps nobody else from theirs"),
        pytest.param("730002817", id="a broker that stops creates no second log"),
        pytest.param("780002036", id="a response to an earlier term ends no deletion"),
        pytest.param("790001927", id="a leader that missed an epoch waits for its followers"),
        pytest.param("790009616", id="a deposed coordinator adds no partitions"),
        pytest.param("800001764", id="a replica that was never started keeps no topic alive"),
        pytest.param("802008505", id="a fenced producer takes no offsets of its successor away"),
        pytest.param("802012832", id="an ISR whose write was not answered is accepted"),
    ],
)
def test_what_was_wrong_once_is_not_wrong_again(seed):
    outcome = run(seed)
    assert outcome.failure is None, tell(outcome)


def test_a_group_whose_leader_heard_of_some_partitions_alone_reads_the_others_too(monkeypatch):
    learn, has_assigned = Member.learn, threading.Event()

    async def learn_of_one(self: Member, topic: str | None) -> bool:
        """Hear of partition 0 alone, until a leader has assigned what it has heard of."""
        has_learned = await learn(self, topic)
        if self.is_settled and self._shared_out is not None:
            has_assigned.set()
        if not has_assigned.is_set():
            self.leaders = {index: leader for index, leader in self.leaders.items() if index == 0}
        return has_learned

    monkeypatch.setattr(Member, "learn", learn_of_one)
    plan = draw("1")
    late = replace(plan.actions[0], at=12.0)  # so that the history lasts
    outcome = run(replace(plan, actions=(late,)))
    assert any("has assigned [0], but finds [0, 1]" in line for line in outcome.lines)
    assert outcome.failure is None, tell(outcome)


@pytest.fixture(scope="module")
def fourth():
    return run("4")


def test_one_seed_is_one_history_byte_for_byte(fourth):
    assert run("4").lines == fourth.lines


def test_a_history_is_the_same_after_one_that_failed(fourth):
    assert run("1", variant=VARIANTS["announces before it has written"]).failure is not None
    assert run("4").lines == fourth.lines


def test_threads_beside_a_history_do_not_change_it(fourth):
    """Of clients of a real ZooKeeper, for example, which draw the jitter of their pings."""
    is_over = threading.Event()

    def disturb():
        while not is_over.wait(0.001):
            random.randint(0, 100)
            uuid.uuid4()

    beside = threading.Thread(target=disturb)
    beside.start()
    try:
        lines = run("4").lines
    finally:
        is_over.set()
        beside.join()
    assert lines == fourth.lines


def test_the_order_of_sets_of_strings_does_not_matter(fourth):
    program = "from tests.simulation.history import run; print(run('4').digest)"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(1 + hash("seed") % 1000)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert elsewhere.stdout.strip() == fourth.digest


@pytest.mark.rule("TXN-6", "TXN-14", "TXN-16")
@pytest.mark.parametrize("seed", ["106", "109"])
def test_transactions_are_there_as_a_whole_or_not_at_all(seed):
    outcome = run(replace(draw(seed), transactions=True))
    assert outcome.failure is None, tell(outcome)
    assert any("is committed" in line for line in outcome.lines)


def test_a_transaction_that_is_marked_in_part_is_found():
    variant = VARIANTS["marks one partition of a transaction"]
    assert run(replace(draw("2"), transactions=True), variant=variant).failure is not None


def test_every_fault_and_every_request_is_drawn():
    drawn = {action.kind for seed in range(60) for action in draw(str(seed)).actions}
    assert drawn == FAULTS.keys() | REQUESTS.keys()


@pytest.mark.parametrize(
    "variant", ["announces before it has written", "commits what the leader alone has"]
)
def test_a_mistake_is_found_at_once(variant):
    assert run("1", variant=VARIANTS[variant]).failure is not None


def test_a_broker_that_does_not_know_every_partition_is_found():
    variant = VARIANTS["tells a new broker of its own partitions alone"]
    failure = run("6", variant=variant).failure
    assert failure is not None
    assert "broker 2 has not heard of" in failure


def test_a_failing_history_is_cut_down_and_told(capsys):
    assert main(["--seed", "1", "--variant", "acknowledges before the ISR has it"]) == 1
    story = capsys.readouterr().out
    assert "is acknowledged" in story
    assert "leads orders-0" in story
    # It needs no fault at all.
    assert story.count("PLAN") == story.count("PLAN: no more faults")
