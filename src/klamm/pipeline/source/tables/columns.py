"""Which tables there are, and their columns."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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
        },
        "partitions": {
            "topic": "string",
            "partition": "int",
            "leader": "int",
            "leader_epoch": "int",
            "replicas": "array<int>",
            "isr": "array<int>",
            "offline": "array<int>",
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
