"""A large request of one client keeps no other waiting: every API, made from its schema.

`make bench BENCH=stalls` does the same with every array of every API and prints the waits.
"""

import pytest

from klamm.node.forwarding import CONTROLLER_APIS
from klamm.protocol.apis import APIS, ApiKey
from tests.support.cluster import RealCluster
from tests.support.large_requests import Existing, large_requests
from tests.support.pings import ASK_CONTROLLER, Pings
from tests.support.raw import Raw

_BYTES = 200_000
#: Only a request that is handled in one go takes as long, on a machine however busy.
_STALL_MS = 2000
#: An older epoch than any: these would have to be obeyed.
_NO_EPOCH = 0
_WITHOUT_ARRAYS = 11


def test_no_api_keeps_another_client_waiting(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, assignment=[[1]])
    port = cluster[1].port
    with Raw(port) as raw:
        existing = Existing(topic, raw.topic_id(topic), _NO_EPOCH)
    waits: dict[str, float] = {}
    for key in APIS:
        request = next(large_requests(ApiKey(key), _BYTES, existing, items_max=20_000), None)
        if request is None:
            continue
        with Pings(port) as pings, Raw(port, timeout_s=100) as raw:
            raw.socket.sendall(request.frame)
            try:
                raw.receive()
            except ConnectionError:
                assert key == ApiKey.SASL_HANDSHAKE, f"{request} is answered"
        waits[str(request)] = max(pings.waits_ms)
    assert len(waits) >= len(APIS) - _WITHOUT_ARRAYS
    assert {name: wait for name, wait in waits.items() if wait > _STALL_MS} == {}


def test_no_request_to_the_controller_keeps_another_waiting_for_it(
    cluster: RealCluster, topic: str
) -> None:
    cluster.create(topic, assignment=[[1]])
    controller = cluster.controller_id()
    assert controller is not None
    port = cluster[controller].port
    with Raw(port) as raw:
        existing = Existing(topic, raw.topic_id(topic), _NO_EPOCH)
    waits: dict[str, float] = {}
    for key in CONTROLLER_APIS:
        requests = large_requests(key, _BYTES, existing, items_max=20_000)
        request = next((each for each in requests if each.is_numbered), None)
        if request is None:
            continue
        with Pings(port, ASK_CONTROLLER) as pings, Raw(port, timeout_s=100) as raw:
            raw.socket.sendall(request.frame)
            raw.receive()
        waits[str(request)] = max(pings.waits_ms)
    assert len(waits) == len(CONTROLLER_APIS) - 2
    assert {name: wait for name, wait in waits.items() if wait > _STALL_MS} == {}


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
