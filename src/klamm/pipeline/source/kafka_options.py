"""`kafka.*` options, which have the names of Kafka's Java clients, as librdkafka knows them.

A name that means the same to both is passed on. One that librdkafka knows under another name, or
with other values, is translated. What it has no counterpart for is refused by name, because an
option that is silently without effect is found out about too late.

The options also decide what reads: klamm's own client makes columns of whole responses and costs a
fraction for each record, but does not know every setting. For the others, librdkafka reads.
"""

import difflib
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

from klamm.errors import ConfigError
from klamm.net.librdkafka import SECURITY_SETTINGS, security_from_librdkafka
from klamm.pipeline.source.messages import tell

#: Settings that klamm's own client knows, besides those of security.
HONOURED: Final = frozenset(
    {"bootstrap.servers", "check.crcs", "client.id", "fetch.max.bytes", "fetch.wait.max.ms"}
    | {"fetch.min.bytes", "isolation.level", "max.partition.fetch.bytes", "socket.timeout.ms"}
)
#: Settings without effect here: the source joins no group and reads given ranges.
_WITHOUT_EFFECT: Final = frozenset(
    {"allow.auto.create.topics", "auto.offset.reset", "enable.auto.commit", "group.id"}
    | {"enable.auto.offset.store", "enable.partition.eof", "heartbeat.interval.ms", "log_level"}
    | {"group.instance.id", "max.poll.interval.ms", "metadata.max.age.ms", "session.timeout.ms"}
)

#: Java's name: librdkafka's, for the same values.
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}
_RENAMED_CONSUMER: Final = {"request.timeout.ms": "socket.timeout.ms"}
_RENAMED_PRODUCER: Final = {
    "max.request.size": "message.max.bytes",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
}

_MANAGED: Final = "The offsets that are read are managed by Spark."
_REFUSED: Final = {
    "interceptor.classes": "There are no Java classes here.",
    "metric.reporters": "There are no Java classes here.",
    "security.providers": "There are no Java classes here.",
    "sasl.client.callback.handler.class": "There are no Java classes here.",
    "sasl.login.callback.handler.class": "There are no Java classes here.",
    "sasl.login.class": "There are no Java classes here.",
    "ssl.engine.factory.class": "There are no Java classes here.",
    "default.api.timeout.ms": "Use fetchOffset.numRetries and kafkaConsumer.pollTimeoutMs.",
}
_REFUSED_CONSUMER: Final = {
    "auto.offset.reset": "Instead set the source option 'startingOffsets' to 'earliest' or "
    f"'latest' to specify where to start. {_MANAGED}",
    "enable.auto.commit": _MANAGED,
    "auto.commit.interval.ms": _MANAGED,
    "key.deserializer": "Keys are read as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the keys.",
    "value.deserializer": "Values are read as byte arrays. Use DataFrame operations to "
    "explicitly deserialize the values.",
    "max.poll.records": "Tasks read ranges of offsets, not polls.",
}
_REFUSED_PRODUCER: Final = {
    "key.serializer": "Keys are written as byte arrays. Use DataFrame operations to explicitly "
    "serialize the keys into either strings or byte arrays.",
    "value.serializer": "Values are written as byte arrays. Use DataFrame operations to "
    "explicitly serialize the values into either strings or byte arrays.",
    "max.block.ms": "A task waits for room in its queue until 'kafka.delivery.timeout.ms' ends.",
    "partitioner.availability.timeout.ms": "librdkafka has no counterpart for it.",
    "partitioner.adaptive.partitioning.enable": "librdkafka has no counterpart for it.",
}

_DEFAULTS: Final = {"log_level": "3", "client.id": "klamm-spark"}
_CONSUMER_DEFAULTS: Final = {
    # Java's default; librdkafka's own is read_committed.
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": "false",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # Data that is gone is to be noticed, not skipped.
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
}
#: Java's buffer.memory; librdkafka would take a gigabyte.
_BUFFER_BYTES: Final = 32 << 20
_PRODUCER_DEFAULTS: Final = {
    # Keys land where Java's producers put them.
    "partitioner": "murmur2_random",
}

_NAMESPACE: Final = uuid.UUID("6b6c616d-6d00-4000-8000-000000000000")
_JAAS_ENTRY: Final = re.compile(r"(\w+(?:\.\w+)*)\s+required\b(.*?);?\s*", re.DOTALL)
_JAAS_PAIR: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|(\S+))")
_NO_SUCH_PROPERTY: Final = re.compile(r"No such configuration property: \"(.*)\"")


def consumer_config(given: Mapping[str, str], *, group_id_prefix: str | None) -> dict[str, str]:
    """librdkafka's settings of a consumer; the keys of `given` are without the prefix `kafka.`."""
    _require_bootstrap(given, "consumer")
    config = _translate(given, _RENAMED | _RENAMED_CONSUMER, _REFUSED | _REFUSED_CONSUMER)
    prefix = group_id_prefix or "spark-kafka-source"
    config = {
        **_DEFAULTS,
        **_CONSUMER_DEFAULTS,
        # The source joins no group, but ACLs may allow reading to groups of certain names only.
        # As in Spark, a name goes before a prefix. The same settings give the same name, so that
        # a worker can keep its consumer from one micro-batch to the next.
        "group.id": f"{prefix}-{uuid.uuid5(_NAMESPACE, repr(sorted(config.items())))}",
        **config,
    }
    _check(config, Consumer, "on_commit")
    return config


def producer_config(given: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's settings of a producer; the keys of `given` are without the prefix `kafka.`."""
    _require_bootstrap(given, "producer")
    config = _translate(given, _RENAMED | _RENAMED_PRODUCER, _REFUSED | _REFUSED_PRODUCER)
    buffer_bytes = _number("buffer.memory", config.pop("buffer.memory", str(_BUFFER_BYTES)))
    largest = _number("message.max.bytes", config.get("message.max.bytes", "0"))
    # A record that is larger than the buffer would wait for room in vain.
    kilobytes = -(-max(buffer_bytes, largest) // 1024)
    if "partitioner.class" in config:
        config |= _partitioner(config.pop("partitioner.class"))
    if config.pop("partitioner.ignore.keys", "false").lower() == "true":
        config["partitioner"] = "random"
    config = {
        **_DEFAULTS,
        **_PRODUCER_DEFAULTS,
        "queue.buffering.max.kbytes": str(max(kilobytes, 1)),
        "enable.idempotence": str(_may_be_idempotent(config)).lower(),
        **config,
    }
    _check(config, Producer, "on_delivery")
    if config["enable.idempotence"] == "true" and not _may_be_idempotent(config):
        raise ConfigError(
            "Kafka option 'enable.idempotence' is true, and that takes acks=all, retries above 0 "
            "and max.in.flight.requests.per.connection of at most 5"
        )
    return config


def _require_bootstrap(given: Mapping[str, str], client: str) -> None:
    if not given.get("bootstrap.servers", "").strip():
        raise ConfigError(
            f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {client}"
        )


def _translate(
    given: Mapping[str, str], renamed: Mapping[str, str], refused: Mapping[str, str]
) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, value in given.items():
        if key in refused:
            raise ConfigError(f"Kafka option '{key}' is not supported. {refused[key]}")
        if key == "sasl.jaas.config":
            config |= _from_jaas(value)
        elif key not in _STORE_KEYS:
            config[renamed.get(key, key)] = value.strip()
    if not config.get("ssl.endpoint.identification.algorithm", "https"):
        config["ssl.endpoint.identification.algorithm"] = "none"  # Java's way is to leave it empty
    return config | _from_stores(given)


#: Where Java keeps certificates; what becomes of each depends on the others.
_STORE_KEYS: Final = frozenset(
    f"ssl.{store}.{what}"
    for store in ("truststore", "keystore")
    for what in ("location", "type", "password")
)


def _from_stores(given: Mapping[str, str]) -> dict[str, str]:
    config = {}
    for store, as_pem in (("truststore", "ssl.ca.location"), ("keystore", "ssl.key.location")):
        kind = given.get(f"ssl.{store}.type", "JKS").strip().upper()
        location = given.get(f"ssl.{store}.location")
        if location is None:
            continue
        if kind == "PEM":
            config[as_pem] = location
            if store == "keystore":
                # Java keeps the key and its certificates in one file.
                config["ssl.certificate.location"] = location
        elif kind == "PKCS12" and store == "keystore":
            config["ssl.keystore.location"] = location
            config["ssl.keystore.password"] = given.get("ssl.keystore.password", "")
        else:
            raise ConfigError(
                f"Kafka option 'ssl.{store}.location' of type {kind} is not supported: librdkafka "
                f"reads PEM; convert it and set 'kafka.ssl.{store}.type' to PEM"
            )
    return config


def _from_jaas(value: str) -> dict[str, str]:
    """The login of a JAAS entry, for the modules that librdkafka has counterparts for."""
    entry = _JAAS_ENTRY.fullmatch(value.strip())
    pairs = {
        name: quoted or bare
        for name, quoted, bare in _JAAS_PAIR.findall(entry[2].rstrip("; ") if entry else "")
    }
    module = entry[1].rpartition(".")[2] if entry else ""
    match module:
        case "PlainLoginModule" | "ScramLoginModule":
            return {
                "sasl.username": pairs.get("username", ""),
                "sasl.password": pairs.get("password", ""),
            }
        case "Krb5LoginModule":
            names = {"keyTab": "keytab", "principal": "principal", "serviceName": "service.name"}
            return {
                f"sasl.kerberos.{name}": pairs[java]
                for java, name in names.items()
                if java in pairs
            }
    raise ConfigError(
        "Kafka option 'sasl.jaas.config' is understood for PlainLoginModule, ScramLoginModule and "
        "Krb5LoginModule; otherwise use librdkafka's own options, such as 'kafka.sasl.username'"
    )


def _partitioner(java_class: str) -> dict[str, str]:
    if java_class.rpartition(".")[2] in ("DefaultPartitioner", "UniformStickyPartitioner"):
        return {}
    raise ConfigError(
        "Kafka option 'partitioner.class' is not supported. Add a column 'partition', or set "
        "'kafka.partitioner' to one of librdkafka's: consistent, random, murmur2, fnv1a"
    )


def _may_be_idempotent(config: Mapping[str, str]) -> bool:
    """Whether the settings allow an idempotent producer, by the rule of Java's producer."""
    return (
        config.get("acks", "all") in ("all", "-1")
        and config.get("retries", "1") != "0"
        and _number(
            "max.in.flight.requests.per.connection",
            config.get("max.in.flight.requests.per.connection", "5"),
        )
        <= 5
    )


def _number(key: str, value: str) -> int:
    if not value.strip().isdecimal():
        raise ConfigError(f"Kafka option '{key}' must be a number, not '{value}'")
    return int(value)


def _check(config: Mapping[str, str], client: type[Any], callback: str) -> None:
    """Check the settings with librdkafka; its refusal names the option as the user wrote it."""
    reason = _refusal(config, client, callback)
    if reason is None:
        return
    unknown = _NO_SUCH_PROPERTY.search(reason)
    if unknown is None:
        # librdkafka may call it by another name: it is the one that is refused by itself.
        culprits = (key for key in config if _refusal({key: config[key]}, client, callback))
        raise ConfigError(f"Kafka option '{next(culprits, '*')}' is not accepted: {reason}")
    known = [*config, *_RENAMED, *_RENAMED_CONSUMER, *_RENAMED_PRODUCER, *_COMMON]
    nearest = difflib.get_close_matches(unknown[1], sorted(set(known) - {unknown[1]}), n=1)
    hint = f"; did you mean 'kafka.{nearest[0]}'?" if nearest else ""
    raise ConfigError(
        f"Kafka option '{unknown[1]}' is not supported: librdkafka has no counterpart for it{hint}"
    )


def _refusal(config: Mapping[str, str], client: type[Any], callback: str) -> str | None:
    """Why these settings are refused, found without a client.

    Settings are taken one after another, and a callback that cannot be called is refused before
    there is a client. So it comes last: if it is what was refused, all others were accepted.
    """
    try:
        client({**config, callback: None})
    except KafkaException as error:
        reason = str(error.args[0].str())
        return None if reason.startswith(callback) else reason
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError(f"{callback} was not refused")


#: Options that are often given, for suggestions.
_COMMON: Final = (
    *("acks", "batch.size", "client.rack", "compression.type", "delivery.timeout.ms"),
    *("enable.idempotence", "fetch.max.bytes", "fetch.min.bytes", "linger.ms"),
    *("max.partition.fetch.bytes", "max.in.flight.requests.per.connection", "retries"),
    *("metadata.max.age.ms", "retry.backoff.ms", "sasl.mechanism", "sasl.username"),
    *("sasl.password", "security.protocol", "ssl.ca.location", "ssl.key.location"),
)


def beyond_own_client(kafka: Mapping[str, str]) -> list[str]:
    """The settings that klamm's own client does not know."""
    beyond = set(kafka) - HONOURED - _WITHOUT_EFFECT
    if not beyond - SECURITY_SETTINGS and security_from_librdkafka(kafka) is not None:
        return []
    return sorted(beyond)


def own_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """The settings that klamm's own client uses."""
    return {
        key: value for key, value in kafka.items() if key in HONOURED or key in SECURITY_SETTINGS
    }


def can_fetch(kafka: Mapping[str, str]) -> bool:
    """Whether klamm's own client knows all of these settings."""
    return not beyond_own_client(kafka)


def tell_path(kafka: Mapping[str, str]) -> None:
    """Log which client reads, and which settings rule out klamm's own, faster one."""
    reasons = beyond_own_client(kafka)
    if reasons:
        names = ", ".join(f"kafka.{name}" for name in reasons)
        tell("librdkafka reads, because klamm's own client does not know %s", names)
    else:
        tell("klamm's own client reads")
