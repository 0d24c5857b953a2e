"""``mqsweep inspect``: who is stalled now. Changes nothing."""

from __future__ import annotations

import argparse

from .faults import EXPECTED, Exit, explain_for
from .output import inspection_lines, print_lines, say
from .queues import Queue, opened, overall


def inspect(options: argparse.Namespace) -> Exit:
    """Look at each queue named."""
    codes: list[Exit] = []
    with opened(options) as queues:
        for queue in queues:
            try:
                _one(queue, options.json)
                codes.append(Exit.DONE)
            except EXPECTED as fault:
                code, text = explain_for(queue.name, fault, options.url)
                say(text)
                if code is Exit.UNREACHABLE:
                    return code
                codes.append(code)
    return overall(codes)


def _one(queue: Queue, as_json: bool) -> None:
    missing = queue.missing()
    if missing and not as_json:
        return
    with queue.ticking():
        seen = queue.sweeper.inspect()
    print_lines([seen.to_json()] if as_json else inspection_lines(seen))
