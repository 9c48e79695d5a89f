"""Run the soak, print the figures, and fail if one has grown beyond its bound."""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from klamm.zookeeper.server import ZooKeeperServer
from tests.soak.figures import Figure, Sample, median, percentile, processes_of, sample
from tests.soak.load import PROBE, ROLLING, VICTIM, WIDE, Activities
from tests.support.cluster import RealCluster

_SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "10000",
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    "klamm.history.retention.bytes": str(16 << 20),
}
_ROLLING: Final = {"segment.bytes": str(1 << 20), "retention.bytes": str(4 << 20)}
_BEFORE_S: Final = 300
_SAMPLE_S: Final = 5


def main() -> int:
    parser = argparse.ArgumentParser("make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    given = parser.parse_args()
    with (
        ZooKeeperServer() as zookeeper,
        tempfile.TemporaryDirectory() as directory,
        RealCluster(zookeeper, Path(directory), brokers=3, settings=_SETTINGS) as cluster,
    ):
        _say(f"seed {given.seed}, {given.minutes:g} minutes, {given.partitions} partitions")
        for number in range(given.partitions // 100):
            cluster.create(f"{WIDE}-{number}", partitions=100, factor=2)
        cluster.create(ROLLING, partitions=3, factor=3, config=_ROLLING)
        cluster.create(PROBE, assignment=[[1, 2]])
        return _soak(cluster, given.partitions, 60 * given.minutes, given.seed)


def _soak(cluster: RealCluster, partitions: int, seconds: float, seed: int) -> int:
    activities = Activities(cluster, seed)
    begun = time.monotonic()
    before_s = min(_BEFORE_S, seconds / 3)
    window_s = before_s / 3
    activities.start(partitions)
    try:
        _wait_until(begun + before_s - window_s)
        before = _measure(activities, begun + before_s)
        _say(f"after {before_s / 60:g} minutes: {_told(before)}")
        while time.monotonic() < begun + seconds - window_s:
            _wait_until(min(time.monotonic() + 300, begun + seconds - window_s))
            minutes = (time.monotonic() - begun) / 60
            _say(f"after {minutes:.0f} minutes: {_told(_measure(activities, time.monotonic()))}")
        after = _measure(activities, begun + seconds)
    finally:
        activities.stop()
    figures = [
        Figure(name, of, before[name, of], after[name, of]) for name, of in before if of in _OF
    ]
    for what, times in sorted(activities.done.items()):
        _say(f"{times:>10} {what}")
    for figure in figures:
        _say(str(figure))
    for failure in activities.failures:
        _say(failure)
    grown = [figure for figure in figures if figure.has_grown]
    _say(f"{len(grown)} figures have grown beyond their bound")
    return 1 if grown or activities.failures else 0


_OF: Final = ("broker 1", "broker 2", "acks=all")


def _measure(activities: Activities, until: float) -> dict[tuple[str, str], float]:
    """Medians of samples, and percentiles of latencies, until a moment; no broker fails meanwhile.

    Of a moment that has come, one sample, and the latencies of the last minute with its faults.
    """
    begun = min(time.monotonic(), until - 60 if until <= time.monotonic() else until)
    if until > time.monotonic():
        activities.is_measured.set()
    samples: dict[str, list[Sample]] = {}
    while True:
        for broker in activities.cluster.brokers.values():
            if broker.id != VICTIM:
                taken = sample(processes_of(broker.pid))
                samples.setdefault(f"broker {broker.id}", []).append(taken)
        if time.monotonic() >= until:
            break
        _wait_until(min(time.monotonic() + _SAMPLE_S, until))
    activities.is_measured.clear()
    latencies = [took for at, took in activities.latencies if at >= begun] or [0.0]
    found: dict[tuple[str, str], float] = {}
    for of, taken_samples in samples.items():
        found["memory", of] = median([each.memory_mb for each in taken_samples])
        found["descriptors", of] = median([each.descriptors for each in taken_samples])
    found["p50", "acks=all"] = percentile(latencies, 0.5)
    found["p99", "acks=all"] = percentile(latencies, 0.99)
    return found


def _told(found: dict[tuple[str, str], float]) -> str:
    return ", ".join(f"{name} of {of} {value:.1f}" for (name, of), value in found.items())


def _wait_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S', time.gmtime())}] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
