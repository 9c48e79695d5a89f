"""InitProducerId without transactions (section 9)."""

from collections.abc import Mapping
from typing import Final

from klamm.broker.handlers.dispatch import Body, Call, Handler
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

_NONE: Final = -1


class ProducerHandlers:
    """Gives ids to producers."""

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """By API."""
        return {ApiKey.INIT_PRODUCER_ID: self._init_producer_id}

    def _init_producer_id(self, call: Call) -> Body:
        body = call.body
        has_id = getattr(body, "producer_id", _NONE) != _NONE
        has_epoch = getattr(body, "producer_epoch", _NONE) != _NONE
        if body.transactional_id is not None or has_id != has_epoch:
            # A transactional id that is not empty would need a coordinator, and there is none.
            return _refused(ErrorCode.INVALID_REQUEST)
        taken = self._ids.take()
        if taken is None:
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return {"error_code": ErrorCode.NONE, "producer_id": taken, "producer_epoch": 0}


def _refused(code: ErrorCode) -> Body:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}
