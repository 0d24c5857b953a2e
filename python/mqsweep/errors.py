"""What can go wrong: one tree, raised alike by both engines.

Connection faults are not here on purpose: they surface as the
``redis.exceptions`` (or ``valkey.exceptions``) that users already catch.
"""

from __future__ import annotations


class MQSweepError(Exception):
    """Base of every error that mqsweep itself raises."""


class ConfigurationError(MQSweepError, ValueError):
    """An option has a value that cannot work; the text names it and what is allowed."""


class UnsupportedQueueError(MQSweepError):
    """A queue that mqsweep must not touch; the text says why and what to do."""


class WrongTypeError(MQSweepError):
    """One of the queue's own keys holds another Redis type than the protocol says."""


class ScriptError(MQSweepError):
    """The server refused or aborted a call of the script; nothing is retried blindly."""


class ProtocolError(MQSweepError):
    """The server sent bytes that are not RESP2, or a reply that was not asked for."""


class ServerReplyError(MQSweepError):
    """An error reply met inside a scan, before it is mapped to the client's own class.

    Args:
        message: the error line as sent, without its leading ``-``.
    """

    def __init__(self, message: bytes) -> None:
        super().__init__(message.decode("utf-8", "backslashreplace"))
        self.message = message
