"""A bystander: another client of the same Redis, which sends a PING every millisecond and notes how long it waits.

Commands come on stdin, each is answered with one line: ``start`` a new measurement, ``read`` it (the longest
wait in seconds).
"""

from __future__ import annotations

import select
import sys
import time
from typing import Any

import redis


def main() -> None:
    """Ping until stdin ends."""
    client: Any = redis.Redis(unix_socket_path=sys.argv[1], protocol=2, socket_timeout=None)
    connection: Any = client.connection_pool.get_connection()
    ping = connection.pack_command("PING")
    longest = 0.0
    while True:
        sent = time.perf_counter()
        connection.send_packed_command(ping, check_health=False)
        connection.read_response()
        longest = max(longest, time.perf_counter() - sent)
        readable, _, _ = select.select([sys.stdin], [], [], 0.001)
        if not readable:
            continue
        word = sys.stdin.readline().strip()
        if not word:
            return
        sys.stdout.write(f"{longest}\n")
        sys.stdout.flush()
        longest = 0.0


if __name__ == "__main__":
    main()
