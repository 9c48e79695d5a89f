"""The metadata log of a KRaft quorum as the source of a folder.

The driver reads it, since a log is bounded by Kafka's own retention and its records depend on each
other. A run reads the log from its beginning, and tells only what comes after the last run.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import sleep
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from klamm.client.admin import split_address
from klamm.config.client_properties import ClientSecurity
from klamm.errors import ConfigError, KlammError, RemoteProtocolError, UnavailableError
from klamm.history.arrow import encode_batches
from klamm.history.kraft.directory import MetadataDirectory
from klamm.history.kraft.quorum import MetadataQuorum
from klamm.history.kraft.replay import MetadataPosition, MetadataReplay, MetadataSnapshot
from klamm.history.records import EventRecord
from klamm.names import counted
from klamm.pipeline.history.folder import KEYS, HistoryFolder
from klamm.pipeline.history.report_facts import Origin, ReportFacts
from klamm.pipeline.history.sources import SHARDS, OnFacts, TakenIn, open_folder, put_aside
from klamm.protocol.fast.fetch import LeaderHint
from klamm.protocol.records import Batch

log = logging.getLogger("klamm.pipeline.history.metadata_log")

#: Events, and decisions in them, that are taken in by one refresh.
_PORTION_EVENTS: Final = 20_000
_PORTION_DECISIONS: Final = 500_000


class MetadataSource(Protocol):
    """Where the log is: a directory, or a quorum."""

    def check(self) -> None: ...
    def close(self) -> None: ...
    def cluster_id(self) -> str | None: ...
    def leader(self) -> LeaderHint | None: ...
    def read(self) -> Iterator[MetadataSnapshot | Batch]: ...


class MetadataLogInput:
    """The metadata log as the source of a history."""

    def __init__(self, source: MetadataSource, address: str) -> None:
        """`address` is what the report calls the source."""
        self._source = source
        self._address = address
        #: What was read and is not in the folder yet.
        self._records: list[EventRecord] = []
        #: Whether the log's own settings of topics count.
        self._has_settings = True

    @classmethod
    def from_directory(cls, directory: Path) -> "MetadataLogInput":
        """From the files of a node: `__cluster_metadata-0`, or a log directory with it."""
        return cls(MetadataDirectory(directory), str(directory.absolute()))

    @classmethod
    def from_quorum(
        cls, controllers: str, client_properties: Mapping[str, str] | None = None
    ) -> "MetadataLogInput":
        """From the controllers at these addresses, separated by commas."""
        addresses = [split_address(each) for each in controllers.split(",")]
        security = ClientSecurity.from_properties(client_properties or {})
        return cls(MetadataQuorum(addresses, security), controllers)

    def check(self) -> None:
        """Raise before Spark starts if there is no log to read."""
        self._source.check()

    def update(
        self,
        spark: SparkSession,
        out: str | Path,
        *,
        min_isr: Mapping[str, int] | None = None,
        follow_s: float | None = None,
        on_facts: OnFacts = lambda facts: None,
    ) -> ReportFacts | None:
        """Bring the folder up to date, once or (`follow_s`) again and again.

        Without `min_isr`, the log says which min.insync.replicas topics have. Returns the last
        facts, None if there are no events at all.
        """
        cluster_id = self._source.cluster_id()
        origin = Origin(
            {"metadata_log": cluster_id or self._address},
            f"the metadata log of {self._address}",
            cluster_id,
        )
        folder = open_folder(spark, out, origin, shards=SHARDS, min_isr=min_isr)
        self._has_settings = min_isr is None
        positions = folder.manifest.positions
        resumed_at = MetadataPosition(**positions) if positions else None
        replay = MetadataReplay(cluster_id, self._source.leader(), resumed_at)
        try:
            facts = self._take_in(folder, replay)
            for name, count in replay.unknown.items():
                log.warning("%s of unknown %s were skipped", counted(count, "record"), name)
            if replay.is_behind:
                raise ConfigError(
                    f"The log of {self._address} ends before offset {replay.is_behind}, up to "
                    f"which {out} was made: it is an older copy; name another folder with --out"
                )
            if facts is None:
                facts = folder.refresh([], KEYS.empty_table(), is_forced=True)
            while True:
                if facts is not None and facts.counts["events"]:
                    on_facts(facts)
                if follow_s is None:
                    return facts
                sleep(follow_s)
                try:
                    facts = self._take_in(folder, replay)
                except UnavailableError as error:
                    facts = None
                    log.warning("The log cannot be read, which is tried again: %s", error)
        finally:
            self._source.close()

    def _take_in(self, folder: HistoryFolder, replay: MetadataReplay) -> ReportFacts | None:
        facts = None
        decisions = 0
        for told in self._told(replay):
            self._records += told
            decisions += sum(len(block) for record in told for block in record.decisions)
            if len(self._records) >= _PORTION_EVENTS or decisions >= _PORTION_DECISIONS:
                facts = self._refresh(folder, replay.position, is_last=False) or facts
                decisions = 0
        has_settings = self._has_settings and not replay.is_behind
        is_changed = has_settings and folder.assume_min_isr(replay.min_isr)
        if self._records:
            facts = self._refresh(folder, replay.position, is_last=True) or facts
        elif is_changed:
            facts = folder.refresh([], KEYS.empty_table(), is_forced=True)
        return facts

    def _refresh(
        self, folder: HistoryFolder, position: MetadataPosition, *, is_last: bool
    ) -> ReportFacts | None:
        name = f"incoming-{folder.next_serial:08d}-00000.arrows"
        rows = put_aside(folder.place, name, list(encode_batches(self._records)))
        taken = TakenIn.of(pa.Table.from_batches([rows]))
        folder.manifest.positions = position._asdict()
        # Events come in order: none that is still to be read is before the position.
        seal_before = None if is_last else (position.epoch, position.seq + 1)
        facts = folder.refresh(taken.files, taken.keys, seal_before=seal_before)
        self._records = []
        return facts

    def _told(self, replay: MetadataReplay) -> Iterator[list[EventRecord]]:
        for each in self._source.read():
            try:
                if isinstance(each, MetadataSnapshot):
                    yield replay.load(each)
                else:
                    yield replay.apply(each)
            except RemoteProtocolError as error:
                raise KlammError(
                    f"The metadata log of {self._address} cannot be read at offset "
                    f"{replay.next_offset}: {error}"
                ) from error
