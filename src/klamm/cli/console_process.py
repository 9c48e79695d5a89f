"""The console that `klamm up` runs beside its cluster."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from klamm.console.link import PORT, TOKEN_VARIABLE, given_token, link, listen
from klamm.processes import Child, tied_klamm

if TYPE_CHECKING:
    from klamm.local.cluster import Cluster


class ConsoleProcess:
    """A console with its link, which can be opened at once: its port listens before it serves."""

    def __init__(self, cluster: Cluster, *, can_be_cut: bool) -> None:
        from klamm.local.control import ClusterControl

        token = given_token()
        listening = listen(PORT, or_any=True)
        self.url = link(listening, token)
        control = ClusterControl(cluster, can_be_cut)
        spools = [cluster.broker(broker).spool for broker in cluster.broker_ids]
        config = cluster.command_config
        secured = () if config is None else (f"--command-config={config}",)
        descriptors = (listening.fileno(), control.child_end.fileno())
        self._child = Child(
            tied_klamm(
                "console",
                "--bootstrap-server",
                cluster.bootstrap_servers,
                "--allow-changes",
                f"--state-dir={cluster.data_dir / 'console'}",
                f"--listen-fd={descriptors[0]}",
                f"--control-fd={descriptors[1]}",
                *(f"--spool={spool}" for spool in spools),
                *secured,
            ),
            cluster.data_dir / "console.log",
            "console",
            pass_fds=descriptors,
            # Not on its command line, which everybody on the machine can read.
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        listening.close()
        control.child_end.close()

    def close(self) -> None:
        self._child.end(signal.SIGTERM)
