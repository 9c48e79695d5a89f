"""A broker's metrics where it serves them (`klamm.metrics.port`), and what the protocol says else.

A broker that serves none, as Apache Kafka's, whose metrics are JMX, is judged from outside: by the
end offsets of what it leads, by the size of its log directories, and by how fast it answers.
"""

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any, Final

from klamm.client import brokers, configs, groups
from klamm.client.admin import Admin
from klamm.client.configs import ConfigResource
from klamm.errors import KlammError, UnavailableError
from klamm.names import LATEST, TopicPartition
from klamm.protocol.codes import KafkaError

_PATIENCE_S: Final = 5.0
_PAGE_BYTES_MAX: Final = 64 << 20
#: Where a broker's metrics are is asked again after this time.
_ADDRESS_S: Final = 60.0
#: End offsets are requested only of brokers that lead at most this many partitions.
_LED_MAX: Final = 2_000
#: As `klamm.metrics.host`: all addresses of the machine.
_EVERYWHERE: Final = (None, "", "0.0.0.0", "::")
_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TOPICS: Final = "kafka_server_BrokerTopicMetrics_"
_REQUESTS: Final = "kafka_network_RequestMetrics_"
#: Counters of a broker, by the name that the console gives them.
_COUNTERS: Final = {
    f"{_TOPICS}MessagesInPerSec_total": "records_in",
    f"{_TOPICS}BytesInPerSec_total": "bytes_in",
    f"{_TOPICS}BytesOutPerSec_total": "bytes_out",
    f"{_TOPICS}ReplicationBytesInPerSec_total": "replication_in",
    f"{_TOPICS}ReplicationBytesOutPerSec_total": "replication_out",
}
_GAUGES: Final = {"kafka_server_ReplicaManager_UnderReplicatedPartitions": "under_replicated"}
#: Requests whose times are shown.
_TIMED: Final = {
    "Produce": "produce",
    "FetchConsumer": "consume",
    "FetchFollower": "replicate",
    "Metadata": "metadata",
}
_QUANTILES: Final = {"0.5": "p50_ms", "0.99": "p99_ms"}
#: A fetch is counted as such, and again as one of a consumer or of a follower.
_COUNTED_TWICE: Final = frozenset({"FetchConsumer", "FetchFollower"})


def parse_metrics(text: str) -> dict[str, float]:
    """The console's numbers from a page of metrics: counters, gauges, times of requests."""
    found: dict[str, float] = {}
    for name, labels, value in _lines(text, (_TOPICS, _REQUESTS, *_GAUGES)):
        if name in _COUNTERS and not labels:
            found[_COUNTERS[name]] = value
        elif name in _GAUGES:
            found[_GAUGES[name]] = value
        elif name == f"{_REQUESTS}RequestsPerSec_total":
            if labels["request"] not in _COUNTED_TWICE:
                found["requests"] = found.get("requests", 0.0) + value
                found.setdefault("errors", 0.0)  # a broker without errors has no line for them
        elif name == f"{_REQUESTS}ErrorsPerSec_total":
            if labels["error"] != "NONE":
                found["errors"] = found.get("errors", 0.0) + value
        elif name == f"{_REQUESTS}TotalTimeMs":
            request, quantile = _TIMED.get(labels["request"]), _QUANTILES.get(labels["quantile"])
            if request is not None and quantile is not None:
                found[f"{request}_{quantile}"] = value
    return found


def parse_denials(text: str) -> list[dict[str, Any]]:
    """The number of requests refused for lack of permission or login, by request and error."""
    return [
        {"request": labels["request"], "error": labels["error"], "count": int(value)}
        for name, labels, value in _lines(text, (f"{_REQUESTS}ErrorsPerSec_total",))
        if labels["error"].endswith(("AUTHORIZATION_FAILED", "AUTHENTICATION_FAILED"))
    ]


def _lines(text: str, prefixes: Sequence[str]) -> Iterable[tuple[str, dict[str, str], float]]:
    wanted = tuple(prefixes)
    for line in text.splitlines():
        if line.startswith(wanted) and (match := _LINE.fullmatch(line)):
            labels = {} if match[2] is None else dict(_LABEL.findall(match[2]))
            yield match[1], labels, float(match[3])


def _is_loopback(host: str | None) -> bool:
    return host is not None and (host in ("localhost", "::1") or host.startswith("127."))


class BrokerMetrics:
    """Reads the metrics of brokers; remembers where each serves them."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = threading.Lock()
        self._addresses: dict[int, tuple[float, tuple[str, int] | None]] = {}

    def page(self, broker: int) -> str | None:
        """The page of metrics of a broker; None if it offers none that can be reached."""
        address = self._address(broker)
        if address is None:
            return None
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        # The address is the broker's own: no proxy of the environment stands between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{host}:{address[1]}/metrics", timeout=_PATIENCE_S) as found:
                return str(found.read(_PAGE_BYTES_MAX), "utf-8", "replace")
        except (OSError, ValueError, urllib.error.URLError):
            return None

    def _address(self, broker: int) -> tuple[str, int] | None:
        now = time.monotonic()
        with self._lock:
            known = self._addresses.get(broker)
        if known is not None and now - known[0] < _ADDRESS_S:
            return known[1]
        address = self._find_address(broker)
        with self._lock:
            self._addresses[broker] = (now, address)
        return address

    def _find_address(self, broker: int) -> tuple[str, int] | None:
        settings = {
            each.name: each.value
            for each in configs.describe(self._admin, ConfigResource.broker(broker))
        }
        port = settings.get("klamm.metrics.port")
        if not port:
            return None
        live = {each.node_id: each.host for each in self._admin.metadata([]).brokers}
        host, given = live.get(broker), settings.get("klamm.metrics.host")
        if host is None or (_is_loopback(given) and not _is_loopback(host)):
            return None  # served on the broker's machine alone, which is not this one
        return (host if given in _EVERYWHERE else str(given), int(port))

    def sample(self, broker: int, led: Sequence[TopicPartition]) -> dict[str, float]:
        """The numbers of a broker now: its own metrics, or what can be seen from outside."""
        begun = time.perf_counter()
        self._admin.metadata_of(broker, [])
        values = {"answer_ms": (time.perf_counter() - begun) * 1000}
        directories = brokers.log_dirs(self._admin, broker)
        values["bytes"] = float(sum(each.bytes for each in directories))
        page = self.page(broker)
        if page is not None:
            return values | parse_metrics(page)
        if 0 < len(led) <= _LED_MAX:
            ends = groups.offsets_at(self._admin, led, LATEST)
            values["end_offsets"] = float(sum(ends.values()))
        return values

    def denials(self, ids: Iterable[int]) -> dict[str, Any]:
        """The refused requests by broker, and the brokers without metrics."""
        found: dict[str, Any] = {"brokers": [], "without": [], "denials": []}
        for broker in ids:
            try:
                page = self.page(broker)
            except (KafkaError, UnavailableError):
                page = None
            found["without" if page is None else "brokers"].append(broker)
            rows = [] if page is None else parse_denials(page)
            found["denials"] += [{"broker": broker, **row} for row in rows]
        return found

    def sample_all(self, led: dict[int, Sequence[TopicPartition]]) -> dict[int, dict[str, float]]:
        """The numbers of several brokers; one that does not answer is left out."""
        found = {}
        for broker, names in led.items():
            try:
                found[broker] = self.sample(broker, names)
            except KlammError:
                continue
        return found
