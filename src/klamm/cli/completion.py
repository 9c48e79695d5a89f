"""Shell completion of what a cluster has: topics, groups, brokers, transactional ids, users.

`klamm --install-completion` teaches bash, zsh and fish. The cluster is the one that the command
line or `KLAMM_BOOTSTRAP_SERVER` names. A cluster that does not answer completes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import typer

from klamm.client.admin import DEFAULT_BOOTSTRAP, Admin
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import KlammError

#: A person waits at the prompt.
_PATIENCE_S: Final = 2.0
Completer = Callable[[typer.Context, str], list[str]]


def _completer(names: Callable[[Admin], Iterable[str]]) -> Completer:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        server = context.params.get("bootstrap_server") or DEFAULT_BOOTSTRAP
        file = context.params.get("command_config")
        try:
            security = PLAINTEXT if file is None else ClientSecurity.load(file)
            with Admin(server, timeout_s=_PATIENCE_S, security=security) as admin:
                found = sorted(set(names(admin)))
        except (KlammError, OSError):
            return []  # completion cannot show errors
        return [name for name in found if name.startswith(incomplete)]

    return complete


def _listed(complete: Completer) -> Completer:
    """Complete the last name of a list with commas."""

    def complete_last(context: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in complete(context, last)]

    return complete_last


def _topics(admin: Admin) -> list[str]:
    from klamm.client import topics

    return [topic.topic for topic in topics.describe(admin).topics]


def _partitions(admin: Admin) -> list[str]:
    from klamm.client import topics

    found = topics.describe(admin).topics
    return [f"{each.topic}-{each.partition}" for topic in found for each in topic.partitions]


def _groups(admin: Admin) -> list[str]:
    from klamm.client import groups

    return [group.group for group in groups.list_groups(admin)]


def _brokers(admin: Admin) -> list[str]:
    return [str(broker.node_id) for broker in admin.metadata([]).brokers]


def _transactional_ids(admin: Admin) -> list[str]:
    from klamm.client import transactions

    return [each.transactional_id for each in transactions.list_transactions(admin)]


def _users(admin: Admin) -> list[str]:
    from klamm.client import users

    return [each.user for each in users.describe(admin)]


def _principals(admin: Admin) -> list[str]:
    """Users with a password, and the principals that ACLs name."""
    from klamm.client import acls

    found = [f"User:{user}" for user in _users(admin)]
    with suppress(KlammError):  # a cluster without an authorizer has no ACLs
        found += [each.entry.principal for each in acls.describe(admin)]
    return found


complete_topic: Final = _completer(_topics)
complete_topics: Final = _listed(complete_topic)
complete_partition: Final = _completer(_partitions)
complete_group: Final = _completer(_groups)
complete_broker: Final = _completer(_brokers)
complete_brokers: Final = _listed(complete_broker)
complete_transactional_id: Final = _completer(_transactional_ids)
complete_user: Final = _completer(_users)
complete_principal: Final = _completer(_principals)
