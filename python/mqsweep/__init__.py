"""mqsweep: finds and recovers stalled jobs on BullMQ and EchoMQ queues without freezing Redis."""

from ._version import __version__
from .aio import AsyncSweeper
from .engine import EngineInfo, engine_info
from .errors import (
    ConfigurationError,
    MQSweepError,
    ProtocolError,
    ScriptError,
    UnsupportedQueueError,
    WrongTypeError,
)
from .report import Inspection, StalledJob, SweepReport
from .sweep import Progress
from .sweeper import Sweeper

__all__ = [
    "AsyncSweeper",
    "ConfigurationError",
    "EngineInfo",
    "Inspection",
    "MQSweepError",
    "Progress",
    "ProtocolError",
    "ScriptError",
    "StalledJob",
    "SweepReport",
    "Sweeper",
    "UnsupportedQueueError",
    "WrongTypeError",
    "__version__",
    "engine_info",
]
