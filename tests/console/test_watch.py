from dataclasses import replace

import numpy as np

from klamm.client.admin import Admin
from klamm.console.columns import ClusterColumns
from klamm.console.watch import ClusterWatch
from tests.console.clusters import make_columns

LIVE = {1: "a", 2: "b", 3: "c"}
BEFORE = {("a", 0): (1, [1, 2], [1, 2]), ("a", 1): (2, [2, 3], [2, 3])}


def watching(columns: ClusterColumns) -> tuple[ClusterWatch, list[dict]]:
    """A watch that has read these columns, and what it tells from then on."""
    watch = ClusterWatch(Admin("127.0.0.1:1"))
    watch._set(columns)
    told: list[dict] = []
    watch.listen(told.append)
    return watch, told


def test_only_rows_that_changed_are_told():
    watch, told = watching(make_columns(BEFORE, LIVE))
    watch._set(make_columns(BEFORE | {("a", 1): (3, [2, 3], [3])}, LIVE))
    (change,) = told
    assert (change["rows"], change["leader"], change["isr"]) == ([1], [3], [[3]])
    assert change["layout"] == 1
    assert change["health"]["under_replicated"] == 1


def test_nothing_is_told_when_nothing_changed():
    watch, told = watching(make_columns(BEFORE, LIVE))
    watch._set(make_columns(BEFORE, LIVE))
    assert told == []
    assert watch.moment().version == 1


def test_other_partitions_are_another_layout():
    watch, told = watching(make_columns(BEFORE, LIVE))
    watch._set(make_columns(BEFORE | {("b", 0): (1, [1], [1])}, LIVE))
    (change,) = told
    assert (change["rows"], change["layout"]) == (None, 2)


def test_decisions_of_the_history_are_folded_in_unless_they_are_older():
    columns = make_columns(BEFORE, LIVE)
    watch, told = watching(replace(columns, leader_epoch=np.array([5, 5], np.int32)))
    watch.on_history([], [("a", 0, 2, 6, [2]), ("a", 1, 3, 4, [3]), ("gone", 0, 1, 9, [1])])
    (change,) = told
    assert (change["rows"], change["leader"], change["isr"]) == ([0], [2], [[2]])


def test_a_cluster_that_does_not_answer_is_down_and_comes_back():
    watch, told = watching(make_columns(BEFORE, LIVE))
    watch._on_problem("connection refused")
    watch._on_problem("connection refused")
    assert len(told) == 1
    assert told[0]["health"]["text"] == "No broker answers: connection refused"
    assert not any(broker["live"] for broker in told[0]["brokers"])
    watch._set(make_columns(BEFORE, LIVE))
    assert told[1]["health"]["level"] == "good"
