"""``mqsweep sweep``: one sweep of each queue named."""

from __future__ import annotations

import argparse
import json

from ..report import SweepReport
from .faults import EXPECTED, Exit, explain_for
from .inspect import inspect
from .output import print_lines, report_lines, say
from .queues import Queue, opened, overall


def sweep(options: argparse.Namespace) -> Exit:
    """Sweep once."""
    if options.dry_run:
        return inspect(options)
    codes: list[Exit] = []
    with opened(options) as queues:
        for queue in queues:
            try:
                code = _one(queue, options.json)
                if code is not None:
                    codes.append(code)
            except EXPECTED as fault:
                code, text = explain_for(queue.name, fault, options.url)
                say(text)
                if code is Exit.UNREACHABLE:
                    return code  # the other queues are on the same server
                codes.append(code)
    return overall(codes)


def _one(queue: Queue, as_json: bool) -> Exit | None:
    """Sweep one queue; ``None`` when there is no such queue."""
    missing = queue.missing()
    if missing:  # a lease would be left as its only key, and the next try would find a queue
        report = SweepReport(queue.name, queue.dialect, queue.sweeper.engine, "swept")
    else:
        with queue.ticking():
            report = queue.sweeper.sweep()
    if as_json:
        print_lines([json.dumps(report.to_dict() | {"exists": not missing})])
    elif not missing:
        print_lines(report_lines(report, queue.sweeper.interval))
    if missing:
        return None
    if report.status == "held":
        return Exit.FAILED
    return Exit.DONE if report.status == "swept" else Exit.BUSY
