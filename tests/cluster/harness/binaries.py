"""Kubernetes, helm, CoreDNS and the pause program, compiled from Go modules at pinned versions.

Minutes of work from nothing, so the results are kept, each with a stamp of what it was made from, and the work is done
by one process at a time: `make test` starts it early in the background, and processes that need a program wait for it.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tests.cluster.harness.commands import HarnessError, only_one, output_of, run_logged, say
from tests.cluster.harness.layout import Layout

KUBERNETES_VERSION = "1.36.3"
HELM_VERSION = "4.3.1"
COREDNS_VERSION = "1.15.0"
KUEUE_VERSION = "0.17.0"
KUEUE_MODULE = f"sigs.k8s.io/kueue@v{KUEUE_VERSION}"
COSIGN_VERSION = "2.6.5"
CRANE_VERSION = "0.22.1"

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
# In the order in which a query passes them. All 60 of CoreDNS would bring the clients of every cloud with them.
COREDNS_PLUGINS = ("bind", "ready", "errors", "template", "kubernetes")
STAMPS = {
    **dict.fromkeys(KUBERNETES, KUBERNETES_VERSION),
    "helm": HELM_VERSION,
    "coredns": f"{COREDNS_VERSION} with {' '.join(COREDNS_PLUGINS)}",
    "pause": "1",
}
EXTRAS = {"kueue": KUEUE_VERSION, "cosign": COSIGN_VERSION, "crane": CRANE_VERSION}
"""Programs that few scenes need, compiled when one of them asks."""

GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false", "GOWORK": "off"}

PAUSE_SOURCE = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
"""


def build(layout: Layout, names: Iterable[str] = tuple(STAMPS)) -> None:
    """Compile what is missing or stale; returns at once when nothing is."""
    wanted = tuple(names)
    if not _missing(layout, wanted):
        return
    with only_one(layout.root / "build.lock", "compile the cluster's programs"):
        missing = _missing(layout, wanted)
        if not missing:
            return
        if shutil.which("go") is None:
            raise HarnessError(f"Go is needed to compile {', '.join(missing)}; https://go.dev/dl has it")
        layout.bin.mkdir(parents=True, exist_ok=True)
        kubernetes = [name for name in missing if name in KUBERNETES]
        if kubernetes:
            _timed(layout, kubernetes, _build_kubernetes)
        for name, maker in _MAKERS.items():
            if name in missing:
                _timed(layout, [name], maker)


def _missing(layout: Layout, names: Iterable[str]) -> list[str]:
    return [name for name in names if not (layout.bin / name).is_file() or _stamp(layout, name) != _wanted(name)]


def _wanted(name: str) -> str:
    return {**STAMPS, **EXTRAS}[name]


def _stamp(layout: Layout, name: str) -> str:
    try:
        return (layout.bin / f".{name}.version").read_text().strip()
    except FileNotFoundError:
        return ""


def _timed(layout: Layout, names: list[str], make: Callable[[Layout, Sequence[str]], None]) -> None:
    began = time.monotonic()
    say(f"compiling {', '.join(f'{name} {_wanted(name)}' for name in names)}")
    make(layout, names)
    for name in names:
        (layout.bin / f".{name}.version").write_text(_wanted(name) + "\n")
    say(f"compiled {', '.join(names)} in {time.monotonic() - began:.0f} s")


def _build_kubernetes(layout: Layout, names: Sequence[str]) -> None:
    folder = layout.source / "kubernetes"
    module = f"k8s.io/kubernetes v{KUBERNETES_VERSION}"
    _wrap(folder, module, staging=f"v0.{KUBERNETES_VERSION.partition('.')[2]}")
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in names]
    imports = "\n".join(f'\t_ "{package}"' for package in packages)
    _write(folder / "tools.go", f"//go:build tools\n\npackage wrapper\n\nimport (\n{imports}\n)\n")
    _, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    # Without these the kubelet reports v0.0.0, and clients cannot tell what the server is able to do.
    told = f"-X {version}.gitVersion=v{KUBERNETES_VERSION} -X {version}.gitMajor=1 -X {version}.gitMinor={minor}"
    _go_build(layout, "kubernetes", folder, f"{layout.bin}/", *packages, linker_flags=told)


def _build_by_install(package: str, layout: Layout, names: Sequence[str]) -> None:
    (name,) = names
    run_logged(
        f"compiling {name}",
        layout.logs / f"build-{name}.log",
        *("nice", "-n", "19", "go", "install", "-trimpath", "-ldflags", "-s -w", package),
        env={**GO_ENVIRONMENT, "GOBIN": str(layout.bin)},
    )


def _build_coredns(layout: Layout, _names: Sequence[str]) -> None:
    folder = layout.source / "coredns"
    _wrap(folder, f"github.com/coredns/coredns v{COREDNS_VERSION}")
    package = "github.com/coredns/coredns"
    imports = "\n".join(f'\t_ "{package}/plugin/{plugin}"' for plugin in COREDNS_PLUGINS)
    directives = ", ".join(f'"{plugin}"' for plugin in COREDNS_PLUGINS)
    _write(
        folder / "main.go",
        f'package main\n\nimport (\n\t"{package}/core/dnsserver"\n\t"{package}/coremain"\n{imports}\n)\n\n'
        f"func main() {{\n\tdnsserver.Directives = []string{{{directives}}}\n\tcoremain.Run()\n}}\n",
    )
    _go_build(layout, "coredns", folder, layout.bin / "coredns", ".")


def _build_cosign(layout: Layout, _names: Sequence[str]) -> None:
    """All of its commands, without the key services of four clouds, which its own `main` brings with it."""
    folder = layout.source / "cosign"
    package = "github.com/sigstore/cosign/v2/cmd/cosign/cli"
    _wrap(folder, f"github.com/sigstore/cosign/v2 v{COSIGN_VERSION}")
    _write(
        folder / "main.go",
        f'package main\n\nimport (\n\t"log"\n\n\t"{package}"\n)\n\n'
        "func main() {\n\tif err := cli.New().Execute(); err != nil {\n\t\tlog.Fatal(err)\n\t}\n}\n",
    )
    _go_build(layout, "cosign", folder, layout.bin / "cosign", ".")


def _build_pause(layout: Layout, _names: Sequence[str]) -> None:
    folder = layout.source / "pause"
    _write(folder / "go.mod", "module pause\n\ngo 1.21\n")
    _write(folder / "main.go", PAUSE_SOURCE)
    _go_build(layout, "pause", folder, layout.bin / "pause", ".")


_MAKERS: dict[str, Callable[[Layout, Sequence[str]], None]] = {
    "helm": partial(_build_by_install, f"helm.sh/helm/v4/cmd/helm@v{HELM_VERSION}"),
    "coredns": _build_coredns,
    "pause": _build_pause,
    "kueue": partial(_build_by_install, KUEUE_MODULE.replace("@", "/cmd/kueue@")),
    "cosign": _build_cosign,
    "crane": partial(_build_by_install, f"github.com/google/go-containerregistry/cmd/crane@v{CRANE_VERSION}"),
}


def module_folder(module: str) -> Path:
    """Where Go keeps the module's files, downloaded if they are not there."""
    asked = output_of("go", "-C", "/", "mod", "download", "-json", module, timeout_s=900)
    return Path(json.loads(asked)["Dir"])


def _wrap(folder: Path, module: str, staging: str = "") -> None:
    """A module that requires `module` and exactly what that one requires, so its programs can be built outside it.

    Kubernetes refuses `go install`: it replaces the modules of its staging folder by paths. Those are published under
    the version `staging`, and the replacements name that instead.
    """
    path, version = module.split()
    folder.mkdir(parents=True, exist_ok=True)
    # Asked from a folder of its own without a go.mod: the answer must not depend on what was left in `folder`.
    asked = output_of("go", "-C", folder.parent, "mod", "download", "-json", f"{path}@{version}", timeout_s=900)
    lines = []
    for line in Path(json.loads(asked)["GoMod"]).read_text().splitlines():
        if line.startswith("module "):
            lines += ["module wrapper", "", f"require {path} {version}"]
        elif staged := re.match(r"\s*(k8s\.io/\S+) => \./staging/", line):
            lines.append(f"\t{staged[1]} => {staged[1]} {staging}")
        elif staging and re.match(r"\s*k8s\.io/\S+ v0\.0\.0(\s|$)", line):
            lines.append(line.replace("v0.0.0", staging))
        else:
            lines.append(line)
    _write(folder / "go.mod", "\n".join(lines) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _go_build(
    layout: Layout, name: str, folder: Path, output: str | Path, *packages: str, linker_flags: str = ""
) -> None:
    run_logged(
        f"compiling {name}",
        layout.logs / f"build-{name}.log",
        *("nice", "-n", "19", "go", "build", "-trimpath", "-o", output),
        *("-ldflags", f"-s -w {linker_flags}".strip(), *packages),
        cwd=folder,
        env=GO_ENVIRONMENT,
    )
