"""DescribeLogDirs (BADM-10)."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from klamm.broker.handlers.dispatch import Body, Call, Handler
from klamm.broker.log.manager import DirectoryDescription, LogDescription, LogManager
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.slices import LargeBody, aside


class LogDirHandlers:
    """Describes the log directories and the replicas in them."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {ApiKey.DESCRIBE_LOG_DIRS: self._describe_log_dirs}

    async def _describe_log_dirs(self, call: Call) -> Body:
        described = await asyncio.to_thread(self._logs.describe)
        return await aside(_body, call.body.topics, described)


def _body(topics: Sequence[Any] | None, described: Iterable[DirectoryDescription]) -> Body:
    wanted = None
    if topics is not None:
        wanted = {(topic.topic, index) for topic in topics for index in topic.partitions}
    results = [_directory(each, wanted) for each in described]
    dismantle(wanted)
    return LargeBody(error_code=ErrorCode.NONE, results=results)


def _directory(directory: DirectoryDescription, wanted: set[tuple[str, int]] | None) -> Body:
    shown = (log for log in directory.logs if wanted is None or log.partition in wanted)
    return {
        "error_code": ErrorCode.NONE if directory.is_online else ErrorCode.KAFKA_STORAGE_ERROR,
        "log_dir": str(directory.path.absolute()),
        "topics": _topics(shown),
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
    }


def _topics(logs: Iterable[LogDescription]) -> list[Body]:
    topics: dict[str, list[Body]] = {}
    for each in sorted(logs, key=lambda log: log.partition):
        topics.setdefault(each.partition.topic, []).append(
            {
                "partition_index": each.partition.partition,
                "partition_size": each.size,
                "offset_lag": each.offset_lag,
                "is_future_key": False,
            }
        )
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]
