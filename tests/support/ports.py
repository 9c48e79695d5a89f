"""Free ports for processes that tests start."""

from klamm.local.network import free_ports, is_free


def free_port() -> int:
    """A free port below the range that the system gives to outgoing connections.

    A node that is restarted therefore finds its port free again.
    """
    (port,) = free_ports(1)
    return port


def free_base_port(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        base = free_port()
        if all(is_free(port) for port in range(base, base + count)):
            return base
