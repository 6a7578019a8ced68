"""`make gpu-kit`: wheels that a machine with a GPU lacks, and their installation there, without a network.

Such a machine mostly has a Python of its own with torch, Triton, numpy and numba, and reaches no package index. The kit
is a folder with wheels for that Python and a list of them with their digests. Versions are those of `tools/oldest.txt`,
which CI runs the same tests with. What the machine has in a version that will do is left as it is; the rest is
installed into a folder beside the kit, which nothing but PYTHONPATH knows of.

The second half runs on the machine, by any Python from 3.11: it imports nothing but the standard library, and
`packaging` from its wheel in the kit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from email.parser import HeaderParser
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "tools" / "oldest.txt"
LIST = "kit.json"
_MARKER = ".installed"
"""File among installed packages that says which wheels they are of."""
EXPECTED = ("torch", "triton", "numpy", "numba")
"""What a machine with a GPU is taken to have, with all that these need."""
LARGEST_BYTES = 60 * 2**20
"""Most bytes of a whole kit: it is carried by hand, or beside a checkout through something narrow."""
_LIBC_MINORS = (17, 24, 27, 28, 31, 34, 35, 39)
"""Minor versions of glibc 2 whose manylinux wheels are taken; pip takes no wheel of an older one by itself."""
NEEDED = (
    "fastapi", "httptools", "httpx", "hypothesis", "msgspec", "numba", "numpy", "orjson", "prometheus-client",
    "pydantic", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml", "rich", "safetensors", "scipy",
    "swagger-ui-bundle", "threadpoolctl", "torch", "torch-geometric", "triton", "uvloop",
)  # fmt: skip
"""What tests/gpu and benchmarks/gpu import, by themselves or through the worker; pyproject.toml has the versions."""


class KitError(Exception):
    """The kit cannot be made or installed; the words say what to do."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A version that `tools/oldest.txt` has."""

    name: str
    version: str
    parents: frozenset[str]
    """Packages that need it."""


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    version: str
    file: str
    sha256: str
    requires: tuple[str, ...]
    """Requirements as in its metadata, those of extras left out."""


@dataclass(frozen=True, slots=True)
class Kit:
    python: str
    """`3.12`: wheels are of one minor version."""
    requires: tuple[str, ...]
    """What the tests and benchmarks need, with the oldest versions that will do."""
    wheels: tuple[Wheel, ...]


# --- what goes into a kit


def normalized(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> list[Pin]:
    """Pins of a file that `uv pip compile` wrote: each with comments below it that say for what it is there."""
    pins: list[tuple[str, str, set[str]]] = []
    for line in text.splitlines():
        if found := re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+).*", line):
            pins.append((normalized(found[1]), found[2], set()))
        elif pins and (parent := re.fullmatch(r"    #(?: via)? +(?!via$)([A-Za-z0-9._-]+)", line)):
            pins[-1][2].add(normalized(parent[1]))
    return [Pin(name, version, frozenset(parents)) for name, version, parents in pins]


def lacking(pins: Sequence[Pin], expected: Iterable[str]) -> list[Pin]:
    """Pins that a machine lacks which has the expected packages, and with them what those need.

    Raises KitError for an expected package that is none of the pins."""
    present = {normalized(name) for name in expected}
    if unknown := present - {pin.name for pin in pins}:
        raise KitError(f"HAS: {', '.join(sorted(unknown))}: the tests need no such package; they need "
                       f"{', '.join(pin.name for pin in pins)}")  # fmt: skip
    grows = True
    while grows:
        brought = {pin.name for pin in pins if pin.parents & present}
        grows = not brought <= present
        present |= brought
    return [pin for pin in pins if pin.name not in present]


def requirements(pyproject: Mapping[str, Any], names: Iterable[str] = NEEDED) -> tuple[str, ...]:
    """Requirements of these names, wherever pyproject.toml has them. Raises KeyError for a name that it has not."""
    project = pyproject["project"]
    groups = (
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *pyproject["dependency-groups"].values(),
    )
    declared = {
        normalized(re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]): text for group in groups for text in group
    }
    return tuple(declared[name] for name in names)


def own_requirements() -> tuple[str, ...]:
    return requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()))


def pin(uv: str) -> None:
    """Write the oldest versions that the requirements allow, and of what these need in turn the newest."""
    command = [
        uv, "pip", "compile", "-", "--quiet", "--resolution=lowest-direct", "--python-version=3.12",
        "--python-platform=x86_64-manylinux_2_28", "--custom-compile-command=make oldest-versions",
        f"--output-file={PINS}",
    ]  # fmt: skip
    if subprocess.run(command, input="\n".join(own_requirements()), text=True, check=False).returncode:
        raise KitError("versions could not be chosen; uv says why above")


def make(python: str, also_expected: Sequence[str], folder: Path) -> Kit:
    """Download the wheels into the folder, write their list, and remove wheels of an earlier kit."""
    requires = own_requirements()
    wanted = lacking(read_pins(PINS.read_text()), (*EXPECTED, *also_expected))
    wheels_folder = folder / "wheels"
    wheels_folder.mkdir(parents=True, exist_ok=True)
    _download(wanted, python, wheels_folder)
    names = {(pin.name, pin.version) for pin in wanted}
    wheels: list[Wheel] = []
    for path in sorted(wheels_folder.iterdir()):
        wheel = describe_wheel(path)
        if (wheel.name, wheel.version) in names and path.name not in {other.file for other in wheels}:
            wheels.append(wheel)
        else:
            path.unlink()
    kit = Kit(python, requires, tuple(wheels))
    (folder / LIST).write_text(json.dumps(asdict(kit), indent=2) + "\n")
    if (size_bytes := size_of(kit, folder)) > LARGEST_BYTES:
        raise KitError(
            f"{folder} has {size_bytes / 2**20:.0f} MiB, and at most {LARGEST_BYTES / 2**20:.0f} are carried: "
            "name what the machine has already, as in HAS=scipy,scikit-learn"
        )
    return kit


def size_of(kit: Kit, folder: Path) -> int:
    return sum((folder / "wheels" / wheel.file).stat().st_size for wheel in kit.wheels)


def _download(pins: Sequence[Pin], python: str, folder: Path) -> None:
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in reversed(_LIBC_MINORS)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp",
        f"--python-version={python}", *platforms, "--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64",
        f"--dest={folder}", *(f"{pin.name}=={pin.version}" for pin in pins),
    ]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        raise KitError(f"wheels for Python {python} on x86-64 Linux could not be had; pip says why above")


def describe_wheel(path: Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        metadata = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        told = HeaderParser().parsestr(archive.read(metadata).decode())
    requires = tuple(text for text in told.get_all("Requires-Dist", []) if not re.search(r"\bextra\b", text))
    return Wheel(normalized(told["Name"]), told["Version"], path.name, digest(path), requires)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- on the machine


def read_kit(folder: Path) -> Kit:
    """The list of a kit whose files are all there and unaltered. Raises KitError otherwise."""
    try:
        told = json.loads((folder / LIST).read_text())
        wheels = tuple(Wheel(**{**wheel, "requires": tuple(wheel["requires"])}) for wheel in told["wheels"])
        kit = Kit(told["python"], tuple(told["requires"]), wheels)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KitError(
            f"{folder}: no kit, whose list would be {folder / LIST}: {error}; `make gpu-kit` makes one"
        ) from None
    for wheel in kit.wheels:
        path = folder / "wheels" / wheel.file
        if not path.is_file():
            raise KitError(f"{path} is missing: copy the kit again, as a whole")
        if (found := digest(path)) != wheel.sha256:
            raise KitError(
                f"{path} is altered: its SHA-256 is {found}, and {LIST} has {wheel.sha256}; copy the kit again"
            )
    return kit


def choose(kit: Kit, installed: Callable[[str], str | None]) -> list[Wheel]:
    """Wheels that this Python needs, in their order: those of packages that it lacks, or has in a version that will not
    do. `packaging` has to be importable.

    installed: the version by a package's name; None: it lacks it.
    Raises KitError for what it lacks and the kit has not."""
    from packaging.requirements import Requirement  # noqa: PLC0415  (found only once the kit's wheel is on the path)

    by_name = {wheel.name: wheel for wheel in kit.wheels}
    chosen: dict[str, Wheel] = {}
    missing: list[str] = []
    left = [(text, "the tests") for text in kit.requires]
    while left:
        text, wanted_by = left.pop(0)
        requirement = Requirement(text)
        name = normalized(requirement.name)
        if name in chosen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        version = installed(name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        if name in by_name:
            chosen[name] = by_name[name]
            left.extend((other, name) for other in by_name[name].requires)
        else:
            has = "this Python has none" if version is None else f"this Python has {version}"
            missing.append(f"{requirement.name}{requirement.specifier} for {wanted_by}: {has}")
    if missing:
        raise KitError(
            f"{sys.executable} lacks what the kit does not bring: {'; '.join(missing)}. Use a Python that has it "
            "(PYTHON=), or make a kit on a machine with a network: `make gpu-kit`"
        )
    return [wheel for wheel in kit.wheels if wheel.name in chosen]


def install(folder: Path, site: Path) -> list[Wheel]:
    """Verify the kit and install what this Python lacks into `site`, unless it is there."""
    kit = read_kit(folder)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own != kit.python:
        raise KitError(
            f"{folder} is for Python {kit.python}, and {sys.executable} is {own}: `make gpu-kit PYTHON_VERSION={own}`"
        )
    # Without the kit's own, which is on the path from here on.
    installed = partial(_version_in, tuple(sys.path))
    packaging = next((wheel.file for wheel in kit.wheels if wheel.name == "packaging"), None)
    if packaging is not None:
        sys.path.append(str(folder / "wheels" / packaging))
    wheels = choose(kit, installed)
    wanted = "\n".join(wheel.sha256 for wheel in wheels)
    marker = site / _MARKER
    if not marker.is_file() or marker.read_text() != wanted:
        _install_wheels([folder / "wheels" / wheel.file for wheel in wheels], site)
        _declare_checkout(site)
        marker.write_text(wanted)
    return wheels


def _declare_checkout(site: Path) -> None:
    """Write the metadata that installing this checkout would: a worker tells its own version. Its code stays here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = site / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(text)


def _version_in(paths: Sequence[str], name: str) -> str | None:
    return next((found.version for found in importlib.metadata.distributions(name=name, path=list(paths))), None)


def _install_wheels(paths: Sequence[Path], site: Path) -> None:
    if site.exists() and not (site / _MARKER).exists() and any(site.iterdir()):
        raise KitError(f"{site} holds something else than a kit's packages: move it away")
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    # Before anything else: where this is broken off, the next attempt may begin anew.
    (site / _MARKER).touch()
    if not paths:
        return
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir",
        "--disable-pip-version-check", "--root-user-action=ignore", "--upgrade", "--target", str(site),
        *map(str, paths),
    ]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        raise KitError(f"{sys.executable} -m pip could not install into {site}; it says why above")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_kit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="download the wheels; needs the network")
    making.add_argument("--python", default="3.12", help="minor version of the machine's Python (default: %(default)s)")
    making.add_argument("--has", default="", metavar="NAME,…", help=f"what it has beside {', '.join(EXPECTED)}")
    making.add_argument("--out", type=Path, default=ROOT / "gpu-kit", help="folder (default: gpu-kit)")
    pinning = commands.add_parser("pin", help="choose the versions anew, after pyproject.toml has changed")
    pinning.add_argument("--uv", default="uv")
    installing = commands.add_parser("install", help="install what this Python lacks; needs no network")
    installing.add_argument("kit", type=Path)
    installing.add_argument("--into", type=Path, required=True, help="folder for PYTHONPATH")
    options = parser.parse_args(arguments)
    try:
        if options.command == "pin":
            pin(options.uv)
        elif options.command == "make":
            kit = make(options.python, [name for name in options.has.split(",") if name], options.out)
            print(f"{options.out}: {len(kit.wheels)} wheels for Python {kit.python}, "
                  f"{size_of(kit, options.out) / 2**20:.1f} MiB")  # fmt: skip
        else:
            installed = install(options.kit, options.into)
            print(f"{options.into}: {len(installed)} packages of the kit, which {sys.executable} lacks: "
                  f"{', '.join(f'{wheel.name} {wheel.version}' for wheel in installed) or 'none'}")  # fmt: skip
    except KitError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
