"""Prometheus' text format, version 0.0.4, for metrics that go by Kafka's names.

A metric that Kafka calls `kafka.controller:type=KafkaController,name=ActiveControllerCount` is
called `kafka_controller_KafkaController_ActiveControllerCount`; further parts of Kafka's name, such
as `broker-id=1`, become labels.
"""

import math
from collections.abc import Iterable, Iterator

from klamm.metrics.meters import QUANTILES, WINDOWS_MIN, Histogram, Meter, Timer


class Page:
    """The text as it grows: for each metric a line about its name and kind, then its samples."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def gauge(self, jmx_name: str, value: float) -> None:
        self.gauges(jmx_name, [("", value)])

    def gauges(self, jmx_name: str, values: Iterable[tuple[str, float]]) -> None:
        name = prometheus_name(jmx_name)
        self._describe(name, jmx_name, "gauge")
        for labels, value in values:
            self._sample(name, labels, value)

    def counters(self, jmx_name: str, counts: Iterable[tuple[str, int]]) -> None:
        """Meters of which only the count is kept; Prometheus computes the rates."""
        name = f"{prometheus_name(jmx_name)}_total"
        self._describe(name, jmx_name, "counter")
        for labels, count in counts:
            self._sample(name, labels, count)

    def meter(self, jmx_name: str, meter: Meter) -> None:
        name = prometheus_name(jmx_name)
        self._describe(f"{name}_total", jmx_name, "counter")
        self._sample(f"{name}_total", "", meter.count)
        self._rates(name, jmx_name, [("", meter)])

    def histogram(self, jmx_name: str, histogram: Histogram) -> None:
        self.histograms(jmx_name, [("", histogram)])

    def histograms(self, jmx_name: str, histograms: Iterable[tuple[str, Histogram]]) -> None:
        self._summaries(prometheus_name(jmx_name), jmx_name, histograms)

    def timers(self, jmx_name: str, timers: Iterable[tuple[str, Timer]]) -> None:
        name = prometheus_name(jmx_name)
        timers = list(timers)
        self._summaries(name, jmx_name, [(label, t.durations_ms) for label, t in timers])
        self._rates(name, jmx_name, [(label, timer.meter) for label, timer in timers])

    def _summaries(
        self, name: str, jmx_name: str, histograms: Iterable[tuple[str, Histogram]]
    ) -> None:
        self._describe(name, jmx_name, "summary")
        for labels, histogram in histograms:
            for quantile, value in zip(QUANTILES, histogram.quantiles(), strict=True):
                self._sample(name, _joined(labels, f'quantile="{quantile}"'), value)
            self._sample(f"{name}_sum", labels, histogram.sum)
            self._sample(f"{name}_count", labels, histogram.count)

    def _rates(self, name: str, jmx_name: str, meters: Iterable[tuple[str, Meter]]) -> None:
        self._describe(f"{name}_rate", f"{jmx_name}, in a second", "gauge")
        for labels, meter in meters:
            for window, rate in _windows(meter):
                self._sample(f"{name}_rate", _joined(labels, f'window="{window}"'), rate)

    def _describe(self, name: str, text: str, kind: str) -> None:
        self._lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")

    def _sample(self, name: str, labels: str, value: float) -> None:
        shown = f"{{{labels}}}" if labels else ""
        self._lines.append(f"{name}{shown} {'NaN' if math.isnan(value) else f'{value:.10g}'}")


def prometheus_name(jmx_name: str) -> str:
    """`kafka.controller:type=T,name=N` as `kafka_controller_T_N`."""
    group, _, properties = jmx_name.partition(":")
    parts = [part.partition("=")[2].replace("-", "_") for part in properties.split(",")]
    return "_".join([group.replace(".", "_"), *parts])


def _joined(*labels: str) -> str:
    return ",".join(label for label in labels if label)


def _windows(meter: Meter) -> Iterator[tuple[str, float]]:
    yield "mean", meter.mean_rate()
    for minutes, rate in zip(WINDOWS_MIN, meter.rates(), strict=True):
        yield f"{minutes}m", rate
