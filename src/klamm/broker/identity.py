"""The broker's id and epochs, with which it fences requests of outdated controllers."""

from dataclasses import dataclass

from klamm.protocol.codes import ErrorCode


@dataclass(slots=True)
class BrokerIdentity:
    """The broker's ids, its epoch and the controller's epoch (FENCE-10, FENCE-11; CTRL-2, 3)."""

    broker_id: int
    cluster_id: str
    #: The broker epoch: the zxid that created its registration; -1 before that.
    broker_epoch: int = -1
    #: The highest controller epoch that a request had.
    controller_epoch: int = 0

    def admit_controller(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        """The error of an outdated request; otherwise remember its controller epoch.

        The request's broker epoch may be larger than this broker's own, because the controller can
        learn of a registration before the broker does. -1 means that the request has none.
        """
        if broker_epoch != -1 and broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE
