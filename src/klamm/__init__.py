"""klamm: a Kafka cluster in Python, with its controller, its brokers and a Spark pipeline."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.local.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    # Importing the package is part of starting a broker, which has no use for a cluster.
    if name == "Cluster":
        from klamm.local.cluster import Cluster

        return Cluster
    raise AttributeError(f"module 'klamm' has no attribute {name!r}")
