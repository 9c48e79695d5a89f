"""Finding the dataclass of a message, kio's where it has one and klamm's own where not.

kio's schemas are imported, and klamm's made, when a version is first met: a broker sees some
forty of four hundred.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from klamm.errors import LocalProtocolError
from klamm.protocol.apis import KNOWN_APIS
from klamm.protocol.codec.soundness import check_sound
from klamm.protocol.schema import (
    alter_partition,
    controlled_shutdown,
    create_topics,
    delete_topics,
    describe_transactions,
    leader_and_isr,
    stop_replica,
    update_metadata,
    write_txn_markers,
)
from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.declare import Declaration, Kind

#: Reads one struct at an offset of a read-only buffer; also returns its size.
Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]

#: What kio lacks, by API and kind; the rest is kio's.
DECLARED: Final[Mapping[tuple[int, str], Declaration]] = MappingProxyType(
    {
        (declaration.key, declaration.kind): declaration
        for module in (
            alter_partition,
            controlled_shutdown,
            create_topics,
            delete_topics,
            describe_transactions,
            leader_and_isr,
            stop_replica,
            update_metadata,
            write_txn_markers,
        )
        for declaration in (module.REQUEST, module.RESPONSE)
    }
)


@cache
def message_schema(key: int, version: int, kind: Kind) -> type[Any]:
    """The dataclass of one message in one version."""
    declared = DECLARED.get((key, kind))
    if declared is not None and version in declared.versions:
        return declared.schema(version)
    try:
        api = KNOWN_APIS[key]
        module = importlib.import_module(f"kio.schema.{api.key.name.lower()}.v{version}.{kind}")
    except (KeyError, ModuleNotFoundError) as error:
        raise LocalProtocolError(f"no schema for API {key} version {version} ({kind})") from error
    schema: type[Any] = getattr(module, f"{api.name}{kind.capitalize()}")
    return schema


@cache
def message_reader(key: int, version: int, kind: Kind) -> Reader:
    """kio's reader for such a message, given nothing to read that is not all there."""
    schema = message_schema(key, version, kind)
    read = entity_reader(schema)

    def read_checked(view: memoryview, at: int) -> tuple[Any, int]:
        check_sound(schema, view, at)
        message, size = read(view, at)
        return message, size

    return read_checked
