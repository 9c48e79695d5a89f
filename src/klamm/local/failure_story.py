"""What a failing test is shown: the story of its topics, its faults, and what the brokers said."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self, TypeAlias

from klamm.errors import KlammError
from klamm.history.spool import LINGER_S
from klamm.history.story import stories_since
from klamm.local.cluster import Cluster
from klamm.names import TopicPartition, counted

#: A heading, and the text below it.
Section: TypeAlias = tuple[str, str]

_LOG_LINES: Final = 15
_SPOOL_PATIENCE_S: Final = 5 * LINGER_S
_PARTITIONS_MAX: Final = 12
_SENTENCES_MAX: Final = 20


class FailureStory:
    """What has happened to a cluster since its start, or from a moment on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._began = datetime.min.replace(tzinfo=UTC)
        self._log_sizes: dict[int, int] = {}
        self._topics_before: set[str] = set()

    @classmethod
    def from_now_on(cls, cluster: Cluster) -> Self:
        """The story without what has happened before."""
        made = cls(cluster)
        made._began = datetime.now(UTC)
        made._log_sizes = {broker: _size(log) for broker, log in made._logs().items()}
        made._topics_before = {name.topic for name in made._partitions()}
        return made

    def sections(self) -> list[Section]:
        """The stories of the partitions about which something was decided, then the logs."""
        logs = (self._log_section(broker, log) for broker, log in self._logs().items())
        return [*self._stories(), *(section for section in logs if section is not None)]

    def _stories(self) -> list[Section]:
        try:
            names = self._partitions()
            # Without topics of its own, a test is about those that were there before.
            own = [name for name in names if name.topic not in self._topics_before] or names
            stories = self._read([str(name) for name in own])
        except (KlammError, TimeoutError, OSError) as error:
            return [("klamm story", f"It cannot be told: {error}")]
        told = [
            (f"klamm story {name}", "\n".join(_last(sentences, _SENTENCES_MAX)))
            for name, sentences in stories.items()
        ]
        if len(told) > _PARTITIONS_MAX:
            more = counted(len(told) - _PARTITIONS_MAX, "more partition")
            told[_PARTITIONS_MAX:] = [("klamm story", f"({more}: see `klamm story`.)")]
        return told

    def _partitions(self) -> list[TopicPartition]:
        return [name for name in self._cluster.partitions() if not name.topic.startswith("__")]

    def _read(self, names: list[str]) -> dict[str, list[str]]:
        # What a controller decides reaches its spool a moment later.
        time.sleep(_SPOOL_PATIENCE_S)
        return stories_since(self._cluster.spools, names, self._began)

    def _logs(self) -> dict[int, Path]:
        return {each: self._cluster.broker(each).log for each in self._cluster.broker_ids}

    def _log_section(self, broker: int, log: Path) -> Section | None:
        """The end of what a broker has logged since the beginning; None if that is nothing."""
        try:
            with log.open("rb") as file:
                file.seek(self._log_sizes.get(broker, 0))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return None
        if not lines:
            return None
        state = self._cluster.broker(broker).state
        return f"klamm log of broker {broker}, {state}", "\n".join(_last(lines, _LOG_LINES))


def _last(lines: list[str], count: int) -> list[str]:
    if len(lines) <= count:
        return lines
    return [f"(... {counted(len(lines) - count, 'line')} before these)", *lines[-count:]]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
