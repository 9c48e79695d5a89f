"""Count the functions and files that one produce request and one broker failure go through.

    python -m tools.trace_calls        the numbers of ARCHITECTURE.md
    python -m tools.trace_calls --all  each function, in the order of its first call

Clusters are started with a profiler in every process. It is switched on while a record is produced
with acks=all, and again while a leader is killed. What else happens in these moments (timers, the
fetch requests of followers) is counted as well, so the numbers differ a little from run to run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

#: Python imports this module at the start of each process.
_PROFILER: Final = """
import os, sys, threading
FOLDER = os.environ["KLAMM_TRACE"]
calls, is_on = {}, [False]
def note(frame, event, argument):
    if is_on[0] and event == "call" and "/klamm/" in frame.f_code.co_filename:
        code = frame.f_code
        file = code.co_filename.rpartition("/klamm/")[2]
        calls.setdefault((file, getattr(code, "co_qualname", code.co_name)))
def watch():
    pause = threading.Event()
    while not pause.wait(0.003):
        try:
            name = open(FOLDER + "/on").read()
        except OSError:
            name = ""
        if name and not is_on[0]:
            calls.clear()
            is_on[0] = True
        elif not name and is_on[0]:
            is_on[0] = False
            with open(f"{FOLDER}/{os.getpid()}", "w") as file:
                file.writelines(f"{where} {what}\\n" for where, what in calls)
sys.setprofile(note)
threading.setprofile(note)
def start_watching():
    threading.Thread(target=watch, daemon=True).start()
start_watching()
os.register_at_fork(after_in_child=start_watching)
"""
_SETTLE_S: Final = 2.0


class Trace:
    """Switches the profilers on and off, and reads what they saw."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: How much longer the profilers run than the traced block.
        self.extra_s = 0.0

    def __enter__(self) -> None:
        for path in self._folder.glob("[0-9]*"):
            path.unlink()
        (self._folder / "on").write_text("on")
        threading.Event().wait(0.02)

    def __exit__(self, *_: object) -> None:
        threading.Event().wait(self.extra_s)
        (self._folder / "on").unlink()
        threading.Event().wait(_SETTLE_S)

    def show(self, title: str) -> None:
        """Print the process that called most functions."""
        found = [path.read_text().splitlines() for path in self._folder.glob("[0-9]*")]
        calls = max(found, key=len)
        files = {line.split()[0] for line in calls}
        print(f"{title}: {len(calls)} functions in {len(files)} files")
        if "--all" in sys.argv[1:]:
            print("".join(f"    {line}\n" for line in calls))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_PROFILER)
        os.environ["KLAMM_TRACE"] = name
        os.environ["PYTHONPATH"] = os.pathsep.join((name, os.environ.get("PYTHONPATH", "")))
        from confluent_kafka import Producer

        from klamm import Cluster

        def produce(cluster: Cluster, title: str) -> None:
            producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            for _ in range(3):
                producer.produce("orders", b"warm-up")
                producer.flush()
            threading.Event().wait(_SETTLE_S)
            with trace:
                producer.produce("orders", b"traced")
                producer.flush()
            trace.show(title)

        trace = Trace(folder)
        with Cluster(brokers=1) as cluster:
            cluster.create_topic("orders")
            produce(cluster, "a produce request, one replica")
        with Cluster(brokers=3) as cluster:
            first, second = (id for id in cluster.broker_ids if id != cluster.controller_id())
            cluster.create_topic("orders", assignment=[[first, second]])
            produce(cluster, "a produce request, two replicas, at the leader")
            trace.extra_s = 0.3
            with trace:
                cluster.kill(first)
                cluster.wait_leader("orders", other_than=first)
            for path in folder.glob("[0-9]*"):
                if "core/" not in path.read_text():
                    path.unlink()  # a broker; the decision is the controller's
            trace.show("a failure of the leader, at the controller")


if __name__ == "__main__":
    main()
