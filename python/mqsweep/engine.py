"""The only place that chooses between the twins: the Rust scan, the pure one, or the script alone."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from . import scan as pure
from ._version import __version__
from .dialects import choice
from .errors import ConfigurationError

EngineName = Literal["rust", "python", "script"]
CHOICES = ("auto", "rust", "python", "script")
VARIABLE = "MQSWEEP_ENGINE"


@dataclass(frozen=True)
class Engine:
    """An engine that can be used here.

    Attributes:
        name: ``rust``, ``python`` or ``script``.
        scan: makes a scan; ``None`` for ``script``, which looks for itself.
    """

    name: EngineName
    scan: Callable[..., Any] | None


@dataclass(frozen=True)
class EngineInfo:
    """What runs here, and why.

    Attributes:
        engine: what ``auto`` gives.
        reason: why.
        version: mqsweep's version.
        core: version of the native core; ``None`` when there is none.
        build_profile: ``release`` or ``debug``, as the core was built; ``None`` without one.
        python: the interpreter and its version.
    """

    engine: EngineName
    reason: str
    version: str
    core: str | None
    build_profile: str | None
    python: str

    def to_dict(self) -> dict[str, str | None]:
        """All fields as plain values."""
        return asdict(self)


def _load() -> Any:
    """The native core, whatever its version; ``None`` when it is not there."""
    try:
        return importlib.import_module("mqsweep._core")
    except ImportError:
        return None


def _native() -> tuple[Any, str]:
    """The native core, or ``None`` with the reason why there is none to use."""
    core = _load()
    if core is None:
        return None, "the native core is not installed"
    if core.__version__ != __version__:
        return None, f"the native core is of version {core.__version__}, mqsweep of {__version__}; install it again"
    if not hasattr(core, "Scan"):
        return None, "the native core of this version reads replies only; its scan is not built yet"
    return core, "the native core is installed"


def choose(requested: object = "auto") -> Engine:
    """The engine that was asked for.

    Args:
        requested: ``auto``, ``rust``, ``python`` or ``script``. With ``auto`` the environment variable
            ``MQSWEEP_ENGINE`` is asked next; then the native core is used if it can be.

    Raises:
        ConfigurationError: no such engine, or ``rust`` was forced and cannot be had. A forced engine never falls
            back.
    """
    name = choice("engine", requested, CHOICES)
    if name == "auto":
        name = choice(VARIABLE, os.environ.get(VARIABLE) or "auto", CHOICES)
    core, reason = _native() if name in ("auto", "rust") else (None, "")
    if name == "rust" and core is None:
        raise ConfigurationError(f"engine='rust': {reason}; use 'auto' or 'python'")
    if core is not None:
        return Engine("rust", core.Scan)
    return Engine("script", None) if name == "script" else Engine("python", pure.Scan)


def engine_info() -> EngineInfo:
    """Which engine ``auto`` gives here, with versions, build profile and the reason.

    Raises:
        ConfigurationError: ``MQSWEEP_ENGINE`` asks for what is not there.
    """
    chosen = choose()
    asked = os.environ.get(VARIABLE)
    core = _load()
    return EngineInfo(
        engine=chosen.name,
        reason=f"{VARIABLE}={asked}" if asked and asked != "auto" else _native()[1],
        version=__version__,
        core=getattr(core, "__version__", None),
        build_profile=getattr(core, "build_profile", None),
        python=f"{platform.python_implementation()} {platform.python_version()}",
    )
