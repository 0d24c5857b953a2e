"""Builds mqsweep: the native wheel with maturin, the pure wheel and the sdist with hatchling (PEP 517, PEP 660).

``-C native=1`` (the default) needs a Rust toolchain and fails loudly without one; ``-C native=0`` needs none;
``-C native=auto`` is native where cargo is found. The environment variable ``MQSWEEP_NATIVE`` says the same for
front ends that pass no settings on.
"""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any

Settings = dict[str, Any] | None

_NEEDS = {True: ["maturin>=1.12,<2"], False: ["hatchling>=1.27,<2"]}


def _native(settings: Settings) -> bool:
    asked = str((settings or {}).get("native", os.environ.get("MQSWEEP_NATIVE", "1")))
    if asked not in ("0", "1", "auto"):
        raise SystemExit(f"native={asked!r}: must be 1, 0 or auto")
    return asked == "1" or (asked == "auto" and shutil.which("cargo") is not None)


def _rest(settings: Settings) -> Settings:
    """What is not ours."""
    return {name: value for name, value in (settings or {}).items() if name != "native"} or None


def _backend(settings: Settings) -> Any:
    return importlib.import_module("maturin" if _native(settings) else "hatchling.build")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What building a wheel needs. Not asked of maturin: it would fetch a Rust toolchain where there is none."""
    return _NEEDS[_native(config_settings)]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What a development install needs."""
    return _NEEDS[_native(config_settings)]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """What building the sdist needs."""
    return _NEEDS[False]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build a wheel. Returns its file name."""
    backend = _backend(config_settings)
    return str(backend.build_wheel(wheel_directory, _rest(config_settings), metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a development install. Returns its file name."""
    backend = _backend(config_settings)
    return str(backend.build_editable(wheel_directory, _rest(config_settings), metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the sdist. Returns its file name."""
    return str(importlib.import_module("hatchling.build").build_sdist(sdist_directory, _rest(config_settings)))
