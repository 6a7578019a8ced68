"""Container images without a daemon or a registry: made by buildah in a store of our own, handed to containerd.

The base image is made of Debian packages under the name of the official one, so that an ordinary Dockerfile works. The
machine's own settings for pip and its certificates are mounted while a RUN step runs and never become part of an image.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.cluster.harness import packages
from tests.cluster.harness.commands import HarnessError, only_one, output_of, run_logged, say
from tests.cluster.harness.components import CONTAINERD, REPOSITORY, ctr
from tests.cluster.harness.layout import PAUSE_IMAGE, Layout

BASE_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
OPERATOR_IMAGE = "localhost/gnnserve/operator:test"
WORKER_IMAGE = "localhost/gnnserve/worker:test"
# The Dockerfile's targets that tests run.
THIN = "worker-thin"
TAGS = {"operator": OPERATOR_IMAGE, THIN: WORKER_IMAGE}
PACKAGES_PATH = "/packages"
"""The folder in which the thin image finds its packages, while it is built as in pods."""
KERNELS_PATH = "/kernels"
"""The folder in which an image's build finds kernels that were compiled already, one for each version of them."""
DEBIAN_PACKAGES = ("python3", "python3-pip", "python3-venv", "ca-certificates")
_UNITS = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
KERNELS = Path.home() / ".cache" / "gnnserve" / "kernels"
"""Folder in which `make kernels` keeps what it compiled; the harness runs without gnnserve's packages too."""


def build_base(layout: Layout, architecture: str | None = None) -> None:
    """What `FROM python:3.11-slim-bookworm` resolves to: Debian's own Python, with the official image's habits.
    `architecture`: as Debian calls it; None: this machine's."""
    of_another = () if architecture is None else ("--arch", architecture)
    packages.install(layout, packages.IMAGE_PACKAGES)
    with only_one(layout.root / "images.lock", "make images"):
        if _image_id(layout, BASE_IMAGE):
            return
        began = time.monotonic()
        root = layout.images / "root"
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        run_logged(
            "debootstrap",
            layout.logs / "debootstrap.log",
            *("debootstrap", *of_another, "--variant=minbase", f"--include={','.join(DEBIAN_PACKAGES)}"),
            *("bookworm", str(root)),
            env={"PATH": packages.SEARCH_PATH},
        )
        _make_like_the_official_image(root)
        container = _buildah(layout, "from", "scratch").strip()
        _buildah(layout, "add", "--quiet", container, str(root), "/")
        _buildah(
            layout,
            *("config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"),
            *("--env", "LANG=C.UTF-8", "--cmd", "python3", *of_another, container),
        )
        _buildah(layout, "commit", "--quiet", "--rm", container, BASE_IMAGE)
        shutil.rmtree(root)
        say(f"made {BASE_IMAGE} in {time.monotonic() - began:.0f} s")


def build_all(layout: Layout) -> None:
    for target, tag in TAGS.items():
        build(layout, tag, target)


def build(layout: Layout, tag: str, target: str, architecture: str | None = None) -> str:
    """Build one target of the repository's Dockerfile; unchanged steps come from the store, and the image itself if
    nothing has changed that it is made of. Returns the image's id. `architecture`: another than this machine's, whose
    programs run here by now (`emulation.py`); such images have a layout of their own, since all bases have one name."""
    arguments, volumes = _packages_of_this_environment() if target == THIN else ((), ())
    wanted = _digest_of_inputs(target, arguments)
    built = layout.images / f"{hashlib.sha256(tag.encode()).hexdigest()[:16]}.built"
    if built.exists() and (image_id := _image_id(layout, tag)) and built.read_text() == f"{wanted} {image_id}":
        return image_id
    build_base(layout, architecture)
    began = time.monotonic()
    with only_one(layout.root / "images.lock", "make images"):
        settings = layout.images / "pip.conf"
        settings.write_text(_pip_settings())
        run_logged(
            f"building {tag}",
            layout.logs / f"image-{target}.log",
            *(*_store(layout), "build", "--layers", "--isolation", "chroot", "--network", "host"),
            *("--pull-never", "--volume", f"{settings}:/etc/pip.conf:ro"),
            *("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"),
            *(() if architecture is None else ("--arch", architecture)),
            *(*_kernels(target), *volumes, *arguments, "--target", target, "--tag", tag, str(REPOSITORY)),
        )
        image_id = _image_id(layout, tag)
        built.write_text(f"{wanted} {image_id}")
    say(f"built {tag} in {time.monotonic() - began:.1f} s")
    return image_id


def _digest_of_inputs(target: str, arguments: Sequence[str]) -> str:
    """Digest of all that an image is made of: target, arguments, Dockerfile, and the files that .dockerignore lets
    through."""
    ignore = (REPOSITORY / ".dockerignore").read_text().splitlines()
    paths = [REPOSITORY / name for name in ("Dockerfile", ".dockerignore")]
    for name in (line[1:] for line in ignore if line.startswith("!")):
        found = REPOSITORY / name
        paths += sorted(path for path in found.rglob("*") if path.is_file()) if found.is_dir() else [found]
    digest = hashlib.sha256(json.dumps([target, *arguments]).encode())
    for path in paths:
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(REPOSITORY)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _packages_of_this_environment() -> tuple[Sequence[str], Sequence[str]]:
    """Arguments and volumes by which kernels are compiled ahead with these packages. Empty where they are not installed
    yet: pods then compile."""
    try:
        versions = [f"{name}-{importlib.metadata.version(name)}" for name in ("gnnserve", "numba", "llvmlite")]
    except importlib.metadata.PackageNotFoundError:
        return (), ()
    packages = ("--volume", f"{sysconfig.get_path('purelib')}:{PACKAGES_PATH}:ro")
    return ("--build-arg", f"PACKAGES={','.join(versions)}"), packages


def _kernels(target: str) -> tuple[str, ...]:
    """A volume of the kernels that this user has compiled, of any version: a build takes those that are its own."""
    if target == "operator" or not KERNELS.is_dir():
        return ()
    return ("--volume", f"{KERNELS}:{KERNELS_PATH}:ro")


def load(layout: Layout, tag: str) -> None:
    """Hand an image to the node, unless the node has this very one."""
    image_id = _image_id(layout, tag)
    if not image_id:
        raise HarnessError(f"there is no image {tag}; build it first")
    known = layout.state / "imported" / hashlib.sha256(tag.encode()).hexdigest()[:16]
    if known.exists() and known.read_text() == image_id and tag in _in_node(layout):
        return
    began = time.monotonic()
    said = _import(layout, tag)
    if said:
        # containerd may collect layers of the image that had this name while it unpacks those of the new one.
        said = _import(layout, tag)
    if said:
        raise HarnessError(f"importing {tag} into the node failed:\n{said}")
    known.parent.mkdir(parents=True, exist_ok=True)
    known.write_text(image_id)
    say(f"imported {tag} in {time.monotonic() - began:.1f} s")


def _import(layout: Layout, tag: str) -> str:
    """What the programs said when they failed; empty: they did not."""
    pushed = subprocess.Popen(
        [*_store(layout), "push", "--quiet", tag, f"docker-archive:/dev/stdout:{tag}"],
        stdout=subprocess.PIPE,
    )
    with pushed:
        imported = subprocess.run(
            ctr(layout, "images", "import", "-"), stdin=pushed.stdout, capture_output=True, text=True, check=False
        )
    failed = pushed.returncode or imported.returncode
    return f"{imported.stderr}{imported.stdout}" or "nothing was said" if failed else ""


def push(layout: Layout, tag: str, name: str) -> None:
    """Push an image to a registry of this machine, under that name."""
    _buildah(layout, "push", "--quiet", "--tls-verify=false", tag, f"docker://{name}")


def size(layout: Layout, tag: str) -> str:
    """Unpacked, as the store counts it: `151 MB`."""
    return str(json.loads(_buildah(layout, "images", "--json", tag))[0]["size"])


def size_bytes(layout: Layout, tag: str) -> float:
    number, unit = size(layout, tag).split()
    return float(number) * _UNITS[unit]


def sbom(layout: Layout, tag: str) -> dict[str, Any]:
    """The image's bill of materials, as `make sboms` asks for it."""
    told = run(layout, tag, "python", "-", tag, stdin=(REPOSITORY / "tools" / "sbom.py").read_text())
    return dict(json.loads(told))


def run(layout: Layout, tag: str, *words: str, stdin: str | None = None) -> str:
    """Output of a program in a container of the image."""
    container = _buildah(layout, "from", "--pull-never", tag).strip()
    try:
        return output_of(*_store(layout), "run", "--isolation", "chroot", container, "--", *words, stdin=stdin)
    finally:
        _buildah(layout, "rm", container)


def architecture_of(layout: Layout, tag: str) -> str:
    """The kind of processor that the image says it is for."""
    return str(json.loads(_buildah(layout, "inspect", "--type", "image", tag))["OCIv1"]["architecture"])


def import_pause(layout: Layout) -> None:
    """The program that holds a pod's namespaces, as an archive made by hand: one layer, one config, one manifest."""
    if PAUSE_IMAGE in _in_node(layout):
        return
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        member = archive.gettarinfo(layout.bin / "pause", "pause")
        member.uid = member.gid = 0
        with (layout.bin / "pause").open("rb") as program:
            archive.addfile(member, program)
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]).encode()
    file = layout.state / "pause.tar"
    with tarfile.open(file, mode="w") as archive:
        for name, content in ((config_name, config), ("manifest.json", manifest), ("layer.tar", layer.getvalue())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    output_of(*ctr(layout, "images", "import", str(file)))


def _architecture() -> str:
    return output_of("dpkg", "--print-architecture").strip()


def _make_like_the_official_image(root: Path) -> None:
    for name, program in (("python", "python3"), ("pip", "pip3")):
        (root / "usr/local/bin" / name).symlink_to(f"../../bin/{program}")
    # Debian's pip refuses to install as root beside apt's packages; the official image's does not.
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("")
    for folder in ("var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)


def _pip_settings() -> str:
    """This machine's index and certificates, as far as pip knows them, environment included."""
    lines = {"cert": str(CERTIFICATES)}
    try:
        listed = output_of(sys.executable, "-m", "pip", "config", "list")
    except HarnessError:  # an environment without pip
        listed = output_of("pip", "config", "list") if shutil.which("pip") else ""
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in {"index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout"}:
            lines[option] = value.strip("'\"")
    return "[global]\n" + "".join(f"{option} = {value}\n" for option, value in lines.items())


def _store(layout: Layout) -> tuple[str, ...]:
    # Apart from the store of the machine's user, who may have another image under the base's name.
    return ("buildah", "--root", f"{layout.images}/store", "--runroot", f"{layout.images}/run")


def _buildah(layout: Layout, *words: str) -> str:
    return output_of(*_store(layout), *words, timeout_s=1800)


def _image_id(layout: Layout, tag: str) -> str:
    try:
        return _buildah(layout, "images", "--quiet", "--no-trunc", tag).split("\n")[0].strip()
    except HarnessError:
        return ""


def _in_node(layout: Layout) -> list[str]:
    CONTAINERD.wait(layout, 30)
    return output_of(*ctr(layout, "images", "list", "--quiet")).split()
