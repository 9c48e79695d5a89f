"""The producers of a Python worker.

A producer that is idempotent has an id, which every partition that it writes to remembers for a
day. So a worker makes one producer for each configuration, not one for each task of each
micro-batch. A producer that has failed is not used again: what it had under way goes with it.
"""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from klamm.pipeline.source.pool import Pool
from klamm.pipeline.source.reaching import SILENT


class KeptProducer:
    """A producer and the first failure that librdkafka told of."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        failures = self._failures = _Failures()
        self.producer = Producer(
            {
                **kafka,
                "on_delivery": failures.on_delivery,
                # librdkafka counts what was delivered, so no Python is run for that.
                "delivery.report.only.error": True,
                "error_cb": failures.on_error,
                # One that waits for its next task need not tell of brokers that come and go.
                "logger": SILENT,
            }
        )

    @property
    def failure(self) -> KafkaError | None:
        return self._failures.first

    def is_sound(self) -> bool:
        """Whether another task can use it."""
        self.producer.poll(0)
        return self.failure is None and len(self.producer) == 0

    def close(self) -> None:
        """Drop unsent records; librdkafka closes a producer with its last reference."""
        self.producer.purge()


class _Failures:
    """The failures of a producer; a separate object, so that callbacks do not keep it alive."""

    def __init__(self) -> None:
        self.first: KafkaError | None = None

    def on_delivery(self, error: KafkaError | None, _: Any) -> None:
        self.first = self.first or error

    def on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.first = self.first or error


#: The idle producers of this process.
PRODUCERS: Final = Pool(KeptProducer, is_sound=KeptProducer.is_sound, close=KeptProducer.close)
