"""Letting another process do things to the brokers of a local cluster: `klamm up` and its console.

A request is a line of JSON, `{"do": "kill", "broker": 1}`, and so is its response. The socket is
one of a pair that only the child has, so there is nothing to be protected.
"""

import json
import logging
import socket
import threading
from typing import Any, Final

from klamm.errors import KlammError
from klamm.local.cluster import Cluster

log = logging.getLogger("klamm.local")

VERBS: Final = ("kill", "stop", "start", "pause", "resume", "prepare_cut", "cut", "rejoin")


class ClusterControl:
    """Carries out what comes over a socket, in a thread, until the other end is closed."""

    def __init__(self, cluster: Cluster, can_be_cut: bool) -> None:
        self._cluster = cluster
        self._can_be_cut = can_be_cut
        self._cut: set[int] = set()
        ours, self.child_end = socket.socketpair()
        self._stream = ours.makefile("rwb")
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def _serve(self) -> None:
        for line in self._stream:
            try:
                response = self._carry_out(json.loads(line))
            except (KlammError, ValueError, TypeError, AttributeError) as error:
                response = {"error": str(error)}
            except Exception as error:
                log.exception("a request of the console failed")
                response = {"error": str(error)}
            self._stream.write(json.dumps(response).encode() + b"\n")
            self._stream.flush()

    def _carry_out(self, asked: dict[str, Any]) -> dict[str, Any]:
        verb = asked.get("do")
        if verb in VERBS:
            broker = int(asked["broker"])
            match verb:
                case "prepare_cut":
                    self._cluster.put_behind_proxy(broker)
                case "cut":
                    self._cluster.put_behind_proxy(broker)
                    self._cluster.cut_from_zookeeper(broker)
                    self._cut.add(broker)
                case "rejoin":
                    self._cluster.rejoin_zookeeper(broker)
                    self._cut.discard(broker)
                case _:
                    getattr(self._cluster, verb)(broker)
        elif verb != "status":
            raise KlammError(f"{verb!r} cannot be done; there are {', '.join(VERBS)} and status.")
        processes = [self._cluster.broker(broker) for broker in self._cluster.broker_ids]
        return {
            "can_be_cut": self._can_be_cut,
            "brokers": [
                {"id": each.id, "state": each.state.value, "cut": each.id in self._cut}
                for each in processes
            ],
        }
