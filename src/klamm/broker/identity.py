"""Who this broker is, in which incarnation, and which controller it listens to."""

from dataclasses import dataclass

from klamm.protocol.codes import ErrorCode


@dataclass(slots=True)
class BrokerIdentity:
    """The ids and epochs by which requests are let in or fenced (FENCE-10, FENCE-11; CTRL-2, 3)."""

    broker_id: int
    cluster_id: str
    #: Creation transaction of the registration; -1 before there is one.
    broker_epoch: int = -1
    #: The highest seen in a request of a controller.
    controller_epoch: int = 0

    def admit_controller(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        """Whether a controller's request is current; if so, its epoch is remembered.

        The broker epoch may be larger than the own: the controller can learn of a registration
        before the broker does. -1 means that the controller does not say.
        """
        if broker_epoch != -1 and broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE
