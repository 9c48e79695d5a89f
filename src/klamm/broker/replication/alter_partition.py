"""The AlterPartition manager: it sends ISR proposals to the controller (BISR-6, BISR-7)."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final

from klamm.broker.clock import Clock
from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.identity import BrokerIdentity
from klamm.broker.replication.isr import (
    RETRY_BACKOFF_MS,
    AlterPartitionBatch,
    AlterPartitionItem,
    AlterPartitionQueue,
    AlterPartitionResult,
)
from klamm.errors import UnavailableError
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

log = logging.getLogger("klamm.broker.replication.isr")

#: The versions with topic ids, and with names for topics that have no id.
_VERSION_BY_ID: Final = 3
_VERSION_BY_NAME: Final = 1
#: In ZooKeeper mode the members of an ISR have no broker epochs.
_NO_EPOCH: Final = -1

OnResult = Callable[[AlterPartitionItem, AlterPartitionResult], None]


class AlterPartitionManager:
    """Sends one AlterPartition request at a time, until each proposal has its result."""

    def __init__(
        self, identity: BrokerIdentity, controller_channel: BrokerToControllerChannel, clock: Clock
    ) -> None:
        self._identity = identity
        self._controller_channel = controller_channel
        self._clock = clock
        self._line = AlterPartitionQueue()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, on_result: OnResult) -> None:
        """Start sending; `on_result` is called with each proposal and its result."""
        self._task = asyncio.create_task(self._send_all(on_result), name="ISR changes")

    def submit(self, proposal: AlterPartitionItem) -> None:
        """Queue a proposal."""
        self._line.submit(proposal)
        self._wanted.set()

    def submit_later(self, proposal: AlterPartitionItem, is_wanted: Callable[[], bool]) -> None:
        """Queue a proposal again after a pause, if `is_wanted` is true then."""

        def submit() -> None:
            if is_wanted():
                self.submit(proposal)

        asyncio.get_running_loop().call_later(RETRY_BACKOFF_MS / 1000, submit)

    def on_metadata(self) -> None:
        """Try again: the metadata may name a controller now, or another one."""
        self._wanted.set()

    def withdraw(self, name: TopicPartition) -> None:
        """Drop the proposal of a partition."""
        self._line.withdraw(name)

    def close(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()

    async def _send_all(self, on_result: OnResult) -> None:
        while True:
            self._wanted.clear()
            controller = self._controller_channel.controller
            batch = self._line.next_batch(
                None if controller is None else controller.id, self._clock.steady_ms()
            )
            if batch is None:
                await self._pause()
                continue
            try:
                responses = await self._send(batch)
            except UnavailableError as error:
                log.info("%s", error)
                self._line.on_disconnect(self._clock.steady_ms())
                continue
            if isinstance(responses, ErrorCode):
                log.info("the controller refuses AlterPartition: %s", responses.name)
                self._line.on_error(responses, self._clock.steady_ms())
                continue
            for proposal, response in self._line.on_response(responses, self._clock.steady_ms()):
                on_result(proposal, response)

    async def _pause(self) -> None:
        """Wait for a proposal, for a controller, or for the time to try again."""
        at_ms = self._line.next_attempt_ms()
        timeout_s = None
        if at_ms is not None and self._controller_channel.controller is not None:
            timeout_s = max(at_ms - self._clock.steady_ms(), 1) / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _send(
        self, batch: AlterPartitionBatch
    ) -> dict[TopicPartition, AlterPartitionResult] | ErrorCode:
        """Send one request; return the results by partition, or the top-level error."""
        by_id = all(proposal.topic_id is not None for proposal in batch.proposals)
        version = _VERSION_BY_ID if by_id else _VERSION_BY_NAME
        response = await self._controller_channel.send_once(
            ApiKey.ALTER_PARTITION,
            version,
            {
                "broker_id": self._identity.broker_id,
                "broker_epoch": self._identity.broker_epoch,
                "topics": _topics(batch.proposals),
            },
        )
        if response.error_code:
            return ErrorCode.of(int(response.error_code))
        names = {proposal.topic_id: proposal.partition.topic for proposal in batch.proposals}
        return {
            TopicPartition(
                names.get(topic.topic_id, "") if by_id else topic.topic_name,
                int(partition.partition_index),
            ): AlterPartitionResult(
                ErrorCode.of(int(partition.error_code)),
                int(partition.leader_epoch),
                int(partition.partition_epoch),
                tuple(map(int, partition.isr)),
            )
            for topic in response.topics
            for partition in topic.partitions
        }


def _topics(proposals: Iterable[AlterPartitionItem]) -> list[dict[str, Any]]:
    def topic_of(proposal: AlterPartitionItem) -> tuple[str, uuid.UUID | None]:
        return proposal.partition.topic, proposal.topic_id

    ordered = sorted(
        proposals, key=lambda proposal: (topic_of(proposal)[0], str(proposal.topic_id))
    )
    return [
        {
            "topic_name": name,
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": proposal.partition.partition,
                    "leader_epoch": proposal.leader_epoch,
                    "new_isr": proposal.isr,
                    "new_isr_with_epochs": [
                        {"broker_id": broker, "broker_epoch": _NO_EPOCH} for broker in proposal.isr
                    ],
                    "leader_recovery_state": 0,
                    "partition_epoch": proposal.partition_epoch,
                }
                for proposal in of_topic
            ],
        }
        for (name, topic_id), of_topic in groupby(ordered, key=topic_of)
    ]
