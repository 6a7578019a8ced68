"""Debian packages that the node and its images need, installed when missing, or unpacked to take a program from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.harness.commands import HarnessError, only_one, run_logged, say
from tests.cluster.harness.layout import Layout

CNI_PLUGINS = Path("/usr/lib/cni")

# What is looked for -> the package that brings it.
NODE_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
}
IMAGE_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}

APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300")
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}

# Also found by a user whose PATH lacks the administrator's folders.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def install(layout: Layout, wanted: Mapping[str, str]) -> None:
    if not _missing(wanted):
        return
    with only_one(layout.root / "packages.lock", "install Debian packages"):
        missing = _missing(wanted)
        if missing:
            _install(layout, missing)


def download(layout: Layout, package: str) -> Path:
    """The archive of one package, in a folder of its own; the machine gets nothing installed."""
    if shutil.which("apt-get") is None:
        raise HarnessError(f"{package} is not on PATH, and without apt-get it cannot be had; install it and try again")
    folder = layout.root / "debian" / package
    log = layout.logs / f"apt-download-{package}.log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        run_logged(f"downloading {package}", log, "apt-get", "download", package, cwd=folder)
    except HarnessError:
        if os.geteuid() != 0:
            raise
        # A fresh machine has no lists of packages.
        run_logged("apt-get update", layout.logs / "apt-update.log", *APT, "update", env=QUIET)
        run_logged(f"downloading {package}", log, "apt-get", "download", package, cwd=folder)
    (archive,) = folder.glob("*.deb")
    return archive


def _missing(wanted: Mapping[str, str]) -> list[str]:
    return sorted(package for what, package in wanted.items() if shutil.which(what, path=SEARCH_PATH) is None)


def _install(layout: Layout, missing: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise HarnessError(f"missing here: {', '.join(missing)} (names of Debian packages); install them and try again")
    say(f"installing the Debian packages {', '.join(missing)}")
    run_logged("apt-get update", layout.logs / "apt-update.log", *APT, "update", env=QUIET)
    run_logged(
        f"installing {', '.join(missing)}",
        layout.logs / "apt-install.log",
        *(*APT, "install", "--yes", "--no-install-recommends", *missing),
        env=QUIET,
    )
