"""A user with just the rights that SECURITY.md asks for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from support.servers import Server

PAGE = Path(__file__).resolve().parents[2] / "SECURITY.md"


def rights_of_the_page() -> list[str]:
    """What follows the user's name in the page's line."""
    found = re.search(r"ACL SETUSER mqsweep (.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1).split()


@contextlib.contextmanager
def limited_url(server: Server, client: redis.Redis, *more: str) -> Iterator[str]:
    """The URL of a user with these rights, and with more or fewer of them."""
    anything: Any = client
    anything.execute_command("ACL", "SETUSER", "mqsweep", "reset", *rights_of_the_page(), *more)
    try:
        yield f"redis://mqsweep:secret@127.0.0.1:{server.port}/0"
    finally:
        anything.acl_deluser("mqsweep")
