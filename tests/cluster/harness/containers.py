"""The first process of a pod's container, found among the machine's own: also while nothing of Kubernetes answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.processes import identity


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    pid: int
    identity: str
    """The value of `processes.identity`, since a pid alone is reused."""
    pod: str
    """Its name."""
    pod_ip: str


def running(program: str) -> list[ContainerProcess]:
    """Whose command line has that word. A shim's child that has not become the program yet is not found."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_text().split("\0")
            if program in words and _is_first_of_its_namespace(folder):
                known = identity(int(folder.name))
                found.append(ContainerProcess(int(folder.name), known, *_pod(folder)))
        except (OSError, LookupError):
            continue  # it has ended meanwhile
    return sorted(found, key=lambda process: process.pod)


def _is_first_of_its_namespace(folder: Path) -> bool:
    line = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid:"))
    return len(line.split()) > 2 and line.split()[-1] == "1"


def _pod(folder: Path) -> tuple[str, str]:
    """The kubelet calls a pod's host by the pod's name, and writes its address into its /etc/hosts."""
    variables = dict(entry.split("=", 1) for entry in (folder / "environ").read_text().split("\0") if "=" in entry)
    name = variables["HOSTNAME"]
    hosts = (folder / "root/etc/hosts").read_text().splitlines()
    return name, next((line.split()[0] for line in hosts if name in line.split()[1:]), "")
