"""What a Produce request leaves behind."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from klamm.broker.handlers.produce import NOT_VERIFIED, ProduceHandlers
from klamm.broker.log.errors import AppendError
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode


def test_a_refused_batch_is_freed_without_the_garbage_collector() -> None:
    """An exception that its own frames refer to would stay: very many in one large request."""
    anything: Any = SimpleNamespace
    meters = anything(topic=lambda _: anything(produce_requests=0), on_append_error=lambda *_: None)
    metadata = anything(snapshot=anything(knows=lambda _: True))
    handlers = ProduceHandlers(anything(), metadata, meters, anything())
    call = anything(
        access=None, body=anything(acks=1), header=anything(api_version=9, client_id="c")
    )
    name = TopicPartition("orders", 0)
    refused = AppendError(ErrorCode.CORRUPT_MESSAGE, "no batch")
    alive = weakref.ref(refused)
    gc.disable()
    try:
        entry = handlers._append_or_refuse(call, name, refused, {}, NOT_VERIFIED)
        del refused
        assert alive() is None
    finally:
        gc.enable()
    assert (entry.error_code, entry.error_message) == (ErrorCode.CORRUPT_MESSAGE, "no batch")
