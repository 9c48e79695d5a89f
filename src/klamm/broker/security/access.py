"""What one connection may do: the authorizer asked in the name of its principal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from klamm.broker.security.authorizer import AclAuthorizer
from klamm.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType


class Access(NamedTuple):
    """A principal at an address, before an authorizer."""

    authorizer: AclAuthorizer
    principal: str
    host: str

    def may(self, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        return self.authorizer.allows(self.principal, self.host, operation, resource, name)

    def may_on_cluster(self, operation: AclOperation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_topic(self, operation: AclOperation) -> Callable[[str], bool]:
        """A test for topics by name."""
        return lambda name: self.may(operation, ResourceType.TOPIC, name)

    def may_on_any_topic(self, operation: AclOperation) -> bool:
        return self.authorizer.allows_on_any(
            self.principal, self.host, operation, ResourceType.TOPIC
        )

    def operations(self, resource: ResourceType, name: str) -> int:
        """The authorized operations on a resource, as bits."""
        return self.authorizer.authorized_operations(self.principal, self.host, resource, name)
