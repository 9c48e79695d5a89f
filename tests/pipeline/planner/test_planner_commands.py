"""The three commands, one after another, on a real cluster."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from klamm.client import reassignments
from klamm.local.cluster import Cluster
from klamm.pipeline.snapshot.zookeeper import snapshot_from_zookeeper
from tests.support.command_line import run_here


@pytest.mark.spark_heavy
@pytest.mark.real
@pytest.mark.timeout(900)
def test_from_a_cluster_to_a_plan_that_it_carries_out(spark, tmp_path: Path):
    with Cluster(brokers=4) as cluster:
        # Broker 4 has nothing yet.
        cluster.create_topic("orders", assignment=[[1, 2], [2, 3], [3, 1], [1, 3], [2, 1], [3, 2]])
        where = str(tmp_path / "snapshot")
        run_here("snapshot", "-b", cluster.bootstrap_servers, "--out", where).ok()
        names = pq.read_table(f"{where}/partitions")["topic"].to_pylist()
        assert names.count("orders") == 6

        answer = str(tmp_path / "whatif")
        run_here("whatif", "--snapshot", where, "--fail", "brokers:2", "--out", answer).ok()
        assert pq.read_table(f"{answer}/scenarios").num_rows == 6
        lost = pq.read_table(f"{answer}/partitions").to_pylist()
        assert Counter(row["scenario"] for row in lost if row["topic"] == "orders") == {
            "brokers:1,2": 2,
            "brokers:1,3": 2,
            "brokers:2,3": 2,
        }
        assert "do not survive" in Path(answer, "report.html").read_text()

        plan = tmp_path / "plan" / "plan.json"
        summary = run_here("plan", "--snapshot", where, "--out", str(plan), "--json").json()
        assert summary["replicas_moved"] >= summary["lower_bound_replicas"] > 0
        balance = summary["balance"]["after"]["replicas"]
        assert balance["max"] - balance["min"] <= 2
        waves = ("--wave-moves", "1", "--out", str(plan))
        again = run_here("plan", "--snapshot", where, *waves, "--json").json()
        assert again == summary | {"waves": again["waves"]}
        assert again["waves"] > 1
        folder = str(plan.with_name("waves"))
        run_here("reassign", "execute", folder, "-b", cluster.bootstrap_servers, "--wait").ok()
        wanted = reassignments.decode_plan(plan.read_bytes(), "plan")
        after = snapshot_from_zookeeper(cluster.zookeeper, with_sizes=False).partitions.to_pylist()
        found = {(row["topic"], row["partition"]): tuple(row["replicas"]) for row in after}
        assert {name: found[name] for name in wanted} == wanted
