"""Automatic creation of topics that a client or a coordinator uses (META-6, GRP-2, TXN-1)."""

from collections.abc import Awaitable, Callable
from typing import Any

from klamm.config.broker import BrokerConfig
from klamm.errors import UnavailableError
from klamm.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.protocol.codes import ErrorCode

#: Sends a request to the controller's process and returns its response.
SendToController = Callable[[dict[str, object]], Awaitable[Any]]


class AutoTopicCreation:
    """Creates topics through the controller's process, which knows how to place replicas."""

    def __init__(self, config: BrokerConfig, request: SendToController) -> None:
        self.config = config
        self._request = request
        self._under_way: set[str] = set()

    async def create(self, topic: str) -> ErrorCode:
        """Create a topic; return the error for the response to the client's current request."""
        if topic in self._under_way:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._under_way.add(topic)
        try:
            response = await self._request({"auto_create": topic, **self._shape(topic)})
        except UnavailableError:
            return ErrorCode.LEADER_NOT_AVAILABLE
        finally:
            self._under_way.discard(topic)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if response is None else ErrorCode.of(int(response))
        if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return ErrorCode.LEADER_NOT_AVAILABLE
        return code

    def _shape(self, topic: str) -> dict[str, object]:
        config = self.config
        if topic == CONSUMER_OFFSETS:
            return {
                "partitions": config.offsets_topic_num_partitions,
                "factor": config.offsets_topic_replication_factor,
                "config": {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            }
        if topic == TRANSACTION_STATE:
            return {
                "partitions": config.transaction_state_log_num_partitions,
                "factor": config.transaction_state_log_replication_factor,
                "config": {
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "min.insync.replicas": str(config.transaction_state_log_min_isr),
                    "segment.bytes": str(config.transaction_state_log_segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            }
        return {
            "partitions": config.num_partitions,
            "factor": config.default_replication_factor,
            "config": {},
        }
