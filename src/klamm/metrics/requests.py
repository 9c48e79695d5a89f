"""Metrics of requests: counts, sizes, the time in each stage, and errors.

Histograms are too slow for the request path. Each request leaves one row of measurements, rows are
added to columns of numbers by the dozen, and quantiles are computed when the page is read.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import Final, TypeAlias

from klamm.metrics.meters import RECENT_MAX, Histogram
from klamm.protocol.apis import APIS, ApiKey

#: A request whose response is about to be sent: its version, its size, the error codes of the
#: response, and four times by `perf_counter_ns`: when it had arrived, when its handler was called,
#: when the handler had returned or begun to wait, and when the response was ready.
Unsent: TypeAlias = tuple[int, int, Sequence[int], int, int, int, int]
#: The same with the time when the kernel had taken all of the response.
Row: TypeAlias = tuple[int, int, Sequence[int], int, int, int, int, int]

_SIZE, _ARRIVED, _BEGUN, _HANDLED, _RESPONDED, _SENT = 1, 3, 4, 5, 6, 7
#: Kafka's name for each time that is measured, and the columns between which it lies.
_TIMES: Final = {
    "TotalTimeMs": (_ARRIVED, _SENT),
    "RequestQueueTimeMs": (_ARRIVED, _BEGUN),
    "LocalTimeMs": (_BEGUN, _HANDLED),
    "RemoteTimeMs": (_HANDLED, _RESPONDED),
    # A response is sent as soon as it is ready.
    "ThrottleTimeMs": (_RESPONDED, _RESPONDED),
    "ResponseQueueTimeMs": (_RESPONDED, _RESPONDED),
    "ResponseSendTimeMs": (_RESPONDED, _SENT),
}
_MEASURED: Final = (_SIZE, _ARRIVED, _BEGUN, _HANDLED, _RESPONDED, _SENT)
_MS: Final = 1e-6  # of a nanosecond
#: How many rows wait to be added up. A row is ten times as large as its numbers in the columns.
_FRESH_MAX: Final = 64


class RequestMeter:
    """The measurements of the requests of one name."""

    def __init__(self, name: str, wider: "RequestMeter | None" = None) -> None:
        """Create a meter whose requests `wider` counts too."""
        self.name = name
        #: Requests by version.
        self.versions: Counter[int] = Counter()
        #: The error codes of responses, each of which may hold many; 0 is success.
        self.errors: Counter[int] = Counter() if wider is None else wider.errors
        self._wider = wider
        self._fresh: list[Row] = []
        #: The measured columns of the most recent rows.
        self._recent = {column: array("q") for column in _MEASURED}
        self._sums = [0] * (_SENT + 1)

    def note(self, unsent: Unsent) -> None:
        """Count a request whose response has just been sent."""
        self._fresh.append((*unsent, perf_counter_ns()))
        if len(self._fresh) >= _FRESH_MAX:
            self.settle()

    def count_errors(self, codes: Iterable[int] | Mapping[int, int]) -> None:
        """Count the error codes of a response, or add what was counted already."""
        self.errors.update(codes if isinstance(codes, Mapping) else map(int, codes))

    def settle(self) -> None:
        """Add the rows that were put aside to the sums."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        columns = tuple(zip(*fresh, strict=True))
        measured = {column: array("q", columns[column]) for column in _MEASURED}
        self.count_errors(chain.from_iterable(columns[2]))
        sums = [0, sum(columns[_SIZE]), 0, *map(sum, columns[_ARRIVED:])]
        meter: RequestMeter | None = self
        while meter is not None:
            meter.versions.update(columns[0])
            for column, recent in meter._recent.items():
                recent += measured[column]
                del recent[:-RECENT_MAX]
            meter._sums = [old + new for old, new in zip(meter._sums, sums, strict=True)]
            meter = meter._wider

    def measures(self) -> Iterator[tuple[str, Histogram]]:
        """The histograms of the settled rows, under Kafka's names."""
        count = self.versions.total()
        columns = self._recent
        for name, (begin, end) in _TIMES.items():
            total = (self._sums[end] - self._sums[begin]) * _MS
            times = zip(columns[begin], columns[end], strict=True)
            yield name, Histogram(count, total, ((to - since) * _MS for since, to in times))
        yield "RequestBytes", Histogram(count, self._sums[_SIZE], columns[_SIZE])


class RequestMeters:
    """The meters of all APIs. A fetch counts twice: as one of a consumer or follower, and as a
    Fetch.
    """

    def __init__(self) -> None:
        self.of_api = {key: RequestMeter(api.name) for key, api in APIS.items()}
        fetches = self.of_api[ApiKey.FETCH]
        self.consumer_fetches = RequestMeter("FetchConsumer", fetches)
        self.follower_fetches = RequestMeter("FetchFollower", fetches)

    def used(self) -> list[RequestMeter]:
        """Those that have something to show, up to date, by name."""
        meters = (*self.of_api.values(), self.consumer_fetches, self.follower_fetches)
        for meter in meters:
            meter.settle()
        return sorted((meter for meter in meters if meter.versions), key=lambda meter: meter.name)

    def errors(self) -> Counter[tuple[str, int]]:
        """How often each API has responded with each error code."""
        self.used()
        return Counter(
            {
                (meter.name, code): count
                for meter in self.of_api.values()
                for code, count in meter.errors.items()
            }
        )
