"""The rows of a table, as one task reads them."""

import base64
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from klamm.client import configs, groups
from klamm.client.admin import Admin
from klamm.client.errors import check
from klamm.pipeline.source.tables.columns import TABLES
from klamm.pipeline.source.tables.reader import BrokerShare, TableOptions, TopicShare, open_admin
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError

_TOPIC: Final = 2  # as a resource type of DescribeConfigs
_BROKER: Final = 4
_TOPICS_AT_A_TIME: Final = 500
_ROWS_AT_A_TIME: Final = 10_000
_UNKNOWN: Final = -1
_NO_BROKER: Final = -1
_ARROW: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()),
}

Rows = Iterator[tuple[Any, ...]]


def read_share(share: InputPartition, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """What one task contributes to a table."""
    types = TABLES[options.table]
    places = [list(types).index(name) for name in options.columns]
    schema = pa.schema([(name, _ARROW[types[name]]) for name in options.columns])
    with open_admin(options) as admin:
        rows = _ROWS[options.table](admin, share)
        for portion in _portions(rows):
            columns = list(zip(*portion, strict=True))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(columns[place], field.type)
                    for place, field in zip(places, schema, strict=True)
                ],
                schema=schema,
            )


def _portions(rows: Rows) -> Iterator[list[tuple[Any, ...]]]:
    portion: list[tuple[Any, ...]] = []
    for row in rows:
        portion.append(row)
        if len(portion) == _ROWS_AT_A_TIME:
            yield portion
            portion = []
    if portion:
        yield portion


def _brokers(admin: Admin, _: InputPartition) -> Rows:
    view = admin.metadata([])
    for each in sorted(view.brokers, key=lambda broker: broker.node_id):
        is_controller = each.node_id == view.controller_id
        yield each.node_id, each.host, each.port, each.rack, is_controller


def _described(admin: Admin, share: InputPartition) -> Iterator[Any]:
    """The topics of a share that still exist."""
    assert isinstance(share, TopicShare)
    for topic in admin.metadata(share.topics).topics:
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(topic.error_code)
            yield topic


def _topics(admin: Admin, share: InputPartition) -> Rows:
    for topic in _described(admin, share):
        topic_id = _text(getattr(topic, "topic_id", None))
        yield topic.name, topic_id, len(topic.partitions), topic.is_internal


def _partitions(admin: Admin, share: InputPartition) -> Rows:
    for topic in _described(admin, share):
        for each in topic.partitions:
            yield (
                topic.name,
                each.partition_index,
                max(each.leader_id, _NO_BROKER),
                getattr(each, "leader_epoch", None),
                list(each.replica_nodes),
                list(each.isr_nodes),
                list(getattr(each, "offline_replicas", ())),
            )


def _configs(admin: Admin, share: InputPartition) -> Rows:
    if isinstance(share, BrokerShare):
        name = str(share.broker)
        answer = admin.ask_broker(
            _asked(share), ApiKey.DESCRIBE_CONFIGS, _config_request(_BROKER, [name])
        )
        yield from _settings("broker", answer)
        return
    assert isinstance(share, TopicShare)
    for at in range(0, len(share.topics), _TOPICS_AT_A_TIME):
        asked = _config_request(_TOPIC, share.topics[at : at + _TOPICS_AT_A_TIME])
        yield from _settings("topic", admin.ask_any(ApiKey.DESCRIBE_CONFIGS, asked))


def _config_request(kind: int, names: Sequence[str]) -> dict[str, Any]:
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            for name in names
        ],
        "include_synonyms": False,
        "include_documentation": False,
    }


def _settings(resource: str, answer: Any) -> Rows:
    for result in answer.results:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        check(result.error_code, result.error_message)
        for each in sorted(result.configs, key=lambda setting: setting.name):
            yield (
                resource,
                result.resource_name,
                each.name,
                each.value,
                configs.source_name(each.config_source),
                each.read_only,
                each.is_sensitive,
            )


def _logdirs(admin: Admin, share: InputPartition) -> Rows:
    broker = _asked(share)
    answer = admin.ask_broker(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
    check(getattr(answer, "error_code", ErrorCode.NONE))
    for directory in answer.results:
        error = ErrorCode.of(directory.error_code).name if directory.error_code else None
        sizes = [_known(getattr(directory, name, None)) for name in ("total_bytes", "usable_bytes")]
        place = (broker, directory.log_dir, error, *sizes)
        replicas = [(topic.name, each) for topic in directory.topics for each in topic.partitions]
        if not replicas:
            yield (*place, None, None, None, None, None)
        for name, each in replicas:
            yield (
                *place,
                name,
                each.partition_index,
                each.partition_size,
                each.offset_lag,
                each.is_future_key,
            )


def _groups(admin: Admin, share: InputPartition) -> Rows:
    broker = _asked(share)
    names = _coordinated(admin, broker)
    asked = {"groups": names, "include_authorized_operations": False}
    found = admin.ask_broker(broker, ApiKey.DESCRIBE_GROUPS, asked).groups if names else []
    for each in found:
        check(each.error_code)
        yield (
            each.group_id,
            each.group_state,
            each.protocol_type,
            each.protocol_data,
            broker,
            len(each.members),
        )


def _lag(admin: Admin, share: InputPartition) -> Rows:
    for name in _coordinated(admin, _asked(share)):
        try:
            group = groups.describe(admin, name)
        except KafkaError as error:
            if error.code == ErrorCode.GROUP_ID_NOT_FOUND:  # deleted since
                continue
            raise
        members = {each.member_id: each for each in group.members}
        for each in group.positions:
            member = members.get(each.member_id or "")
            yield (
                name,
                each.topic,
                each.partition,
                _known(each.offset),
                _known(each.end),
                _known(each.lag),
                each.member_id,
                None if member is None else member.client_id,
                None if member is None else member.host,
            )


def _coordinated(admin: Admin, broker: int) -> list[str]:
    """The groups that a broker coordinates."""
    asked: dict[str, Any] = {"states_filter": [], "types_filter": []}
    answer = admin.ask_broker(broker, ApiKey.LIST_GROUPS, asked)
    check(answer.error_code)
    return sorted(each.group_id for each in answer.groups)


def _asked(share: InputPartition) -> int:
    assert isinstance(share, BrokerShare)
    assert share.broker is not None
    return share.broker


def _known(number: int | None) -> int | None:
    return None if number is None or number == _UNKNOWN else number


def _text(topic_id: uuid.UUID | None) -> str | None:
    """An id as Kafka writes it."""
    if not topic_id:
        return None
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


_ROWS: Final[Mapping[str, Callable[[Admin, InputPartition], Rows]]] = MappingProxyType(
    {
        "brokers": _brokers,
        "topics": _topics,
        "partitions": _partitions,
        "configs": _configs,
        "logdirs": _logdirs,
        "groups": _groups,
        "lag": _lag,
    }
)
