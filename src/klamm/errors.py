"""The exceptions of klamm.

    KlammError
      ConfigError          the operator's to fix: names the key, the value, what would be accepted
      ProtocolError        bytes that do not follow the protocol
        LocalProtocolError   ours: a bug
        RemoteProtocolError  the peer's
      MalformedZnodeError  a znode whose content cannot be read: names the path
      FencedError          someone newer holds this role: stand down, never retry
      UnavailableError     a peer or the store is out of reach: the one branch that is retried
        SessionLostError     the ZooKeeper session is gone: what hung on it has to start again
      IllegalTransitionError  a state machine was asked for a move that its table forbids: a bug

Branches follow what the catcher does next.
"""


class KlammError(Exception):
    """Root of everything that klamm raises on purpose."""


class ConfigError(KlammError):
    """The operator's to fix: names the key, the value, and what would be accepted."""


class ProtocolError(KlammError):
    """Bytes that do not follow the protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to send something malformed: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something malformed."""


class MalformedZnodeError(KlammError):
    """A znode whose content cannot be read; the message names the path and the reason."""


class FencedError(KlammError):
    """Someone newer holds this role: stand down, never retry."""


class UnavailableError(KlammError):
    """A peer or the store is out of reach: the one branch that is retried."""


class SessionLostError(UnavailableError):
    """The ZooKeeper session is gone: whatever hung on it has to start again."""


class IllegalTransitionError(KlammError):
    """A state machine was asked for a move that its table forbids: a bug of ours."""
