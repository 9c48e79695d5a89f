"""The tour: a cluster under load from a stock client, with failures, shutdowns and a reassignment.

Every claim is checked before it is printed; a claim that does not hold ends the tour.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console

from klamm.client import elections, reassignments, topics
from klamm.client.elections import ElectionType
from klamm.client.topics import PartitionDescription
from klamm.errors import KlammError
from klamm.local.cluster import Cluster
from klamm.local.demo.live_story import LiveStory
from klamm.local.demo.load import NumberedProducer, read_numbers
from klamm.local.demo.presenter import Presenter
from klamm.local.demo.spark_job import SparkJob
from klamm.names import TopicPartition
from klamm.processes import tied_klamm

TOPIC: Final = "orders"
RACKS: Final = {1: "a", 2: "b", 3: "c"}
_PATIENCE_S: Final = 60.0
_LOOK_INTERVAL_S: Final = 0.2


def run(
    pause: Callable[[], None] = lambda: None,
    console: Console | None = None,
    *,
    out: Path | None = None,
    spark: bool = True,
) -> None:
    """Run the tour; raises if a claim does not hold.

    With `spark`, a job streams the topic meanwhile, and a report on the controllers is written to
    `out`, or to a new temporary folder.
    """
    presenter = Presenter(console or Console(highlight=False), pause)
    with closing(Cluster(list(RACKS), racks=RACKS)) as cluster, ExitStack() as stack:
        tour = Tour(presenter, cluster)
        tour.see_cluster()
        tour.create_topic()
        reader = stack.enter_context(SparkJob(cluster.bootstrap_servers, TOPIC)) if spark else None
        writer = NumberedProducer(cluster.bootstrap_servers, TOPIC)
        tour.see_writing(writer)
        tour.kill_leader()
        tour.bring_back()
        tour.stop_controller()
        tour.move_replicas()
        found = tour.count(writer)
        if reader is not None:
            tour.compare(reader, found)
            folder = out or Path(tempfile.mkdtemp(prefix="klamm-demo-"))
            # In this order: a history takes only a folder that is empty or its own.
            tour.report(folder)
            tour.ingest(found, folder)
    presenter.conclude()


class Tour:
    """The steps of the tour, in the order in which they are run."""

    def __init__(self, presenter: Presenter, cluster: Cluster) -> None:
        self.presenter = presenter
        self.cluster = cluster
        self.live_story = LiveStory(
            lambda: cluster.spools, TOPIC, lambda text: presenter.say(text, "cyan")
        )

    def see_cluster(self) -> None:
        """Show the brokers and the controller."""
        with self.presenter.step(f"A cluster of {len(RACKS)} brokers in {len(RACKS)} racks"):
            self.cluster.start()
            self.presenter.say(f"ZooKeeper at {self.cluster.zookeeper}")
            for broker in self.cluster.broker_ids:
                process = self.cluster.broker(broker)
                self.presenter.say(
                    f"broker {broker} at {process.address}, rack {process.rack}, "
                    f"process {process.pid}"
                )
            self.presenter.check(
                "every broker is registered", self.cluster.registered() == set(RACKS)
            )
            controller = self.cluster.controller_id()
            self.presenter.check(f"one of them, {controller}, is controller", controller in RACKS)

    def create_topic(self) -> None:
        """Create a topic over the racks."""
        with self.presenter.step(
            f"A topic of {len(RACKS)} partitions with {len(RACKS)} replicas each"
        ):
            self.cluster.create_topic(TOPIC, partitions=len(RACKS))
            created = self._wait("leaders of all partitions", lambda now: len(now) == len(RACKS))
            self._show(created)
            self.presenter.check(
                "each partition has a replica in every rack",
                all({RACKS[b] for b in each.replicas} == set(RACKS.values()) for each in created),
            )
            self.presenter.check(
                "each is led by its first replica, each broker leading one",
                {each.leader for each in created} == set(RACKS)
                and all(each.leader == each.replicas[0] for each in created),
            )

    def see_writing(self, writer: NumberedProducer) -> None:
        with self.presenter.step("A stock client writes, and waits for all in-sync replicas"):
            self._wait_for(lambda: len(writer.acknowledged) >= 100, "100 acknowledged records")
            self.presenter.check(
                f"{len(writer.acknowledged)} records are acknowledged, and it goes on writing",
                not writer.refused,
            )

    def kill_leader(self) -> None:
        """Kill a leader under load, and show the election."""
        before = self._partitions()
        lost = next(each.leader for each in before if each.leader != self.cluster.controller_id())
        with self.presenter.step(f"Broker {lost}, which leads, is killed"):
            self.cluster.kill(lost)
            after = self._wait(
                f"ISRs without {lost}",
                lambda now: _all_of(now, lambda each: lost not in each.isr),
            )
            self._show(after)
            self.presenter.check(
                "every partition has a leader that lives",
                all(each.leader in self.cluster.registered() for each in after),
            )
            self.presenter.check(
                "each of them was in sync, so that nothing that was acknowledged is lost",
                all(new.leader in old.isr for old, new in zip(before, after, strict=True)),
            )
            self.presenter.check(
                "the leader epoch rose where the leader changed",
                all(
                    new.leader_epoch > old.leader_epoch
                    for old, new in zip(before, after, strict=True)
                    if old.leader != new.leader
                ),
            )

    def bring_back(self) -> None:
        """Start the dead broker; it catches up and leads again."""
        away = next(iter(set(RACKS) - {b for each in self._partitions() for b in each.isr}))
        with self.presenter.step(f"Broker {away} returns, catches up, and leads again"):
            self.cluster.start(away)
            caught_up = self._wait("full ISRs", _is_whole)
            self.presenter.check("it is in sync again everywhere", _is_whole(caught_up))
            self.presenter.check(
                "and leads nothing yet", all(each.leader != away for each in caught_up)
            )
            outcomes = elections.elect(self.cluster.admin, ElectionType.PREFERRED, None)
            self.presenter.check(
                "preferred leaders are elected", not any(each.failed for each in outcomes)
            )
            balanced = self._wait("preferred leaders", _is_preferred)
            self._show(balanced)
            self.presenter.check(
                "everybody leads what it led at first",
                all(each.leader == each.replicas[0] for each in balanced),
            )

    def stop_controller(self) -> None:
        """Shut the controller's broker down in order."""
        leaving = self.cluster.wait_controller()
        with self.presenter.step(f"Broker {leaving}, the controller, shuts down in order"):
            self.cluster.stop(leaving)
            successor = self.cluster.wait_controller(other_than=leaving)
            self.presenter.check(f"broker {successor} is controller now", successor in RACKS)
            after = self._wait(
                f"no leader {leaving}",
                lambda now: _all_of(now, lambda each: each.leader not in (-1, leaving)),
            )
            self._show(after)
            self.presenter.check(
                "what it led was handed over", all(each.leader != leaving for each in after)
            )
            self.cluster.start(leaving)
            self._wait("full ISRs", _is_whole)
            elections.elect(self.cluster.admin, ElectionType.PREFERRED, None)
            self._wait("preferred leaders", _is_preferred)
            self.presenter.check(
                "it is back, and leads what it is preferred for", _is_preferred(self._partitions())
            )

    def move_replicas(self) -> None:
        """Reassign replicas while records are written."""
        with self.presenter.step("A fourth broker joins, and takes over the replicas of the first"):
            new = self.cluster.add_broker(rack=RACKS[1])
            self.presenter.say(
                f"broker {new} at {self.cluster.broker(new).address}, rack {RACKS[1]}"
            )
            plan = {
                TopicPartition(each.topic, each.partition): [
                    new if b == 1 else b for b in each.replicas
                ]
                for each in self._partitions()
            }
            refused = reassignments.alter(self.cluster.admin, plan)
            self.presenter.check("the reassignment is accepted", not refused)
            moved = self._wait(
                "the end of the reassignment",
                lambda now: _all_of(now, lambda each: 1 not in each.replicas),
            )
            self._show(moved)
            self.presenter.check(
                "it has all of them, in sync, and the first broker has none",
                all(new in each.isr and 1 not in each.isr for each in moved),
            )

    def count(self, writer: NumberedProducer) -> dict[int, list[int]]:
        """Check that no acknowledged record is lost, doubled or reordered."""
        with self.presenter.step("The records are all there"):
            writer.stop()
            found = read_numbers(self.cluster.bootstrap_servers, TOPIC, len(RACKS))
            numbers = [number for each in found.values() for number in each]
            self.presenter.check(
                f"none of {len(writer.acknowledged)} acknowledged records is missing",
                set(writer.acknowledged) <= set(numbers),
            )
            self.presenter.check("none is there twice", len(numbers) == len(set(numbers)))
            self.presenter.check(
                "and each partition has them in the order in which they were written",
                all(each == sorted(each) for each in found.values()),
            )
            self.presenter.check("the client was never refused", not writer.refused)
        return found

    def compare(self, reader: SparkJob, found: dict[int, list[int]]) -> None:
        """Compare what Spark read with the topic."""
        with self.presenter.step("A Spark job has read the topic through it all"):
            count = sum(map(len, found.values()))
            with self.presenter.waiting("the Spark job reads the last records"):
                self._wait_for(
                    lambda: not reader.is_alive or sum(map(len, reader.read().values())) >= count,
                    "the Spark job",
                )
            if not reader.is_alive:
                raise KlammError(f"The Spark job ended: {reader.last_words()}")
            self.presenter.check(
                f"it has the same {count} records in the same order, and none of them twice",
                reader.read() == found,
            )
            reader.stop()

    def ingest(self, found: dict[int, list[int]], out: Path) -> None:
        """Ingest the topic into a table."""
        kind = "delta" if find_spec("deltalake") else "parquet"
        table = out / "lake" / TOPIC
        with self.presenter.step(f"The topic becomes a {kind.title()} table while a broker dies"):
            command = ("ingest", TOPIC, "--to", f"{kind}:{table}", "--once", "--json")
            self.presenter.say(f"klamm {' '.join(command[:-1])}")
            servers = ("--bootstrap-server", self.cluster.bootstrap_servers)
            ingestion = subprocess.Popen(
                tied_klamm(*command, *servers, "--master", "local[1,4]"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            lost = next(each.leader for each in self._partitions())
            self.cluster.kill(lost)
            with self.presenter.waiting("Spark starts, and ingests the topic"):
                said, complaint = ingestion.communicate()
            if ingestion.returncode:
                raise KlammError(f"The table was not made: {complaint.strip()}")
            self.presenter.check(
                f"{json.loads(said)['records']} records are ingested without broker {lost}",
                self.cluster.registered() != set(self.cluster.broker_ids),
            )
            self.presenter.check(
                "a query of the table finds each of them once, in its order",
                read_table(kind, table) == found,
            )

    def report(self, out: Path) -> None:
        """Make the tables and the report of the history."""
        with self.presenter.step("What the controllers did, as a report"):
            spools = [str(spool) for spool in self.cluster.spools]
            with self.presenter.waiting("Spark starts, and makes tables of the history"):
                done = subprocess.run(
                    tied_klamm("history", "--out", str(out), "--json", "--spool", *spools),
                    capture_output=True,
                    check=False,
                    text=True,
                )
            if done.returncode:
                raise KlammError(f"The report was not made: {done.stderr.strip()}")
            made = json.loads(done.stdout)
            self.presenter.check(
                f"{made['events']} events and {made['elections']} elections are in its tables",
                made["events"] > 0 and made["elections"] > 0,
            )
            self.presenter.check("no event is missing from the history", not made["gaps"])
            self.presenter.say(f"The report: {made['report']}")

    # What the cluster is like

    def _partitions(self) -> list[PartitionDescription]:
        (found,) = topics.describe(self.cluster.admin, [TOPIC]).topics
        return list(found.partitions)

    def _wait(
        self, what: str, is_so: Callable[[list[PartitionDescription]], bool]
    ) -> list[PartitionDescription]:
        """Wait until the partitions fulfil a condition and the story of it is printed."""
        last: list[PartitionDescription] = []

        def look() -> bool:
            nonlocal last
            last = self._partitions()
            return is_so(last) and all(
                self.live_story.has_printed(each.partition, each.leader_epoch, each.isr)
                for each in last
            )

        self._wait_for(look, what)
        return last

    def _wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise KlammError(f"The demo waited {_PATIENCE_S:g} s for {what}.")
            self.live_story.print_new(len(RACKS))
            time.sleep(_LOOK_INTERVAL_S)
        self.live_story.print_new(len(RACKS))

    def _show(self, partitions: list[PartitionDescription]) -> None:
        self.presenter.show(
            ("partition", "leader", "epoch", "replicas", "isr"),
            [
                (
                    f"{each.topic}-{each.partition}",
                    each.leader,
                    each.leader_epoch,
                    ",".join(map(str, each.replicas)),
                    ",".join(map(str, each.isr)),
                )
                for each in partitions
            ],
        )


def read_table(kind: str, path: Path) -> dict[int, list[int]]:
    """The numbers of a table by partition, in the order of their offsets."""
    if kind == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(str(path)).to_pyarrow_table()
    else:
        from pyarrow import dataset

        from klamm.pipeline.ingest.tables.parquet import read_manifest

        rows = dataset.dataset(read_manifest(str(path)), format="parquet").to_table()
    found: dict[int, list[int]] = {}
    for row in rows.sort_by("offset").to_pylist():
        found.setdefault(row["partition"], []).append(int(row["value"]))
    return found


def _all_of(
    partitions: list[PartitionDescription], holds: Callable[[PartitionDescription], bool]
) -> bool:
    return bool(partitions) and all(map(holds, partitions))


def _is_whole(partitions: list[PartitionDescription]) -> bool:
    return _all_of(partitions, lambda each: not each.is_under_replicated)


def _is_preferred(partitions: list[PartitionDescription]) -> bool:
    return _all_of(partitions, lambda each: each.leader == each.replicas[0])
