"""Large queues of your own choosing: mqsweep's engines and BullMQ's script side by side, measured.

`perform` runs it; `mqsweep.bench.table` and `mqsweep.bench.plot` show what it found.
"""

from __future__ import annotations

from ..errors import MQSweepError

__all__ = ["BenchError"]


class BenchError(MQSweepError):
    """A measurement cannot be made; the text says why."""
