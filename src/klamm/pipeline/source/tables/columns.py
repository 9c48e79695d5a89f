"""Which tables there are, and their columns."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa

#: table: column: type, as Spark writes it.
TABLES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "brokers": {
            "id": "int",
            "host": "string",
            "port": "int",
            "rack": "string",
            "is_controller": "boolean",
        },
        "topics": {
            "topic": "string",
            "topic_id": "string",
            "partitions": "int",
            "is_internal": "boolean",
            "config": "map<string,string>",
        },
        "partitions": {
            "topic": "string",
            "partition": "int",
            "leader": "int",
            "leader_epoch": "int",
            "replicas": "array<int>",
            "isr": "array<int>",
            "offline": "array<int>",
            "min_isr": "int",
            "unclean": "boolean",
        },
        "configs": {
            "resource": "string",
            "name": "string",
            "key": "string",
            "value": "string",
            "source": "string",
            "is_read_only": "boolean",
            "is_sensitive": "boolean",
        },
        "logdirs": {
            "broker": "int",
            "path": "string",
            "error": "string",
            "total_bytes": "bigint",
            "usable_bytes": "bigint",
            "topic": "string",
            "partition": "int",
            "bytes": "bigint",
            "offset_lag": "bigint",
            "is_future": "boolean",
        },
        "groups": {
            "group": "string",
            "state": "string",
            "protocol_type": "string",
            "protocol": "string",
            "coordinator": "int",
            "members": "int",
        },
        "lag": {
            "group": "string",
            "topic": "string",
            "partition": "int",
            "committed": "bigint",
            "end": "bigint",
            "lag": "bigint",
            "member_id": "string",
            "client_id": "string",
            "host": "string",
        },
    }
)

#: Columns that take requests and permissions of their own, and are there for who names them.
ON_DEMAND: Final = frozenset({"config", "min_isr", "unclean"})

#: Spark's types as Arrow's.
ARROW_TYPES: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
