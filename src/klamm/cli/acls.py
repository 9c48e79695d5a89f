"""`klamm acls`: who may do what."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from klamm.cli.completion import (
    complete_group,
    complete_principal,
    complete_topic,
    complete_transactional_id,
)
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, group, open_admin
from klamm.cli.render import say, show_json, show_rows, stdout
from klamm.client import acls
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.errors import ConfigError
from klamm.protocol.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
    parse_word,
)

app = group("Who may do what: ACLs, as kafka-acls keeps them.")

Principal = Annotated[
    str | None,
    typer.Option(metavar="User:NAME", autocompletion=complete_principal, help="Who."),
]
Operation = Annotated[
    list[str] | None, typer.Option(help="Read, Write, Describe, All, ...; may be repeated.")
]
Topic = Annotated[
    str | None, typer.Option(autocompletion=complete_topic, help="On this topic; * for all.")
]
Group = Annotated[
    str | None, typer.Option(autocompletion=complete_group, help="On this group; * for all.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="On the cluster itself.")]
TransactionalId = Annotated[
    str | None,
    typer.Option(autocompletion=complete_transactional_id, help="On this transactional id."),
]
Resource = Annotated[
    str | None,
    typer.Option(metavar="TYPE:NAME", help="On this resource: Topic:orders, Group:g, Cluster."),
]
Prefixed = Annotated[
    bool, typer.Option("--prefixed", help="On everything whose name begins like that.")
]
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="From this address; else any.")]


_COLUMNS = {
    "resource": lambda a: f"{a.resource_type} {a.name}",
    "pattern": lambda a: a.pattern,
    "principal": lambda a: a.principal,
    "permission": lambda a: a.permission,
    "operation": lambda a: a.operation,
    "host": lambda a: a.host,
}


_RESOURCE_OPTIONS = "--topic / --group / --cluster / --transactional-id / --resource"


def _resource(
    topic: str | None,
    group_: str | None,
    cluster: bool,
    transactional_id: str | None,
    resource: str | None,
) -> tuple[ResourceType, str] | None:
    given = [] if resource is None else [_parse_resource(resource)]
    given += [
        (kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.GROUP, group_),
            (ResourceType.CLUSTER, CLUSTER_NAME if cluster else None),
            (ResourceType.TRANSACTIONAL_ID, transactional_id),
        )
        if name is not None
    ]
    if len(given) > 1:
        raise typer.BadParameter("give one of them", param_hint=_RESOURCE_OPTIONS)
    return given[0] if given else None


def _parse_resource(text: str) -> tuple[ResourceType, str]:
    """A resource as `TYPE:NAME`; the cluster needs no name."""
    word, _, name = text.partition(":")
    try:
        type_ = parse_word(ResourceType, word)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--resource") from None
    if type_ is ResourceType.CLUSTER:
        name = name or CLUSTER_NAME
    if not name:
        raise typer.BadParameter(
            f"{text!r} names no resource; {type_.word}:NAME would", param_hint="--resource"
        )
    return type_, name


def _needed(resource: tuple[ResourceType, str] | None) -> tuple[ResourceType, str]:
    if resource is None:
        raise typer.BadParameter("one of them is needed", param_hint=_RESOURCE_OPTIONS)
    return resource


def _operations(given: list[str] | None) -> list[AclOperation]:
    if not given:
        raise typer.BadParameter("it is needed", param_hint="--operation")
    try:
        return [parse_word(AclOperation, each) for each in given]
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--operation") from None


@app.command()
def add(
    principal: Annotated[
        str,
        typer.Option(
            metavar="User:NAME",
            autocompletion=complete_principal,
            help="Who; User:* for anybody.",
        ),
    ],
    operation: Operation = None,
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    resource: Resource = None,
    prefixed: Prefixed = False,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it; denials come first.")] = False,
    host: Host = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Allow or deny somebody something.

    \b
    Example: klamm acls add --principal User:alice --operation Read --topic orders
    Example: klamm acls add --principal User:x --operation All --topic t --deny
    """
    type_, name = _needed(_resource(topic, group, cluster, transactional_id, resource))
    pattern = ResourcePattern(
        type_, name, PatternType.PREFIXED if prefixed else PatternType.LITERAL
    )
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    bindings = [
        AclBinding(pattern, AccessControlEntry(principal, host or ANY_HOST, each, permission))
        for each in _operations(operation)
    ]
    with open_admin(bootstrap_server, command_config) as admin:
        acls.add(admin, bindings)
    if as_json:
        show_json([asdict(acls.AclRow.of(each)) for each in bindings])
        return
    for binding in bindings:
        say(str(binding))


@app.command("list")
def list_(
    principal: Principal = None,
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    resource: Resource = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show ACLs: all, or those that cover a resource or name a principal.

    \b
    Example: klamm acls list --topic orders
    """
    covered = _resource(topic, group, cluster, transactional_id, resource)
    wanted = AclFilter(principal=principal)
    if covered is not None:
        wanted = AclFilter(*covered, PatternType.MATCH, principal=principal)
    with open_admin(bootstrap_server, command_config) as admin:
        found = acls.describe(admin, wanted)
    show_rows(
        [acls.AclRow.of(each) for each in found],
        _COLUMNS,
        as_json=as_json,
        empty="There are no ACLs.",
    )


@app.command()
def remove(
    principal: Principal = None,
    operation: Operation = None,
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    resource: Resource = None,
    prefixed: Prefixed = False,
    deny: Annotated[bool, typer.Option("--deny", help="Only denials.")] = False,
    host: Host = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Remove the ACLs that are exactly so; what is not given does not matter.

    \b
    Example: klamm acls remove --principal User:alice --topic orders
    """
    type_, name = _needed(_resource(topic, group, cluster, transactional_id, resource))
    permission = AclPermission.DENY if deny else AclPermission.ANY
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    removed: list[AclBinding] = []
    with open_admin(bootstrap_server, command_config) as admin:
        for each in _operations(operation) if operation else [AclOperation.ANY]:
            wanted = AclFilter(type_, name, pattern, principal, host, each, permission)
            removed += acls.remove(admin, wanted)
    show_rows(
        [acls.AclRow.of(each) for each in removed],
        _COLUMNS,
        as_json=as_json,
        empty="There was nothing to remove.",
    )


@app.command()
def explain(
    principal: Annotated[
        str,
        typer.Option(metavar="User:NAME", autocompletion=complete_principal, help="Who asks."),
    ],
    operation: Annotated[str, typer.Option(help="What for: Read, Write, Describe and others.")],
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    resource: Resource = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="From where.")] = "127.0.0.1",
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Say whether somebody may do something, and which ACL decides that.

    The brokers' super.users are not visible from outside: a super user may do everything.

    \b
    Example: klamm acls explain --principal User:al --operation Read --topic t
    """
    from klamm.broker.security.authorizer import explain_access

    type_, name = _needed(_resource(topic, group, cluster, transactional_id, resource))
    (asked,) = _operations([operation])
    with open_admin(bootstrap_server, command_config) as admin:
        found = acls.describe(admin, AclFilter(type_, name, PatternType.MATCH))
    told = explain_access(found, principal, host, asked, type_, name)
    if as_json:
        show_json(told.describe())
        return
    verdict = "allowed" if told.is_allowed else "denied"
    stdout().print(f"{verdict}: {told.reason}", markup=False)
    for each in told.considered:
        mark = "*" if each in told.deciding else " "
        stdout().print(f"  {mark} {each}", markup=False)
