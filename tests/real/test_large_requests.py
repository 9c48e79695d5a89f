"""A large request of one client keeps no other waiting: every API, made from its schema.

`make bench BENCH=stalls` sends every array of every API at the size limit, and prints how long a
second client waits. Here the work that is done without a turn for others is counted in lines of
Python, which is the same on a machine however busy.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGUSR2

import pytest

from klamm.protocol.apis import APIS, ApiKey
from klamm.zookeeper.server import ZooKeeperServer
from tests.soak.figures import processes_of
from tests.support import line_counts
from tests.support.cluster import RealCluster
from tests.support.large_requests import Existing, LargeRequest, large_requests
from tests.support.raw import Raw
from tests.support.waiting import wait_until

#: Thousands of items: handling and encoding all of them in one go needs more lines than that.
_BYTES = 70_000
_LINES_MAX = 50_000
#: An older epoch than any: the requests of a controller would have to be obeyed.
_NO_EPOCH = 0
_WITHOUT_ARRAYS = 11
#: Brokers have fewer replicas, and a client that logs in names few mechanisms.
_CLOSED = {ApiKey.UPDATE_METADATA, ApiKey.SASL_HANDSHAKE}


class CountedCluster:
    """One broker that counts the lines which its event loops run without a turn for others."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.port = cluster[1].port
        self._folder = folder
        self._seen: dict[Path, int] = {}
        for pid in processes_of(cluster[1].pid):
            os.kill(pid, SIGUSR2)
            wait_until((folder / str(pid)).exists, f"process {pid} counts lines")

    def send(self, request: LargeRequest) -> bytes | None:
        """The response; None if the connection is closed in place of one."""
        with Raw(self.port, timeout_s=100) as raw:
            raw.socket.sendall(request.frame)
            try:
                return raw.receive()
            except ConnectionError:
                return None

    def long_callbacks(self) -> list[str]:
        """What has run for too many lines since the last call: functions, the innermost first."""
        found = []
        for file in self._folder.iterdir():
            lines = file.read_text().splitlines()
            found += lines[self._seen.get(file, 0) :]
            self._seen[file] = len(lines)
        return found


@pytest.fixture(scope="module")
def counted(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CountedCluster, Existing]]:
    folder = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(line_counts.__path__[0])), prepend=os.pathsep)
        patch.setenv("KLAMM_TEST_LINE_COUNTS", f"{folder}|{_LINES_MAX}")
        settings = {"zookeeper.session.timeout.ms": "60000"}
        with RealCluster(
            zookeeper_server, tmp_path_factory.mktemp("counted"), brokers=1, settings=settings
        ) as cluster:
            cluster.create("t", assignment=[[1]])
            with Raw(cluster[1].port) as raw:
                existing = Existing("t", raw.topic_id("t"), _NO_EPOCH)
            yield CountedCluster(cluster, folder), existing


def test_no_api_holds_an_event_loop(counted: tuple[CountedCluster, Existing]) -> None:
    cluster, existing = counted
    long: dict[str, list[str]] = {}
    sent: set[ApiKey] = set()
    for key in map(ApiKey, APIS):
        # Numbered, if there is anything to number.
        request = None
        for request in large_requests(key, _BYTES, existing):
            if request.is_numbered:
                break
        if request is None:
            continue
        if cluster.send(request) is None:
            assert key in _CLOSED, f"{request} is answered"
        sent.add(key)
        if callbacks := cluster.long_callbacks():
            long[str(request)] = callbacks
    assert long == {}
    assert len(sent) >= len(APIS) - _WITHOUT_ARRAYS


@pytest.mark.parametrize("key", [ApiKey.DESCRIBE_GROUPS, ApiKey.FIND_COORDINATOR])
def test_what_is_named_again_is_answered_again(cluster: RealCluster, topic: str, key: ApiKey):
    names = {
        ApiKey.DESCRIBE_GROUPS: {
            "groups": [topic] * 20_000,
            "include_authorized_operations": False,
        },
        ApiKey.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": [topic] * 20_000},
    }
    with Raw(cluster[1].port, timeout_s=60) as raw:
        response = raw.ask(key, **names[key])
    found = response.groups if key is ApiKey.DESCRIBE_GROUPS else response.coordinators
    assert len(found) == 20_000
    assert len({each.error_code for each in found}) == 1
