"""The log directories of brokers: how much they hold, and which brokers have any."""

from dataclasses import dataclass

from klamm.client.admin import Admin, check
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory; a size of -1 is unknown to the broker."""

    path: str
    error: str | None
    replicas: int
    bytes: int
    total_bytes: int
    usable_bytes: int


def log_dirs(admin: Admin, broker: int) -> list[LogDir]:
    """The log directories of a broker."""
    response = admin.ask_broker(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
    check(getattr(response, "error_code", ErrorCode.NONE))
    return [
        LogDir(
            path=each.log_dir,
            error=ErrorCode.of(each.error_code).name if each.error_code else None,
            replicas=sum(len(topic.partitions) for topic in each.topics),
            bytes=sum(p.partition_size for topic in each.topics for p in topic.partitions),
            total_bytes=getattr(each, "total_bytes", -1),
            usable_bytes=getattr(each, "usable_bytes", -1),
        )
        for each in response.results
    ]


def with_log_dirs(admin: Admin) -> list[int]:
    """The live brokers that can host replicas: not nodes with `klamm.roles=controller`."""
    alive = [int(each.node_id) for each in admin.metadata([]).brokers]
    return [broker for broker in alive if log_dirs(admin, broker)]
