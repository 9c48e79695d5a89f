"""Asks transaction coordinators, for the leaders of partitions, whether a transaction is open.

A transaction without an end marker would stop readers of committed data for good. So
the first batch of a transaction on a partition is accepted only if the coordinator knows that the
partition is in the transaction (TXN-12).
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from time import perf_counter
from typing import Any, Final

from klamm.broker.clock import Clock
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.transactions.coordinator import TransactionCoordinator, transaction_partition
from klamm.broker.transactions.messages import AddRequest
from klamm.broker.transactions.peers import PeerConnections
from klamm.broker.transactions.records import by_topic
from klamm.broker.transactions.verification import (
    Question,
    VerificationChannels,
    VerificationRequest,
    Verified,
    for_producer,
)
from klamm.config.broker import BrokerConfig
from klamm.errors import UnavailableError
from klamm.metrics.meters import Meter, Timer
from klamm.names import TRANSACTION_STATE, TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

log = logging.getLogger("klamm.broker.transactions")

#: The first version that can verify, and the one that is sent if the peer has it.
_FIRST_WITH_VERIFICATION: Final = 4
_ADD_PARTITIONS_TO_TXN: Final = 5

Errors = Mapping[TopicPartition, ErrorCode]


class TransactionVerifier:
    """Finds coordinators and asks them, one request at a time to each."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        metadata: MetadataCache,
        coordinator: TransactionCoordinator,
        clock: Clock,
    ) -> None:
        #: How long coordinators took to respond, and how often they did not agree.
        self.times = Timer(lambda: clock.steady_ms() / 1000)
        self.failures = Meter(lambda: clock.steady_ms() / 1000)
        self._broker_id = broker_id
        self._metadata = metadata
        self._coordinator = coordinator
        self._channels = VerificationChannels()
        self._peers = PeerConnections(config, broker_id, metadata)
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Errors]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: tuple[TopicPartition, ...],
    ) -> Errors | Awaitable[Errors]:
        """The error of each partition; at once if this broker is the coordinator."""
        broker = self._find_coordinator(transactional_id)
        if broker is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if broker == self._broker_id:
            response = self._coordinator.verify_partitions(
                AddRequest(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    partitions=partitions,
                )
            )
            verdict = response.errors or dict.fromkeys(partitions, response.error)
            return {each: for_producer(verdict, each) for each in partitions}
        question = Question(
            next(self._tickets), transactional_id, producer_id, producer_epoch, partitions
        )
        future: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        self._waiting[question.ticket] = future
        turned_away = self._channels.add(broker, question)
        if turned_away is not None:
            self._settle(turned_away)
        self._send()
        return self._measure(future)

    def on_metadata(self) -> None:
        """Brokers may have gone."""
        self._peers.on_metadata()

    def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        self._peers.close()

    async def _measure(self, verdict: Awaitable[Errors]) -> Errors:
        began = perf_counter()
        errors = await verdict
        self.times.observe(perf_counter() - began)
        if any(errors.values()):
            self.failures.mark()
        return errors

    def _find_coordinator(self, transactional_id: str) -> int | None:
        snapshot = self._metadata.snapshot
        topic = snapshot.topic(TRANSACTION_STATE)
        if topic is None:
            return None
        partition = topic.partition(transaction_partition(transactional_id, len(topic)))
        if partition is None or not snapshot.is_alive(partition.leader):
            return None
        return partition.leader

    def _send(self) -> None:
        for request in self._channels.poll():
            self._start(self._ask(request))

    async def _ask(self, request: VerificationRequest) -> None:
        verdict: Mapping[str, Errors] | ErrorCode = ErrorCode.NETWORK_EXCEPTION
        try:
            highest = await self._peers.highest_version(
                request.broker, ApiKey.ADD_PARTITIONS_TO_TXN
            )
            if highest < _FIRST_WITH_VERIFICATION:
                verdict = ErrorCode.NONE
            else:
                version = min(highest, _ADD_PARTITIONS_TO_TXN)
                response = await self._peers.send(
                    request.broker, ApiKey.ADD_PARTITIONS_TO_TXN, version, _body(request)
                )
                verdict = _verdict(response)
        except UnavailableError as error:
            log.debug("verification at broker %s failed: %s", request.broker, error)
        except Exception:
            log.exception("verification at broker %s failed", request.broker)
        for verified in self._channels.on_response(request.broker, verdict):
            self._settle(verified)
        self._send()

    def _settle(self, verified: Verified) -> None:
        future = self._waiting.pop(verified.ticket)
        if not future.done():
            future.set_result(verified.errors)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _body(request: VerificationRequest) -> dict[str, Any]:
    return {
        "transactions": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "verify_only": True,
                "topics": [
                    {"name": topic, "partitions": partitions}
                    for topic, partitions in by_topic(each.partitions).items()
                ],
            }
            for each in request.questions
        ]
    }


def _verdict(response: Any) -> Mapping[str, Errors] | ErrorCode:
    error = ErrorCode.of(response.error_code)
    if error:
        return error
    return {
        result.transactional_id: {
            TopicPartition(topic.name, each.partition_index): ErrorCode.of(
                each.partition_error_code
            )
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
