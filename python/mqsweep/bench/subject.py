"""One contender's run, in a process of its own.

Lines of JSON on stdin: ``{"url", "prefix", "contender"}``, answered when all is ready, then ``"go"``, answered with
what the sweep did and cost. What goes wrong goes to stderr.
"""

from __future__ import annotations

import json
import sys

from .contenders import Target, prepare
from .meter import count_traffic, measured, plain_client, say

CLIENT_NAME = "mqsweep-bench-subject"


def main() -> None:
    """Run once."""
    spec = json.loads(sys.stdin.readline())
    client = plain_client(spec["url"], CLIENT_NAME)
    traffic = count_traffic(client)
    work = prepare(spec["contender"], Target(client, spec["prefix"]))
    say("ready")
    if not sys.stdin.readline():
        return
    recovered, cost = measured(work, traffic)
    say({"recovered": recovered, **cost})


if __name__ == "__main__":
    main()
