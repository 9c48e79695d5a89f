"""Sparks beyond this process: standalone and Spark Connect, from the jars of pyspark."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.support.ports import free_port
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
#: What each kind of master is called in tests.
KINDS = ("local-cluster", "standalone", "connect")
_START_S = 120.0
_LITTLE = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_CONNECT_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "1g",
}


@contextmanager
def spark_master(
    kind: str, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[str]:
    """What `--master` gets for a Spark of this kind; everything ends with the block."""
    if kind == "local-cluster":
        yield LOCAL_CLUSTER
        return
    starting = standalone if kind == "standalone" else connect_server
    with starting(folder, environment or {}) as url:
        yield url


@contextmanager
def standalone(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master and two workers with one core each."""
    port = free_port()
    master = ("--host", HOST, "--port", str(port), "--webui-port", str(free_port()))
    url = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        stack.enter_context(_process(folder / "master", environment, _MASTER, master))
        _wait_port(port)
        for number in (1, 2):
            work = folder / f"worker-{number}"
            arguments = ("--host", HOST, "--cores", "1", "--memory", "1g", "--work-dir", str(work))
            ports = ("--webui-port", str(free_port()), "--port", str(free_port()))
            stack.enter_context(_process(work, environment, _WORKER, (*arguments, *ports, url)))
        log = folder / "master" / "log"
        wait_until(
            lambda: log.read_text().count("Registering worker") == 2, "two workers", _START_S
        )
        yield url


@contextmanager
def connect_server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A Spark Connect server with two cores."""
    port = free_port()
    settings = {**_CONNECT_SETTINGS, "spark.connect.grpc.binding.port": str(port)}
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    submit = ("--master", "local[2,4]", *words, "--class", _CONNECT, "spark-internal")
    with _process(folder / "server", environment, "org.apache.spark.deploy.SparkSubmit", submit):
        _wait_port(port)
        yield f"sc://{HOST}:{port}"


@contextmanager
def _process(
    folder: Path, environment: dict[str, str], name: str, arguments: Sequence[str]
) -> Iterator[None]:
    folder.mkdir(parents=True)
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [spark_class, name, *arguments],
            env=os.environ
            | {
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
                "SPARK_LOCAL_IP": HOST,
                "SPARK_LOG_DIR": str(folder),
                "SPARK_DAEMON_JAVA_OPTS": " ".join(_LITTLE),
                "PYSPARK_PYTHON": sys.executable,
                **environment,
            },
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_port(port: int) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    wait_until(answers, f"something listens at {port}", _START_S)
