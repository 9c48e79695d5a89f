"""Finding the dataclass of a message, kio's where it has one and klamm's own where not.

Schemas are imported when a version is first met: a broker sees some forty of four hundred.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from klamm.errors import LocalProtocolError
from klamm.protocol._kio import entity_reader
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.soundness import check_sound

Kind: TypeAlias = Literal["request", "response"]

#: Reads one struct at an offset of a read-only buffer, and says how many bytes it took.
Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]

#: The versions that are declared in klamm.protocol.messages rather than in kio.
DECLARED: Final[Mapping[ApiKey, range]] = MappingProxyType(
    {
        ApiKey.LEADER_AND_ISR: range(8),
        ApiKey.STOP_REPLICA: range(5),
        ApiKey.UPDATE_METADATA: range(9),
        ApiKey.CONTROLLED_SHUTDOWN: range(4),
        ApiKey.ALTER_PARTITION: range(2),
        ApiKey.CREATE_TOPICS: range(2),
        ApiKey.DELETE_TOPICS: range(1),
    }
)


@cache
def message_schema(key: int, version: int, kind: Kind) -> type[Any]:
    """The dataclass of one message in one version."""
    try:
        api = APIS[key]
        module_name = api.key.name.lower()
        if version in DECLARED.get(api.key, ()):
            module = importlib.import_module(f"klamm.protocol.messages.{module_name}")
            declared: type[Any] = getattr(module, kind.upper()).schema(version)
            return declared
        module = importlib.import_module(f"kio.schema.{module_name}.v{version}.{kind}")
        schema: type[Any] = getattr(module, f"{api.name}{kind.capitalize()}")
        return schema
    except (KeyError, ModuleNotFoundError) as error:
        raise LocalProtocolError(f"no schema for API {key} version {version} ({kind})") from error


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
