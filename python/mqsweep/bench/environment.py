"""What a figure was measured on: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ..engine import engine_info


def environment() -> dict[str, Any]:
    """Machine, versions and date. No names of hosts, users or paths."""
    info = engine_info()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": info.python,
        "redis-py": _version("redis"),
        "hiredis": _version("hiredis"),
        "bullmq": _version("bullmq"),
        "mqsweep": info.version,
        "core": info.core,
        "build_profile": info.build_profile,
        "load_before": round(os.getloadavg()[0], 2),
    }


def described(found: dict[str, Any]) -> list[str]:
    """The environment in a few lines, for people."""
    memory = f", {found['memory'] / 2**30:.0f} GB" if found.get("memory") else ""
    core = f"core {found['core']} ({found['build_profile']} build)" if found.get("core") else "no native core"
    versions = ", ".join(
        f"{name} {found[name]}" if found.get(name) else f"no {name}" for name in ("redis-py", "hiredis", "bullmq")
    )
    load = f"load average {found['load_before']} before"
    if "load_after" in found:
        load += f", {found['load_after']} after"
    return [
        f"{found['cpu']}, {found['cores']} cores{memory}, {found['system']}; {load}",
        f"mqsweep {found['mqsweep']}, {core}; {found['python']}, {versions}; {found['date']}",
    ]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
