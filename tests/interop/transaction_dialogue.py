"""One broker that is asked about transactions, and what it says, written down for a comparison."""

import re
import time
from typing import Any

from klamm.protocol.apis import ApiKey as K
from klamm.protocol.records import Record, build_batch, iterate_batches, iterate_records
from tests.interop.test_responses import CHANCE, plain
from tests.support.raw import Raw, fetch_values
from tests.support.waiting import wait_until

#: Fields whose values are chance here; producer ids are numbered instead.
UNEQUAL = CHANCE - {"producer_id"} | {
    "last_timestamp",
    "session_id",
    "log_append_time",
    "log_append_time_ms",
}
SETTINGS = {
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
}
#: Codes after which a client asks again.
AGAIN = frozenset({14, 15, 16, 51})
NOBODY = {"producer_id": -1, "producer_epoch": -1}
LAST_EPOCH = 32766
PATIENCE_S = 30.0


class Dialogue:
    """Asks one broker and writes down what it is told."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[str] = []
        self._ids: dict[int, str] = {-1: "-1"}

    def ask(self, api: K, version: int, /, **body: Any) -> Any:
        """One request on a connection of its own, and the response, written down."""
        try:
            with Raw(self.port) as raw:
                response = raw.ask(api, version, **body)
        except (ConnectionError, EOFError):
            self.lines.append(f"{api.name} {version} {self.shown(body)}: closed")
            return None
        self.write(f"{api.name} {version} {body}", response)
        return response

    def quietly(self, api: K, version: int, /, **body: Any) -> Any:
        """The response of a request that is sent until it is no longer to be repeated."""

        def answered() -> Any:
            with Raw(self.port) as raw:
                response = raw.ask(api, version, **body)
            return None if errors_in(response) & AGAIN else response

        return wait_until(answered, api.name, PATIENCE_S)

    def finally_(self, api: K, version: int, /, **body: Any) -> Any:
        """Ask until the response is not one to be repeated; only that one is written down."""
        response = self.quietly(api, version, **body)
        self.write(f"{api.name} {version} {body}", response)
        return response

    def write(self, question: str, response: Any) -> None:
        self.lines.append(f"{self.shown(question)}: {self.shown(self.numbered(response))}")

    def shown(self, text: Any) -> str:
        shown = str(text)
        for number, name in self._ids.items():
            if number != -1:
                shown = re.sub(
                    rf"(producer_id'|filters'): (\[?){number}\b", rf"\1: \2{name}", shown
                )
        return shown

    def numbered(self, response: Any) -> Any:
        if isinstance(response, str | int | bool | bytes | None):
            return response
        return self._number(plain(response, UNEQUAL))

    def _number(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: self._ids.setdefault(each, f"p{len(self._ids)}")
                if key == "producer_id"
                else "a time"
                if key == "transaction_start_time_ms" and each > 0
                else self._number(each)
                for key, each in value.items()
            }
        return [self._number(each) for each in value] if isinstance(value, list) else value

    # What producers ask

    def init(self, id: str | None, version: int = 4, **more: Any) -> Any:
        body = {"transactional_id": id, "transaction_timeout": 60_000, **NOBODY, **more}
        return self.ask(K.INIT_PRODUCER_ID, version, **body)

    def begun(self, id: str, **more: Any) -> "Producer":
        body = {"transactional_id": id, "transaction_timeout": 60_000, **NOBODY, **more}
        self.quietly(K.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[id])
        response = self.finally_(K.INIT_PRODUCER_ID, 4, **body)
        return Producer(self, id, response.producer_id, response.producer_epoch)

    def describe(self, *ids: str) -> Any:
        return self.ask(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=list(ids))

    def wait_state(self, id: str, state: str) -> None:
        def reached() -> bool:
            with Raw(self.port) as raw:
                response = raw.ask(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[id])
            return bool(response.transaction_states[0].transaction_state == state)

        wait_until(reached, f"{id} in {state}", PATIENCE_S)
        self.describe(id)

    def producers(self, topic: str, *partitions: int) -> Any:
        named = {"name": topic, "partition_indexes": list(partitions)}
        return self.ask(K.DESCRIBE_PRODUCERS, 0, topics=[named])

    def marker(
        self,
        topics: dict[str, list[int]],
        producer: tuple[int, int],
        coordinator_epoch: int = 0,
        *,
        commit: bool = True,
        version: int = 1,
    ) -> Any:
        return self.ask(
            K.WRITE_TXN_MARKERS,
            version,
            markers=[
                {
                    "producer_id": producer[0],
                    "producer_epoch": producer[1],
                    "transaction_result": commit,
                    "topics": [
                        {"name": name, "partition_indexes": indexes}
                        for name, indexes in topics.items()
                    ],
                    "coordinator_epoch": coordinator_epoch,
                }
            ],
        )

    def read(self, topic: str, offset: int, **more: Any) -> None:
        """A read_committed fetch: bounds, aborted transactions and what the records are."""
        more.setdefault("isolation_level", 1)
        with Raw(self.port) as raw:
            response = raw.ask(
                K.FETCH,
                12,
                **fetch_values(None, offset, topic=topic, session_id=0, session_epoch=-1, **more),
            )
        if not response.topics:
            self.lines.append(f"FETCH {topic} {offset} {more}: nothing {response.error_code}")
            return
        found = response.topics[0].partitions[0]
        batches = [
            (
                batch.header.base_offset,
                self._ids.get(batch.header.producer_id),
                batch.header.producer_epoch,
                batch.header.is_control,
                batch.header.base_sequence,
                [(each.key, each.value) for each in iterate_records(batch)],
            )
            for batch in iterate_batches(found.records or b"", may_end_early=True)
        ]
        aborted = [
            (self._ids.get(each.producer_id), each.first_offset)
            for each in found.aborted_transactions or ()
        ]
        self.lines.append(
            f"FETCH {topic} {offset} {more}: {found.error_code} high {found.high_watermark} "
            f"stable {found.last_stable_offset} aborted {aborted} {batches} "
            f"{found.aborted_transactions is None}"
        )

    def list_offset(self, topic: str, timestamp: int, isolation: int, version: int = 7) -> None:
        self.ask(
            K.LIST_OFFSETS,
            version,
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "current_leader_epoch": -1,
                            "timestamp": timestamp,
                        }
                    ],
                }
            ],
        )


class Producer:
    """One transactional id, whose sequences are counted."""

    def __init__(self, dialogue: Dialogue, id: str, producer_id: int, epoch: int) -> None:
        self.say, self.id, self.producer_id, self.epoch = dialogue, id, producer_id, epoch
        self.sequences: dict[tuple[str, int], int] = {}

    def add(
        self, topics: dict[str, list[int]], version: int = 3, *, last: bool = False, **more: Any
    ) -> Any:
        named = [{"name": name, "partitions": each} for name, each in topics.items()]
        return (self.say.finally_ if last else self.say.ask)(
            K.ADD_PARTITIONS_TO_TXN,
            version,
            **{
                "v3_and_below_transactional_id": self.id,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.epoch,
                "v3_and_below_topics": named,
                **more,
            },
        )

    def batched(self, topics: dict[str, list[int]], version: int = 5, **more: Any) -> Any:
        named = [{"name": name, "partitions": each} for name, each in topics.items()]
        one = {
            "transactional_id": self.id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "verify_only": True,
            "topics": named,
            **more,
        }
        return self.say.ask(K.ADD_PARTITIONS_TO_TXN, version, transactions=[one])

    def add_offsets(self, group: str, version: int = 4, **more: Any) -> Any:
        return self.say.ask(
            K.ADD_OFFSETS_TO_TXN,
            version,
            **{
                "transactional_id": self.id,
                "producer_id": self.producer_id,
                "producer_epoch": self.epoch,
                "group_id": group,
                **more,
            },
        )

    def commit_offsets(
        self, group: str, topics: dict[str, int], version: int = 4, **more: Any
    ) -> Any:
        return self.say.ask(
            K.TXN_OFFSET_COMMIT,
            version,
            **{
                "transactional_id": self.id,
                "group_id": group,
                "producer_id": self.producer_id,
                "producer_epoch": self.epoch,
                "topics": [
                    {
                        "name": name,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "committed_offset": offset,
                                "committed_leader_epoch": -1,
                                "committed_metadata": "m",
                            }
                        ],
                    }
                    for name, offset in topics.items()
                ],
                **more,
            },
        )

    def end(self, version: int = 4, *, commit: bool = True, **more: Any) -> Any:
        return self.say.ask(
            K.END_TXN,
            version,
            **{
                "transactional_id": self.id,
                "producer_id": self.producer_id,
                "producer_epoch": self.epoch,
                "committed": commit,
                **more,
            },
        )

    def ended(self, *, commit: bool = True) -> None:
        self.end(commit=commit)
        self.say.wait_state(self.id, "CompleteCommit" if commit else "CompleteAbort")

    def produce(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        version: int = 11,
        sequence: int | None = None,
        transactional: bool = True,
        counts: bool = True,
        epoch: int | None = None,
        transactional_id: str | None = "",
    ) -> Any:
        base = self.sequences.get((topic, partition), 0) if sequence is None else sequence
        records = build_batch(
            [Record(None, value, int(time.time() * 1000)) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=base,
            transactional=transactional,
        )
        with Raw(self.say.port) as raw:
            response = raw.ask(
                K.PRODUCE,
                version,
                transactional_id=self.id if transactional_id == "" else transactional_id,
                acks=-1,
                timeout=10_000,
                topic_data=[
                    {
                        "name": topic,
                        "partition_data": [{"index": partition, "records": bytes(records.data)}],
                    }
                ],
            )
        found = response.responses[0].partition_responses[0]
        if not found.error_code and counts:
            self.sequences[topic, partition] = base + len(values)
        self.say.lines.append(
            f"PRODUCE {version} {topic} {values} {base} {transactional}: {found.error_code} "
            f"{found.base_offset}"
        )
        return found


def errors_in(response: Any) -> set[int]:
    """Every error code of a response."""
    found: set[int] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                if key.endswith("error_code"):
                    found.add(int(each))
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(plain(response, frozenset()))
    return found
