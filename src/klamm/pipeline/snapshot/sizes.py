"""How large partitions are, from the brokers' own log directories."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from klamm.errors import ProtocolError, UnavailableError
from klamm.net.blocking import Connection
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import KafkaError

_TIMEOUT_S: Final = 60.0
_AT_A_TIME: Final = 64


def read_sizes(addresses: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The bytes of every partition that a broker at one of these addresses has a replica of.

    Replicas differ while one catches up, so the largest counts. A broker that does not answer, or
    does not let us ask, leaves its sizes unknown: the snapshot is of use without them.
    """
    sizes: dict[tuple[str, int], int] = {}
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for answer in pool.map(_ask, addresses):
            for directory in () if answer is None else answer.results:
                for topic in directory.topics:
                    for each in topic.partitions:
                        # A future replica is a copy under way between two directories.
                        if each.is_future_key:
                            continue
                        name = (topic.name, each.partition_index)
                        sizes[name] = max(sizes.get(name, 0), each.partition_size)
    return sizes


def _ask(address: tuple[str, int]) -> Any:
    connection = Connection(*address, "klamm-snapshot")
    try:
        return connection.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, _TIMEOUT_S)
    except (UnavailableError, ProtocolError, KafkaError):
        return None
    finally:
        connection.close()
