"""The operator of a fleet as a process of its own, and its requests, counted by the API server's audit log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.commands import HarnessError, tail

from gnnserve_operator.kinds import GNNSERVICE

SYSTEM_NAMESPACE, RELEASE = "gnnserve-system", "gnnserve"
USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{RELEASE}"
LONGEST_LINE = 65_536
WRITES = {"create", "patch", "update", "delete"}


@dataclass(frozen=True, slots=True)
class _Call:
    verb: str
    resource: str
    name: str
    """Name of the object; empty: a list."""
    status: Mapping[str, Any] | None
    """The status that was written; None: another call."""


class Audit:
    """Requests of the operator, as the API server logs them once it has answered them; a watch when it has begun."""

    def __init__(self, folder: Path) -> None:
        self._log, self._policy = folder / "audit.log", folder / "audit-policy.json"
        statuses = {"group": GNNSERVICE.group, "resources": [f"{GNNSERVICE.plural}/status"]}
        rules = [
            # With what was written, so that a write that was not wanted can be told.
            {"level": "Request", "users": [USER], "verbs": ["patch"], "resources": [statuses]},
            {"level": "Metadata", "users": [USER]},
            {"level": "None"},
        ]
        self._policy.write_text(
            json.dumps(
                {
                    "apiVersion": "audit.k8s.io/v1",
                    "kind": "Policy",
                    "omitStages": ["RequestReceived", "Panic"],
                    "rules": rules,
                }
            )
        )

    def flags(self) -> tuple[str, ...]:
        # Blocking: what has been answered is in the file.
        return (
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-mode=blocking-strict",
        )

    def mark(self) -> int:
        """The end of the last whole line."""
        with self._log.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LONGEST_LINE, 0))
            began = log.tell()
            return began + log.read().rfind(b"\n") + 1

    def since(self, mark: int) -> Counter[tuple[str, str]]:
        """Requests by verb and resource."""
        return Counter((call.verb, call.resource) for call in self._calls(mark))

    def reads_by_name(self, mark: int) -> Counter[str]:
        """Reads of single objects, by the object's name."""
        return Counter(call.name for call in self._calls(mark) if call.verb == "get" and call.name)

    def statuses(self, mark: int) -> list[tuple[str, Mapping[str, Any]]]:
        """Name of a GNNService and the status that was written, of each write in turn."""
        return [(call.name, call.status) for call in self._calls(mark) if call.status is not None]

    def _calls(self, mark: int) -> Iterator[_Call]:
        with self._log.open("rb") as log:
            log.seek(mark)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # it is being written
                event = json.loads(line)
                if (event["verb"] == "watch") != (event["stage"] == "ResponseStarted"):
                    continue  # the end of a watch
                about = event.get("objectRef") or {}
                resource = about.get("resource", event["requestURI"].partition("?")[0])
                status = (event.get("requestObject") or {}).get("status")
                yield _Call(event["verb"], resource, about.get("name", ""), status)


def writes_in(counted: Mapping[tuple[str, str], int]) -> int:
    """A Lease is renewed all the time, and says nothing about services."""
    return sum(n for (verb, resource), n in counted.items() if verb in WRITES and resource != "leases")


@dataclass(slots=True)
class Operator:
    cluster: Cluster
    folder: Path
    settings: dict[str, Any]
    workers_url: str
    audit: Audit
    _process: subprocess.Popen[bytes] | None = None
    _port: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Returns once it says that it is ready."""
        self._port = 0
        log = self.folder / "operator.log"
        settings = self.folder / "settings.yaml"
        settings.write_text(json.dumps({**self.settings, "httpPort": 0, "logFormat": "JSON"}))
        environment = {
            **os.environ,
            "GNNSERVE_SETTINGS": str(settings),
            "KUBECONFIG": str(self._kubeconfig()),
            "POD_ID": "fleet",
        }
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.clusters.fleet_operator", self.workers_url],
                env=environment,
                stdout=out,
                stderr=out,
            )

        def is_ready() -> bool:
            if self.process.poll() is not None:
                raise HarnessError(f"the operator ended; the end of its log:\n{tail(log)}")
            if not self._port:
                self._port = _port_in(log)
            return bool(self._port) and self._answers("/readyz")

        wait_for("the operator to be ready", is_ready, 120, every_s=0.05)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def reconciles(self) -> Counter[str]:
        """Reconciles by result."""
        return self._counters("gnnserve_operator_reconciles_total", "result")

    def requests(self) -> int:
        return self._counters("gnnserve_operator_api_requests_total", "kind").total()

    def memory_mb(self) -> int:
        return self._memory_mb("VmRSS")

    def peak_mb(self) -> int:
        """Peak memory since `forget_peak`."""
        return self._memory_mb("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def processor_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _counters(self, name: str, label: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name}{{"):
                    labels, _, value = line.rpartition(" ")
                    counted[labels.partition(f'{label}="')[2].partition('"')[0]] += int(float(value))
        return counted

    def _memory_mb(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
        return round(int(line.split()[1]) * 1024 / 1e6)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _kubeconfig(self) -> Path:
        """A kubeconfig of the operator's ServiceAccount: with the chart's rights and no others."""
        token = self.cluster.kubectl("create", "token", RELEASE, f"--namespace={SYSTEM_NAMESPACE}", "--duration=3h")
        document = json.loads(Path(self.cluster.kubeconfig).read_text())
        document["users"][0]["user"] = {"token": token.strip()}
        path = self.folder / "operator.kubeconfig"
        path.write_text(json.dumps(document))
        return path


def _port_in(log: Path) -> int:
    for line in log.read_text().splitlines():
        _, found, port = line.partition("listening on port ")
        if found:
            return int(port.partition('"')[0])
    return 0
