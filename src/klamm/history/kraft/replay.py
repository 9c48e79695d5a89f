"""Events from the metadata log: each batch is a look at the cluster.

A controller of the quorum appends the records of one decision as one batch, and each batch has the
time and the epoch of that controller. `MetadataReplay` applies the records and hands what changed
to `klamm.history.observed`, which infers the events. Where batches come from is not known here.

A broker counts as registered while it is unfenced. Records between BeginTransactionRecord and
EndTransactionRecord are applied together at the end, or never.
"""

import base64
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from klamm.core.cluster import AdvertisedEndpoint, LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.columns import padded
from klamm.errors import RemoteProtocolError
from klamm.history.observed import ControllerSeen, ObservedCluster, ObservedStore
from klamm.history.records import EventRecord
from klamm.protocol.fast.fetch import LeaderHint, SnapshotId
from klamm.protocol.records import Batch, Record, iterate_records
from klamm.protocol.schema.metadata_records import (
    LEADER_UNCHANGED,
    RECOVERY_UNCHANGED,
    ControlRecordType,
    MetadataRecord,
    MetadataRecordType,
    decode_control_type,
    decode_leader_change,
    decode_metadata_record,
    decode_snapshot_timestamp,
    record_name,
)

#: What the metadata log tells, in the words of records.
KRAFT: Final = ObservedStore(
    began="the metadata log is read from here on",
    controller_left="another leader was elected",
    controller_came="the quorum elected a leader",
    brokers="registrations of brokers changed",
    deletions="topics were removed",
    assignments="assignments of partitions changed",
    lost="had been fenced",
    tells_end_of_term=False,
    tells_unclean=True,
)
#: The end of a batch with a single NoOpRecord, from the null key on. An idle controller appends one
#: twice a second, so that most of a log consists of them.
_NO_OP_END: Final = b"\x01\x08\x01\x14\x00\x00\x00"
#: Types of resources of a ConfigRecord; the default of all brokers has an empty name.
_TOPIC_CONFIG: Final = 2
_BROKER_CONFIG: Final = 4
_ALL_BROKERS: Final = ""
_MIN_ISR: Final = "min.insync.replicas"
_FENCED: Final = 1
_UNFENCED: Final = -1


class MetadataSnapshot(NamedTuple):
    """The state before some offset, as the batches of a checkpoint."""

    id: SnapshotId
    batches: Iterable[Batch]


class MetadataPosition(NamedTuple):
    """How far a history was made: the next offset, and the last event."""

    offset: int
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class _BrokerRegistration:
    broker: RegisteredBroker
    fenced: bool
    in_controlled_shutdown: bool


class _PartitionRegistration(NamedTuple):
    replicas: Sequence[int]
    isr: Sequence[int]
    removing: Sequence[int]
    adding: Sequence[int]
    leader: int
    leader_epoch: int
    epoch: int
    recovery: int


class MetadataReplay:
    """The cluster as of some offset of the metadata log.

    `leader` is the present leader of the quorum, for a log whose first epoch does not say who has
    it. Events up to `resumed_at` were told by an earlier run and are not told again; if the log
    does not reach back to there, one number is left out, so that readers see a gap.
    """

    def __init__(
        self,
        cluster_id: str | None,
        leader: LeaderHint | None = None,
        resumed_at: MetadataPosition | None = None,
    ) -> None:
        self.next_offset = 0
        #: How many records of each type were skipped, by name.
        self.skipped: Counter[str] = Counter()
        self._cluster_id = cluster_id
        self._leader = leader
        self._resumed_at = resumed_at
        self._cluster = ObservedCluster(cluster_id, store=KRAFT)
        self._is_first = True
        self._brokers: dict[int, _BrokerRegistration] = {}
        self._topic_names: dict[uuid.UUID, str] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        #: min.insync.replicas of topics, and of all brokers under an empty name.
        self._min_isr: dict[str, int] = {}
        #: Records of an open transaction.
        self._transaction: list[MetadataRecord] | None = None
        # What has changed since the last look.
        self._controller: ControllerSeen | None = None
        self._brokers_changed = False
        self._removed: set[str] = set()
        self._partitions: dict[tuple[str, int], _PartitionRegistration] = {}
        self._assigned: set[tuple[str, int]] = set()
        self._apply_by_type: Mapping[int, Callable[[Any], None]] = {
            MetadataRecordType.REGISTER_BROKER: self._register_broker,
            MetadataRecordType.UNREGISTER_BROKER: self._unregister_broker,
            MetadataRecordType.FENCE_BROKER: lambda body: self._change(body.id, fenced=True),
            MetadataRecordType.UNFENCE_BROKER: lambda body: self._change(body.id, fenced=False),
            MetadataRecordType.BROKER_REGISTRATION_CHANGE: self._change_registration,
            MetadataRecordType.TOPIC: self._add_topic,
            MetadataRecordType.REMOVE_TOPIC: self._remove_topic,
            MetadataRecordType.PARTITION: self._add_partition,
            MetadataRecordType.PARTITION_CHANGE: self._change_partition,
            MetadataRecordType.CONFIG: self._set_config,
        }

    @property
    def position(self) -> MetadataPosition:
        """How far the history is told."""
        return MetadataPosition(self.next_offset, *self._cluster.last_event)

    @property
    def is_behind(self) -> int:
        """The offset that was reached by an earlier run, 0 once this one has reached it, too."""
        return 0 if self._resumed_at is None else self._resumed_at.offset

    @property
    def min_isr(self) -> dict[str, int]:
        """The min.insync.replicas of topics as of now; topics with Kafka's default are left out."""
        default = self._min_isr.get(_ALL_BROKERS, 1)
        found = {name: self._min_isr.get(name, default) for name in self._topic_ids}
        return {name: value for name, value in found.items() if value != 1}

    @property
    def unknown(self) -> dict[str, int]:
        """How many records were skipped of each type that klamm does not know."""
        known = {record_name(each) for each in MetadataRecordType}
        return {name: count for name, count in self.skipped.items() if name not in known}

    def load(self, snapshot: MetadataSnapshot) -> list[EventRecord]:
        """Replace everything by the state of a snapshot; what it hides shows as a gap."""
        end, epoch = snapshot.id
        if not self._is_first:
            self._cluster.leave_gap()
        elif self._resumed_at is not None and self._resumed_at.offset < end:
            same = self._resumed_at.epoch == epoch
            self._cluster = ObservedCluster(
                self._cluster_id, (epoch, self._resumed_at.seq if same else 0), KRAFT
            )
            self._resumed_at = None
        self._controller = ControllerSeen(self._leader_of(epoch), epoch)
        self._brokers, self._brokers_changed, self._min_isr = {}, True, {}
        ids = self._topic_ids
        self._topic_names, self._topic_ids, self._transaction = {}, {}, None
        at_ms = 0
        for batch in snapshot.batches:
            for record in iterate_records(batch):
                if not batch.header.is_control:
                    self._apply(record)
                elif decode_control_type(record.key) == ControlRecordType.SNAPSHOT_HEADER:
                    at_ms = decode_snapshot_timestamp(record.value)
        self._removed = {name for name in ids if self._topic_ids.get(name) != ids[name]}
        self.next_offset = end
        return self._told(self._look(at_ms, end))

    def apply(self, batch: Batch) -> list[EventRecord]:
        """The events of a batch, which comes after those that were applied before."""
        header = batch.header
        first = max(self.next_offset, header.base_offset)
        if header.last_offset < first:
            return []  # a snapshot had it
        if self._is_first and self._controller is None:
            epoch = header.leader_epoch
            self._controller = ControllerSeen(self._leader_of(epoch), epoch)
        if header.record_count != 1 or bytes(batch.data[-len(_NO_OP_END) :]) != _NO_OP_END:
            for record in iterate_records(batch):
                if record.offset < first:
                    continue
                if header.is_control:
                    self._apply_control(record, header.leader_epoch)
                else:
                    self._apply(record)
        self.next_offset = header.last_offset + 1
        return self._told(self._look(header.max_timestamp, header.last_offset))

    def _told(self, records: list[EventRecord]) -> list[EventRecord]:
        """The records that no earlier run has told."""
        if self._resumed_at is None:
            return records
        if self.next_offset >= self._resumed_at.offset:
            self._cluster.continue_from(self._resumed_at.seq)
            self._resumed_at = None
        return []

    def _leader_of(self, epoch: int) -> int | None:
        if self._leader is not None and self._leader.leader_epoch == epoch:
            return self._leader.leader_id
        return None

    # Records

    def _apply_control(self, record: Record, epoch: int) -> None:
        if decode_control_type(record.key) == ControlRecordType.LEADER_CHANGE:
            self._controller = ControllerSeen(decode_leader_change(record.value), epoch)

    def _apply(self, record: Record) -> None:
        if record.value is None:
            raise RemoteProtocolError(f"the metadata record at offset {record.offset} is null")
        decoded = decode_metadata_record(record.value)
        match decoded.type:
            case MetadataRecordType.BEGIN_TRANSACTION:
                self._transaction = []
            case MetadataRecordType.END_TRANSACTION:
                for each in self._transaction or ():
                    self._apply_decoded(each)
                self._transaction = None
            case MetadataRecordType.ABORT_TRANSACTION:
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(decoded)
            case _:
                self._apply_decoded(decoded)

    def _apply_decoded(self, record: MetadataRecord) -> None:
        apply = self._apply_by_type.get(record.type)
        if apply is None:
            self.skipped[record.name] += 1
        else:
            apply(record.body)

    def _register_broker(self, body: Any) -> None:
        endpoints = tuple(
            AdvertisedEndpoint(each.name, each.host, each.port, each.security_protocol)
            for each in body.end_points
        )
        self._brokers[body.broker_id] = _BrokerRegistration(
            RegisteredBroker(body.broker_id, body.broker_epoch, endpoints, body.rack),
            body.fenced,
            getattr(body, "in_controlled_shutdown", False),
        )
        self._brokers_changed = True

    def _unregister_broker(self, body: Any) -> None:
        self._brokers.pop(body.broker_id, None)
        self._brokers_changed = True

    def _change_registration(self, body: Any) -> None:
        is_changed = body.fenced in (_FENCED, _UNFENCED)
        self._change(
            body.broker_id,
            fenced=body.fenced == _FENCED if is_changed else None,
            asks_to_stop=bool(getattr(body, "in_controlled_shutdown", 0)),
        )

    def _change(self, id: int, *, fenced: bool | None, asks_to_stop: bool = False) -> None:
        known = self._brokers.get(id)
        if known is not None:
            self._brokers[id] = _BrokerRegistration(
                known.broker,
                known.fenced if fenced is None else fenced,
                known.in_controlled_shutdown or asks_to_stop,
            )
            self._brokers_changed = True

    def _add_topic(self, body: Any) -> None:
        self._topic_names[body.topic_id] = body.name
        self._topic_ids[body.name] = body.topic_id

    def _remove_topic(self, body: Any) -> None:
        name = self._topic_names.pop(body.topic_id, None)
        if name is not None:
            self._topic_ids.pop(name, None)
            self._min_isr.pop(name, None)
            self._removed.add(name)
            for key in [key for key in self._partitions if key[0] == name]:
                del self._partitions[key]
                self._assigned.discard(key)

    def _add_partition(self, body: Any) -> None:
        key = (self._name_of(body.topic_id), body.partition_id)
        self._partitions[key] = _PartitionRegistration(
            body.replicas,
            body.isr,
            body.removing_replicas,
            body.adding_replicas,
            body.leader,
            body.leader_epoch,
            body.partition_epoch,
            body.leader_recovery_state,
        )
        self._assigned.add(key)

    def _change_partition(self, body: Any) -> None:
        key = (self._name_of(body.topic_id), body.partition_id)
        known = self._partitions.get(key) or self._known(*key)
        changes: dict[str, Any] = {
            name: value
            for name, value in (
                ("replicas", body.replicas),
                ("isr", body.isr),
                ("removing", body.removing_replicas),
                ("adding", body.adding_replicas),
            )
            if value is not None
        }
        # A leader that is named gets a new epoch, even if it is the old one.
        if body.leader != LEADER_UNCHANGED:
            changes |= {"leader": body.leader, "leader_epoch": known.leader_epoch + 1}
        if body.leader_recovery_state != RECOVERY_UNCHANGED:
            changes["recovery"] = body.leader_recovery_state
        self._partitions[key] = known._replace(epoch=known.epoch + 1, **changes)
        if changes.keys() & {"replicas", "removing", "adding"}:
            self._assigned.add(key)

    def _set_config(self, body: Any) -> None:
        is_default = body.resource_type == _BROKER_CONFIG and body.resource_name == _ALL_BROKERS
        if body.name == _MIN_ISR and (body.resource_type == _TOPIC_CONFIG or is_default):
            self._min_isr.pop(body.resource_name, None)
            if body.value is not None and body.value.isdecimal():
                self._min_isr[body.resource_name] = int(body.value)

    def _name_of(self, topic_id: uuid.UUID) -> str:
        name = self._topic_names.get(topic_id)
        if name is None:
            raise RemoteProtocolError(
                f"a record is about a partition of topic {_encode_id(topic_id)}, which no record "
                "before it has created"
            )
        return name

    def _known(self, topic: str, partition: int) -> _PartitionRegistration:
        """A partition as of the last look."""
        state = self._cluster.state
        row = state.row(topic, partition)
        if row is None:
            raise RemoteProtocolError(
                f"a record changes {topic}-{partition}, which no record before it has created"
            )
        rows = np.array([row], np.int32)
        leadership, assignment = state.leadership(rows), state.assignment(row)
        isr = leadership.isr[0]
        return _PartitionRegistration(
            assignment.replicas,
            isr[isr >= 0].tolist(),
            assignment.removing,
            assignment.adding,
            int(leadership.leader[0]),
            int(leadership.leader_epoch[0]),
            int(leadership.version[0]),
            int(leadership.recovery[0]),
        )

    # Looking

    def _look(self, at_ms: int, offset: int) -> list[EventRecord]:
        """Tell what the records since the last look have changed."""
        if not (self._controller or self._brokers_changed or self._removed or self._partitions):
            return []
        cluster = self._cluster
        cluster.begin(at_ms * 1000, f" (offset {offset})")
        if self._controller is not None:
            cluster.see_controller(self._controller)
        if self._brokers_changed:
            unfenced = {id: each for id, each in self._brokers.items() if not each.fenced}
            cluster.state.shutting_down = {
                id for id, each in unfenced.items() if each.in_controlled_shutdown
            }
            cluster.see_brokers({id: each.broker for id, each in unfenced.items()})
        if self._removed or self._assigned:
            cluster.state.queue_for_deletion(self._removed & cluster.state.topics.keys())
            cluster.see_topics({**dict.fromkeys(sorted(self._removed)), **self._reads()})
        if self._partitions:
            cluster.see_states(self._states())
        self._controller, self._brokers_changed, self._is_first = None, False, False
        self._removed, self._partitions, self._assigned = set(), {}, set()
        return cluster.end()

    def _reads(self) -> dict[str, TopicRead]:
        """The assignments that have changed, by topic."""
        lists: dict[str, tuple[dict[int, Sequence[int]], ...]] = {}
        for topic, number in sorted(self._assigned):
            partition = self._partitions[topic, number]
            replicas, adding, removing = lists.setdefault(topic, ({}, {}, {}))
            replicas[number] = partition.replicas
            if partition.adding:
                adding[number] = partition.adding
            if partition.removing:
                removing[number] = partition.removing
        return {
            topic: TopicRead(_encode_id(self._topic_ids[topic]), *of_topic)
            for topic, of_topic in lists.items()
        }

    def _states(self) -> LeaderAndIsrs:
        state = self._cluster.state
        rows, seen = [], []
        for key, partition in sorted(self._partitions.items()):
            row = state.row(*key)
            assert row is not None, "a partition is added before its state is seen"
            rows.append(row)
            seen.append(partition)
        return LeaderAndIsrs(
            np.array(rows, np.int32),
            np.array([each.leader for each in seen], np.int32),
            np.array([each.leader_epoch for each in seen], np.int32),
            # As wide as what it is compared with: to widen it later takes longer.
            padded([each.isr for each in seen], max(state.width, *(len(e.isr) for e in seen))),
            np.array([each.recovery for each in seen], np.int8),
            np.full(len(rows), self._cluster.last_event[0], np.int32),
            np.array([each.epoch for each in seen], np.int32),
        )


def _encode_id(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes)[:22].decode()
