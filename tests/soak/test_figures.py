"""What a soak measures, and when it fails."""

import os
import subprocess
import sys

import pytest

from tests.soak.figures import BOUNDS, Figure, percentile, processes_of, sample


@pytest.mark.parametrize("name", BOUNDS)
def test_a_figure_may_grow_up_to_its_bound_and_no_further(name):
    limit = BOUNDS[name].limit(100)
    assert not Figure(name, "broker 1", 100, limit).has_grown
    assert Figure(name, "broker 1", 100, limit + 0.1).has_grown


def test_a_figure_says_what_would_have_been_fine():
    text = str(Figure("memory", "broker 2", 100, 400))
    assert "100.0 ->     400.0 MB" in text
    assert "(at most 157.0) TOO MUCH" in text


def test_of_many_latencies_the_slowest_hundredth_is_left_out():
    assert percentile([float(n) for n in range(200)], 0.99) == 198
    assert percentile([5.0], 0.99) == 5


def test_the_processes_of_a_node_are_measured_together(tmp_path):
    program = (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        pids = processes_of(parent.pid)
        both, alone = sample(pids), sample([parent.pid])
        parent.communicate(b"\n")
    assert len(pids) == 2
    assert both.memory_mb > alone.memory_mb > 0
    assert both.descriptors > alone.descriptors > 0


def test_an_open_file_is_counted(tmp_path):
    before = sample([os.getpid()]).descriptors
    with (tmp_path / "file").open("w"):
        assert sample([os.getpid()]).descriptors == before + 1
