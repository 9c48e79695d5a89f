"""The broker's side of its controlled shutdown (SHUT-1, LIFE-13)."""

import asyncio
import logging

from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import MetadataCache
from klamm.config.broker import BrokerConfig
from klamm.errors import KlammError
from klamm.names import counted
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

log = logging.getLogger("klamm.broker")
_VERSION = 3


async def leave_in_order(
    config: BrokerConfig, identity: BrokerIdentity, metadata: MetadataCache
) -> bool:
    """Ask the controller for a controlled shutdown; returns whether no partition remains."""
    controller_channel = BrokerToControllerChannel(
        identity.broker_id,
        metadata,
        config.inter_broker_listener_name,
        config.request_timeout_ms / 1000,
        config.channel_security(config.inter_broker_listener_name),
    )
    attempts = config.controlled_shutdown_max_retries
    try:
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
            try:
                response = await controller_channel.send_once(
                    ApiKey.CONTROLLED_SHUTDOWN,
                    _VERSION,
                    {"broker_id": identity.broker_id, "broker_epoch": identity.broker_epoch},
                )
            except KlammError as error:
                log.warning(
                    "controlled shutdown, attempt %s of %s: %s", attempt + 1, attempts, error
                )
                continue
            if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
                log.info("[Broker id=%s] controlled shutdown succeeded", identity.broker_id)
                return True
            log.warning(
                "controlled shutdown, attempt %s of %s: error %s, %s",
                attempt + 1,
                attempts,
                response.error_code,
                counted(
                    len(response.remaining_partitions), "partition remains", "partitions remain"
                ),
            )
    finally:
        controller_channel.close()
    log.warning("[Broker id=%s] shutting down without the controller's leave", identity.broker_id)
    return False
