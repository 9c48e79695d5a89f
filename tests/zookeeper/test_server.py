"""Real servers: how they start, stop and die."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from klamm.errors import ConfigError, UnavailableError
from klamm.local.security import zookeeper_stores
from klamm.zookeeper import java, server
from klamm.zookeeper.java import find_java, java_version
from klamm.zookeeper.server import ZooKeeperEnsemble, ZooKeeperServer
from klamm.zookeeper.session import open_store
from klamm.zookeeper.store import (
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SessionSuspended,
)
from tests.support.command_line import interruptible
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- one server -----------------------------------------------------------------------------------


def test_a_server_serves_when_it_has_started_and_leaves_nothing_behind():
    with ZooKeeperServer() as zookeeper:
        data_dir, pid = zookeeper.data_dir, zookeeper.pid
        assert data_dir is not None
        client = KazooClient(hosts=zookeeper.address)
        client.start(timeout=5)
        client.create("/a")
        client.stop()
        client.close()
    assert not is_running(pid)
    assert not data_dir.exists()
    with pytest.raises(UnavailableError):
        _ = zookeeper.pid


def test_a_session_timeout_of_a_second_is_granted(zookeeper_server: ZooKeeperServer):
    with socket.create_connection((zookeeper_server.host, zookeeper_server.port)) as sock:
        request = bytes(12) + (1000).to_bytes(4, "big") + bytes(8) + (16).to_bytes(4, "big")
        request += bytes(16)
        sock.sendall(len(request).to_bytes(4, "big") + request)
        reply = sock.recv(100)
    assert int.from_bytes(reply[8:12], "big") == 1000


async def test_data_in_a_directory_survives_a_stop_and_a_crash(tmp_path: Path):
    zookeeper = ZooKeeperServer(data_dir=tmp_path / "data")
    for step, end in enumerate((zookeeper.stop, zookeeper.kill, zookeeper.stop)):
        zookeeper.start()
        store = await open_store(zookeeper.address)
        assert len(await store.children("/")) == 1 + step
        await store.create(f"/n{step}")
        await store.close()
        end()
    assert (tmp_path / "data" / "version-2").exists()


def test_the_port_stays_the_same_over_a_restart():
    zookeeper = ZooKeeperServer()
    with zookeeper:
        port = zookeeper.port
        zookeeper.kill()
        zookeeper.start()
        assert zookeeper.port == port


def test_the_server_outlives_the_thread_that_started_it():
    zookeeper = ZooKeeperServer()
    thread = threading.Thread(target=zookeeper.start)
    thread.start()
    thread.join()
    try:
        assert server._serves(zookeeper.host, zookeeper.port)
        assert zookeeper.is_running
    finally:
        zookeeper.stop()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of the end of another"
)
def test_a_server_dies_with_a_parent_that_is_killed():
    program = (
        "from klamm.zookeeper.server import ZooKeeperServer\n"
        "server = ZooKeeperServer().start()\n"
        "print(server.pid, server.data_dir, flush=True)\n"
        "import signal; signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, data_dir = parent.stdout.readline().split()
        assert is_running(int(pid))
        parent.kill()
    wait_until(lambda: not is_running(int(pid)))
    assert Path(os.fsdecode(data_dir)).is_dir()
    ZooKeeperServer().start().stop()
    assert not Path(os.fsdecode(data_dir)).exists(), "the next one removes it"


def test_a_parent_that_ends_without_stopping_its_server_takes_all_with_it():
    program = (
        "from klamm.zookeeper.server import ZooKeeperServer\n"
        "server = ZooKeeperServer().start()\n"
        "print(server.pid, server.data_dir)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    pid, data_dir = run.stdout.split()
    wait_until(lambda: not is_running(int(pid)))
    assert not Path(data_dir).exists()
    assert run.stderr == ""


def test_a_port_that_is_taken_is_the_operators_to_fix():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} .*in use.*--port"):
            ZooKeeperServer(port).start()


def test_a_data_directory_that_cannot_be_used_is_the_operators_to_fix(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="data directory"):
        ZooKeeperServer(data_dir=tmp_path / "file").start()


@pytest.mark.parametrize("heap", ["", "lots", "512", "-1m"])
def test_a_heap_that_makes_no_sense_is_refused(heap: str):
    with pytest.raises(ConfigError, match="heap"):
        ZooKeeperServer(heap=heap)


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:\d+: Invalid config"):
        ZooKeeperServer(settings={"tickTime": "nonsense"}).start()


def test_the_jars_that_pyspark_lacks_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "_JARS", ("no-such-*.jar",))
    with pytest.raises(ConfigError, match=r"no-such-.*pip install"):
        ZooKeeperServer().start()


# --- in the foreground ----------------------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_in_the_foreground_it_runs_until_it_is_told_to_stop(tmp_path: Path, sig: signal.Signals):
    port = free_port()
    program = (
        "from klamm.zookeeper.server import run_foreground\n"
        f"run_foreground({port}, {str(tmp_path)!r}, '128m')\n"
    )
    command = interruptible(sys.executable, "-c", program)
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert f"ready at 127.0.0.1:{port}".encode() in process.stderr.readline()
        assert server._serves("127.0.0.1", port)
        process.send_signal(sig)
        assert process.wait(20) == 0
        assert process.stderr.read() == b""
    assert "binding to port" in (tmp_path / "zookeeper.log").read_text()
    assert not server._serves("127.0.0.1", port)


# --- an ensemble ----------------------------------------------------------------------------------


async def test_an_ensemble_of_three_survives_the_loss_of_one_member_after_another():
    with ZooKeeperEnsemble() as ensemble:
        store = await open_store(ensemble.address + "/chroot", 30_000)
        session_id = store.session_id
        await store.create("/a", b"")
        # One of them is the leader, and one is the one that we talk to.
        for i, member in enumerate(ensemble.members):
            member.kill()
            await store.set("/a", b"%d" % i)
            member.launch()
            assert (await store.get("/a")).data == b"%d" % i
        await store.close()
        events = [event async for event in store.events()]
        assert events[:3] == [SessionStarted(session_id), SessionSuspended(), SessionResumed()]
        assert not any(isinstance(event, SessionExpired) for event in events)


def ready_at(process: subprocess.Popen[bytes]) -> str:
    """The connect string that `klamm zookeeper` prints when it is ready."""
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    found = re.search(r"ready at (\S+)", said)
    assert found, said
    return found[1]


async def _create(address: str, path: str, data: bytes) -> None:
    store = await open_store(address, 30_000)
    await store.create(path, data)
    await store.close()


async def _read(address: str, path: str) -> bytes | None:
    store = await open_store(address, 30_000)
    node = await store.get(path)
    await store.close()
    return node.data


def test_one_command_starts_an_ensemble_that_keeps_its_data(tmp_path: Path):
    command = interruptible(
        *(sys.executable, "-m", "klamm", "zookeeper", "--ensemble", "3", "--port", "0"),
        *("--data-dir", str(tmp_path), "--heap", "128m"),
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        address = ready_at(process)
        assert len(address.split(",")) == 3
        asyncio.run(_create(address, "/kept", b"by all three"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["1", "2", "3"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert asyncio.run(_read(ready_at(process), "/kept")) == b"by all three"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.rule("SEC-12")
def test_one_command_starts_an_ensemble_behind_tls(tmp_path: Path):
    command = interruptible(
        *(sys.executable, "-m", "klamm", "zookeeper", "--ensemble", "3", "--port", "0"),
        *("--heap", "128m", "--tls"),
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stderr is not None
        said = [process.stderr.readline().decode().strip() for _ in range(4)]
        tls = zookeeper_stores(tmp_path / "zookeeper-tls")
        assert said == tls.broker_settings()
        for member in ready_at(process).split(","):
            host, port = member.split(":")
            assert server._serves(host, int(port), tls)
            assert not server._serves(host, int(port), None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("size", ["0", "three"])
def test_an_ensemble_of_no_size_is_refused(size: str):
    command = [sys.executable, "-m", "klamm", "zookeeper", "--ensemble", size]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"a number from 1 on is expected, not '{size}'" in ended.stderr


# --- Java -----------------------------------------------------------------------------------------


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("version", "release"), [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25)]
)
def test_the_release_is_told_by_file_or_by_running_it(tmp_path: Path, version: str, release: int):
    found = fake_java(tmp_path, version)
    assert java_version(found) == release
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    found.unlink()
    assert java_version(found) == release


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home, path = fake_java(tmp_path / "home", "17"), fake_java(tmp_path / "path", "21")
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == home
    assert find_java(minimum=18) == path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert find_java() == path


def test_without_java_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    with pytest.raises(ConfigError, match=r"^No Java was found: install Java 11 or newer.*\.$"):
        ZooKeeperServer().start()


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = fake_java(tmp_path, "1.8.0_392")
    monkeypatch.setattr(java, "_candidates", lambda: iter([old]))
    with pytest.raises(ConfigError, match=rf"^Java 8 at {old} is too old: install Java 11"):
        find_java()
