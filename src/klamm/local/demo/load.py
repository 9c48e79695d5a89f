"""Load from a stock client: a producer of numbered records, and a reader that collects them."""

import threading
from collections import defaultdict
from typing import Any, Final

from klamm.errors import UnavailableError

_PAUSE_S: Final = 0.005
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 1.0


class NumberedProducer:
    """An idempotent producer with acks=all, in a thread of its own."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self.acknowledged: list[int] = []
        self.refused: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until every record is acknowledged or failed."""
        self._stopping.set()
        self._thread.join()
        if left := self._producer.flush(_PATIENCE_S):
            raise UnavailableError(f"{left} records were not acknowledged.")

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(_PAUSE_S):
            value = str(number)
            self._producer.produce(self._topic, value, key=value, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            self.acknowledged.append(int(message.value()))


def read_numbers(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, list[int]]:
    """Read the topic to its present end with a stock consumer; the numbers by partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "klamm-demo",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: dict[int, list[int]] = defaultdict(list)
    try:
        left = {}
        for number in range(partitions):
            at = TopicPartition(topic, number)
            low, high = consumer.get_watermark_offsets(at, timeout=_PATIENCE_S)
            if low < high:
                left[number] = high
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        silent = 0
        while left:
            message: Any = consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                silent += 1
                if silent * _POLL_S > _PATIENCE_S:
                    raise UnavailableError(f"{topic} cannot be read to its end: {left}")
                continue
            silent = 0
            found[message.partition()].append(int(message.value()))
            if message.offset() + 1 >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
    finally:
        consumer.close()
    return found
