"""`klamm ingest` as a user runs it: exit codes, messages, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.pipeline import session
from klamm.pipeline.ingest import run
from klamm.pipeline.ingest.metrics import prometheus_text
from klamm.pipeline.ingest.run import Summary
from klamm.pipeline.source.messages import report_loss
from tests.pipeline.ingest.records import Place
from tests.pipeline.ingest.test_run import produce


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "name at least one topic"),
        (["orders"], "name a table"),
        (["orders", "--to", "hudi:x"], "'hudi:x' is not a table"),
        (["orders", "--to", "delta:x", "--format", "xml"], "Unknown format 'xml'"),
        (["orders", "--to", "delta:x", "--once", "--continuous"], "either --once or --continuous"),
        (["orders", "--to", "delta:x", "--max-bad", "7"], "a share from 0 to 1"),
        (["orders", "--to", "delta:x", "--format", "avro"], "avro needs a schema"),
        (["orders", "--to", "delta:x", "--format", "json", "--schema", "no.json"], "be read"),
        (["orders", "--to", "delta:x", "--retain", "long"], "is not a duration"),
        (["orders", "--to", "delta:x", "--expect", "drop:"], "is not an expectation"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused_before_anything_starts(arguments, what):
    result = CliRunner().invoke(app, ["ingest", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert what in " ".join(result.output.split())


def test_init_writes_a_project_once(tmp_path):
    folder = tmp_path / "lake"
    arguments = ["ingest", "orders", "users", "--init", str(folder), "-b", "host:1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (folder / "spark-pipeline.yml").read_text().splitlines()[1] == "name: lake"
    tables = (folder / "transformations" / "tables.py").read_text()
    compile(tables, "tables.py", "exec")
    assert 'TOPICS = "orders,users"' in tables
    assert 'BOOTSTRAP_SERVERS = "host:1"' in tables
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "not an empty folder" in str(again.exception)


def test_metrics_are_prometheus_text():
    text = prometheus_text(Summary(records=5, lag=7, broken={'a > "x"': 2}))
    assert "klamm_ingest_records_total 5" in text
    assert "klamm_ingest_lag 7" in text
    assert 'klamm_ingest_broken_total{expectation="a > \\"x\\""} 2' in text


def test_data_that_is_gone_is_told_with_the_option_of_the_command(monkeypatch):
    def lose(*_, **__):
        report_loss("orders was deleted and created again", fail=True)

    monkeypatch.setattr(session, "spark_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(run, "ingest_topics", lose)
    done = CliRunner().invoke(app, ["ingest", "orders", "--to", "delta:x"])
    told = str(done.exception)
    assert told.startswith("orders was deleted and created again.")
    assert told.endswith(
        "If you don't want your streaming query to fail on such cases, name --allow-data-loss."
    )


def command(cluster, topic, folder, *more):
    to = f"parquet:{folder}/orders"
    return [
        *(sys.executable, "-m", "klamm", "ingest", topic, "--to", to, "--format", "json"),
        *("-b", cluster.bootstrap, "--master", "local[1]", *more),
    ]


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_continuous_run_ends_with_0_after_ctrl_c_and_once_goes_on(cluster, topic, tmp_path):
    produce(cluster, topic, [{"id": n} for n in range(10)] + [b"bad"])
    process = subprocess.Popen(
        command(cluster, topic, tmp_path, "--continuous", "--every", "0.2"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(300, lambda: os.killpg(process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("batch 1: 11 records"):
                break
        # As a terminal does it: the signal goes to the whole group.
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 0, "".join(lines) + rest
    finally:
        watchdog.cancel()
        process.stderr.close()
    assert "11 records in 1 batch are in parquet:" in rest
    assert "1 record that does not parse is in" in rest
    produce(cluster, topic, [{"id": n} for n in range(10, 15)])
    done = subprocess.run(
        command(cluster, topic, tmp_path, "--once", "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["records"], summary["bad"], summary["lag"]) == (5, 0, 0)
    rows = Place("parquet", tmp_path).rows()
    assert sorted(each["id"] for each in rows) == list(range(15))


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_failure_is_one_sentence_and_exit_code_1(cluster, tmp_path):
    done = subprocess.run(
        command(cluster, "nope", tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("klamm: UNKNOWN_TOPIC_OR_PARTITION: there is no topic nope")
