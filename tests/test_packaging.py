"""What is built is what was meant: contents, versions, and the same script in every artefact."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import redis

import mqsweep
from mqsweep import script

TREE = Path(__file__).resolve().parent.parent
SCRIPT = TREE / "lua" / script.SCRIPT_NAME
KINDS = ("native", "pure", "sdist")

PROBE = """
import hashlib, json, mqsweep
from mqsweep import script
from pathlib import Path
print(json.dumps({
    "engine": mqsweep.engine_info().to_dict(),
    "digest": hashlib.sha256(script.script_source().encode()).hexdigest(),
    "where": str(Path(mqsweep.__file__).parent),
}))
"""

pytestmark = pytest.mark.skipif(not (TREE / "Cargo.toml").is_file(), reason="no source tree to build from")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command in an environment of its own; what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MQSWEEP_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would commit, so that nothing that lies about gets into an artefact."""
    copy = tmp_path_factory.mktemp("tree")
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=TREE)
    for name in listed.splitlines():
        if (TREE / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def artefacts(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each artefact, built once. The native wheel is missing where there is no cargo."""
    out = tmp_path_factory.mktemp("dist")
    wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    empty = tmp_path_factory.mktemp("bin")  # a PATH on which there is neither cargo nor maturin
    run(*wheel, "-w", out / "pure", "-C", "native=0", ".", cwd=tree, PATH=str(empty))
    build = "import sys; sys.path.insert(0, 'build_backend'); import backend; backend.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, str(out / "sdist"), cwd=tree, PATH=str(empty))
    if shutil.which("cargo"):
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        target = os.environ.get("CARGO_TARGET_DIR", str(TREE / "target"))
        run(*wheel, "-w", out / "native", ".", cwd=tree, PATH=path, CARGO_TARGET_DIR=target)
    return {kind: next(folder.iterdir()) for kind in KINDS if (folder := out / kind).is_dir()}


def artefact(artefacts: dict[str, Path], kind: str) -> Path:
    """One artefact; skips, or fails under MQSWEEP_REQUIRE_RUST=1, where it could not be built."""
    if kind not in artefacts and os.environ.get("MQSWEEP_REQUIRE_RUST") == "1":
        pytest.fail("MQSWEEP_REQUIRE_RUST=1, but there is no cargo to build the native wheel")
    if kind not in artefacts:
        pytest.skip("no cargo: the native wheel cannot be built here")
    return artefacts[kind]


def contents(path: Path) -> set[str]:
    """The files in an artefact."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return set(wheel.namelist())
    with tarfile.open(path) as sdist:
        return {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}


def modules() -> set[str]:
    """The package's own files, as the tree has them."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "python/mqsweep", cwd=TREE)
    return {name.removeprefix("python/") for name in listed.splitlines() if (TREE / name).is_file()}


@pytest.mark.parametrize("kind", ["native", "pure"])
def test_wheel_holds_the_package_and_nothing_else(artefacts: dict[str, Path], kind: str) -> None:
    files = {name for name in contents(artefact(artefacts, kind)) if ".dist-info/" not in name}
    core = {name for name in files if name.startswith("mqsweep/_core.") and name.endswith((".so", ".pyd"))}
    assert len(core) == (1 if kind == "native" else 0)
    assert files - core == modules() | {f"mqsweep/lua/{script.SCRIPT_NAME}"}


def test_wheels_are_tagged_for_what_they_hold(artefacts: dict[str, Path]) -> None:
    assert artefact(artefacts, "pure").name.endswith("-py3-none-any.whl")
    assert "-cp311-abi3-" in artefact(artefacts, "native").name


def test_sdist_can_build_both(artefacts: dict[str, Path]) -> None:
    files = contents(artefact(artefacts, "sdist"))
    assert {f"python/{name}" for name in modules()} <= files
    assert {"Cargo.toml", "Cargo.lock", "rust/build.rs", "rust/src/lib.rs", f"lua/{script.SCRIPT_NAME}"} <= files
    assert {"pyproject.toml", "build_backend/backend.py", "README.md", "LICENSE"} <= files
    assert not [name for name in files if name.startswith(("tests/", "target/", ".venv/")) or name.endswith(".so")]


@pytest.mark.parametrize("kind", KINDS)
def test_installed_artefact_works_and_carries_the_same_script(
    artefacts: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    found = artefact(artefacts, kind)
    site = install(found, tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    told: dict[str, Any] = json.loads(run(python, "-c", PROBE, cwd=tmp_path))
    assert told["digest"] == hashlib.sha256(SCRIPT.read_bytes()).hexdigest()
    assert Path(told["where"]) == site / "mqsweep"
    assert told["engine"]["version"] == mqsweep.__version__
    if kind == "native":
        assert (told["engine"]["engine"], told["engine"]["build_profile"]) == ("rust", "release")
    else:  # the sdist was built pure, for speed; native is what the wheel shows
        assert (told["engine"]["engine"], told["engine"]["core"]) == ("python", None)


def test_native_wheel_serves_every_python_found(artefacts: dict[str, Path], tmp_path: Path) -> None:
    """One wheel, by the stable ABI."""
    site = install(artefact(artefacts, "native"), tmp_path)
    served = []
    for minor in range(11, 20):
        python = shutil.which(f"python3.{minor}") or ""
        version = (python, "-c", "import sys; print(sys.version_info[:2])")
        if not python or subprocess.run(version, capture_output=True, check=False, cwd=tmp_path).returncode:
            continue
        told = json.loads(run(python, "-c", PROBE, cwd=tmp_path, PYTHONPATH=str(site)))
        assert told["engine"]["engine"] == "rust", minor
        served.append(minor)
    assert served


def install(found: Path, where: Path) -> Path:
    """Install an artefact in a fresh environment that sees redis-py, but not the tree. Returns its site-packages."""
    venv.create(where / "venv", with_pip=False)
    site = next((where / "venv" / "lib").glob("python*/site-packages"))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", site)
    pure = () if found.suffix == ".whl" else ("-C", "native=0")
    run(*pip, *pure, found, cwd=where)
    (site / "redis").symlink_to(Path(redis.__file__).parent)
    return site


def test_versions_agree() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["version"]
    crate = tomllib.loads((TREE / "Cargo.toml").read_text())["package"]["version"]
    assert project == crate == mqsweep.__version__


def test_development_install_reads_the_trees_script() -> None:
    """Not a copy that may be stale."""
    if Path(mqsweep.__file__).resolve().is_relative_to(TREE):
        assert script.script_source() == SCRIPT.read_text()
    else:
        assert hashlib.sha256(script.script_source().encode()).digest() == hashlib.sha256(SCRIPT.read_bytes()).digest()


def test_forced_native_build_fails_loudly_without_cargo(tree: Path, tmp_path: Path) -> None:
    wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    with pytest.raises(AssertionError, match=r"(?i)cargo|rust|maturin"):
        run(*wheel, "-w", tmp_path, "-C", "native=1", ".", cwd=tree, PATH=str(Path(sys.executable).parent))
    assert not list(tmp_path.glob("*.whl"))
