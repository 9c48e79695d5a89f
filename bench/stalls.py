"""How long one client waits while another sends the largest requests there are.

    python -m bench.stalls [--megabytes 1] [API]...

For every API, or those that are named, and every array in its newest version: a request of that
size, its items once repeated and once numbered, is sent to a broker of its own, and meanwhile a
second client asks for its versions on another connection, and while the request is one for the
controller a third asks the controller. Prints the longest waits and the 99th percentile, and at the
end how many were above 50 ms, which is the aim on a machine at rest.
"""

import argparse
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from klamm.node.forwarding import CONTROLLER_APIS
from klamm.protocol.apis import APIS, ApiKey
from klamm.slices import prefer_event_loop
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.cluster import RealCluster
from tests.support.large_requests import Existing, LargeRequest, large_requests
from tests.support.pings import ASK_CONTROLLER, Pings
from tests.support.raw import Raw

PATIENCE_S = 120
AIM_MS = 50.0


class Longest:
    """The longest wait for each request, of the broker or of the controller."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._waits_ms: list[float] = []

    def note(self, pings: Pings) -> str:
        waits = sorted(pings.waits_ms)
        self._waits_ms.append(waits[-1])
        return f"{waits[-1]:7.1f} ms, p99 {waits[int(len(waits) * 0.99)]:6.1f} ms"

    def __str__(self) -> str:
        above = sum(wait > AIM_MS for wait in self._waits_ms)
        return (
            f"of the {self._of}: {above} of {len(self._waits_ms)} above {AIM_MS:g} ms, the longest"
            f" {max(self._waits_ms, default=0):.1f} ms,"
            f" the median {median(self._waits_ms or [0]):.1f} ms"
        )


def measure(port: int, request: LargeRequest, broker: Longest, controller: Longest) -> str:
    asks_controller = request.api in CONTROLLER_APIS
    with (
        Pings(port) as pings,
        Pings(port, ASK_CONTROLLER) if asks_controller else nullcontext() as controller_pings,
        Raw(port, timeout_s=PATIENCE_S) as raw,
    ):
        begun = time.perf_counter()
        try:
            raw.socket.sendall(request.frame)
            outcome = f"{len(raw.receive()):9} bytes"
        except OSError as error:
            outcome = str(error)
        took = time.perf_counter() - begun
    waits = broker.note(pings)
    if controller_pings is not None:
        waits += f"; of the controller {controller.note(controller_pings)}"
    return (
        f"{request!s:62} {request.items:8} items, answered in {took:6.2f} s: {outcome};"
        f" longest {waits}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=1)
    parser.add_argument("api", nargs="*", metavar="API", type=lambda name: ApiKey[name])
    options = parser.parse_args()
    size = int(options.megabytes * (1 << 20)) - 1024
    with (
        ZooKeeperServer() as zookeeper,
        tempfile.TemporaryDirectory() as directory,
        RealCluster(zookeeper, Path(directory), brokers=1) as cluster,
    ):
        cluster.create("t", assignment=[[1]] * 4)
        port = cluster[1].port
        with Raw(port) as raw:
            existing = Existing("t", raw.topic_id("t"), cluster.znode("/controller_epoch"))
        broker, controller = Longest("broker"), Longest("controller")
        # The clients are threads of this process: none of them keeps another from its clock.
        prefer_event_loop()
        for key in options.api or map(ApiKey, APIS):
            for request in large_requests(key, size, existing):
                print(measure(port, request, broker, controller), flush=True)
        print(broker, controller, sep="\n")


if __name__ == "__main__":
    main()
