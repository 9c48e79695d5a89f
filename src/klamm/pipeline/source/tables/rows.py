"""The rows of a table, as one task reads them."""

import base64
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from klamm.client import configs, groups
from klamm.client.admin import Admin, check
from klamm.errors import UnavailableError
from klamm.pipeline.source.tables.columns import ARROW_TYPES, TABLES
from klamm.pipeline.source.tables.reader import BrokerShare, TableOptions, TopicShare, open_admin
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError

_TOPIC: Final = 2  # as a resource type of DescribeConfigs
_BROKER: Final = 4
_TOPICS_AT_A_TIME: Final = 500
_ROWS_AT_A_TIME: Final = 10_000
_UNKNOWN: Final = -1
_NO_BROKER: Final = -1
_MIN_ISR: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"

Rows = Iterator[tuple[Any, ...]]
#: The columns that are wanted; those that would take a request of their own are left out otherwise.
Wanted = frozenset[str]


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """The settings of a topic that decide its elections."""

    min_isr: int
    unclean: bool

    @classmethod
    def of(cls, *layers: Mapping[str, str]) -> "ElectionSettings":
        """Take each key from the first layer that has it, else Kafka's default."""

        def first(key: str, default: str) -> str:
            return next((layer[key] for layer in layers if key in layer), default)

        return cls(int(first(_MIN_ISR, "1")), first(_UNCLEAN, "false").strip().lower() == "true")


def read_share(share: InputPartition, options: TableOptions) -> Iterator[pa.RecordBatch]:
    """What one task contributes to a table."""
    types = TABLES[options.table]
    places = [list(types).index(name) for name in options.columns]
    schema = pa.schema([(name, ARROW_TYPES[types[name]]) for name in options.columns])
    with open_admin(options) as admin:
        rows = _ROWS[options.table](admin, share, frozenset(options.columns))
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


def _brokers(admin: Admin, _: InputPartition, wanted: Wanted) -> Rows:
    view = admin.metadata([])
    for each in sorted(view.brokers, key=lambda broker: broker.node_id):
        is_controller = each.node_id == view.controller_id
        yield each.node_id, each.host, each.port, each.rack, is_controller


def _described(admin: Admin, share: InputPartition) -> Iterator[Any]:
    """The topics of a share that still exist."""
    assert isinstance(share, TopicShare)
    for topic in admin.large_metadata(share.topics).topics:
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(topic.error_code)
            yield topic


def _topics(admin: Admin, share: InputPartition, wanted: Wanted) -> Rows:
    settings = _settings_by_topic(admin, share) if "config" in wanted else {}
    for topic in _described(admin, share):
        yield (
            topic.name,
            _text(getattr(topic, "topic_id", None)),
            len(topic.partitions),
            topic.is_internal,
            [
                (key, value)
                for key, (value, source) in settings.get(topic.name, {}).items()
                if source == "topic" and value is not None
            ],
        )


def _partitions(admin: Admin, share: InputPartition, wanted: Wanted) -> Rows:
    settings = {}
    if wanted & {"min_isr", "unclean"}:
        settings = _settings_by_topic(admin, share, (_MIN_ISR, _UNCLEAN))
    for topic in _described(admin, share):
        # A topic that was created meanwhile has no settings yet, and so Kafka's defaults.
        values = {
            key: value
            for key, (value, _) in settings.get(topic.name, {}).items()
            if value is not None
        }
        elections = ElectionSettings.of(values)
        for each in topic.partitions:
            yield (
                topic.name,
                each.partition_index,
                max(each.leader_id, _NO_BROKER),
                getattr(each, "leader_epoch", None),
                list(each.replica_nodes),
                list(each.isr_nodes),
                list(getattr(each, "offline_replicas", ())),
                elections.min_isr,
                elections.unclean,
            )


def _settings_by_topic(
    admin: Admin, share: InputPartition, keys: Sequence[str] | None = None
) -> dict[str, dict[str, tuple[str | None, str]]]:
    """The settings that hold for each topic, all or some, with values and where they come from."""
    found: dict[str, dict[str, tuple[str | None, str]]] = defaultdict(dict)
    for _, topic, key, value, source, *_ in _topic_configs(admin, share, keys):
        found[topic][key] = value, source
    return found


def _configs(admin: Admin, share: InputPartition, wanted: Wanted) -> Rows:
    if isinstance(share, BrokerShare):
        name = str(share.broker)
        response = admin.ask_broker(
            _asked(share), ApiKey.DESCRIBE_CONFIGS, _config_request(_BROKER, [name])
        )
        yield from _settings("broker", response)
    else:
        yield from _topic_configs(admin, share)


def _topic_configs(admin: Admin, share: InputPartition, keys: Sequence[str] | None = None) -> Rows:
    assert isinstance(share, TopicShare)
    for at in range(0, len(share.topics), _TOPICS_AT_A_TIME):
        asked = _config_request(_TOPIC, share.topics[at : at + _TOPICS_AT_A_TIME], keys)
        yield from _settings("topic", admin.ask_patiently(ApiKey.DESCRIBE_CONFIGS, asked))


def _config_request(
    kind: int, names: Sequence[str], keys: Sequence[str] | None = None
) -> dict[str, Any]:
    return {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configuration_keys": None if keys is None else list(keys),
            }
            for name in names
        ],
        "include_synonyms": False,
        "include_documentation": False,
    }


def _settings(resource: str, response: Any) -> Rows:
    for result in response.results:
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


def _logdirs(admin: Admin, share: InputPartition, wanted: Wanted) -> Rows:
    broker = _asked(share)
    try:
        response = admin.ask_broker(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        check(getattr(response, "error_code", ErrorCode.NONE))
    except (KafkaError, UnavailableError) as refusal:
        # The rest of the table is useful without this broker.
        code = refusal.code if isinstance(refusal, KafkaError) else ErrorCode.NETWORK_EXCEPTION
        yield (broker, None, code.name, *[None] * 7)
        return
    for directory in response.results:
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


def _groups(admin: Admin, share: InputPartition, wanted: Wanted) -> Rows:
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


def _lag(admin: Admin, share: InputPartition, wanted: Wanted) -> Rows:
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
    response = admin.ask_broker(broker, ApiKey.LIST_GROUPS, asked)
    check(response.error_code)
    return sorted(each.group_id for each in response.groups)


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


_ROWS: Final[Mapping[str, Callable[[Admin, InputPartition, Wanted], Rows]]] = MappingProxyType(
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
