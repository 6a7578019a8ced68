"""`make audit`: known vulnerabilities of the environment, and of what each image built now would contain.

Versions come from the package index, by the same requirements as the Dockerfile's; vulnerabilities from the advisory
service that pip-audit asks. A package that the service did not tell of is no safe package: it is counted, and the audit
fails, as it does where the service does not answer. What the base image brings (Debian, Python) is not looked at here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SERVING = ("serve", "programs", "tracing")
IMAGES = {
    "operator": ("operator",),
    "worker-cpu": _SERVING,
    "worker-gpu": (*_SERVING, "gpu"),
    "generate": (*_SERVING, "gpu", "generate"),
}
"""The extras that each of the Dockerfile's targets installs (tests/tools/test_extras.py)."""
IMAGE_PLATFORM = "x86_64-unknown-linux-gnu"
"""Elsewhere other packages would be resolved; arm64 images have the same versions."""
_SHOWN = 5
_OURS = "gnnserve"


class AuditExit(IntEnum):
    OK = 0
    VULNERABLE = 1
    NOT_ASKED = 2
    """Exit code where nothing was found out: ask again where the advisory service can be reached."""


@dataclass(frozen=True, slots=True)
class Finding:
    package: str
    version: str
    advisory: str
    fixed_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of one set of packages."""

    what: str
    asked: int = 0
    """Packages that the service told of."""
    unasked: tuple[str, ...] = ()
    """Packages that it did not."""
    findings: tuple[Finding, ...] = ()
    problem: str | None = None
    """Why nothing was asked at all."""


def parse_report(what: str, report: Mapping[str, Any]) -> Audit:
    """pip-audit's JSON; our own distribution is in no index."""
    entries = [entry for entry in report["dependencies"] if entry["name"] != _OURS]
    findings = [
        Finding(entry["name"], entry["version"], found["id"], tuple(found["fix_versions"]))
        for entry in entries
        for found in entry.get("vulns", ())
    ]
    unasked = tuple(sorted(entry["name"] for entry in entries if "skip_reason" in entry))
    return Audit(what, len(entries) - len(unasked), unasked, tuple(findings))


def describe(audit: Audit) -> list[str]:
    if audit.problem is not None:
        return [f"{audit.what}: NOT AUDITED: {audit.problem}"]
    lines = [f"{audit.what}: {audit.asked} packages asked about, {len(audit.findings)} known vulnerabilities"]
    for found in audit.findings:
        fix = f"fixed in {', '.join(found.fixed_in)}" if found.fixed_in else "not fixed yet"
        lines.append(f"  {found.package} {found.version}: {found.advisory}, {fix}")
    if audit.unasked:
        names = ", ".join(audit.unasked[:_SHOWN]) + (", …" if len(audit.unasked) > _SHOWN else "")
        lines.append(f"  NOT AUDITED: the advisory service tells nothing of {len(audit.unasked)} packages: {names}")
    return lines


def decide_exit(audits: Sequence[Audit]) -> AuditExit:
    if any(audit.findings for audit in audits):
        return AuditExit.VULNERABLE
    if any(audit.problem or audit.unasked or not audit.asked for audit in audits):
        return AuditExit.NOT_ASKED
    return AuditExit.OK


def audit_environment(service: str) -> Audit:
    return _ask("environment", service, ["--local"])


def audit_image(what: str, extras: Sequence[str], service: str, uv: str) -> Audit:
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "requirements.txt"
        try:
            resolved = subprocess.run(
                [uv, "pip", "compile", "pyproject.toml", *(f"--extra={extra}" for extra in extras),
                 "--python-version", "3.11", "--python-platform", IMAGE_PLATFORM, "--quiet", "--no-header",
                 "--no-annotate", "--output-file", str(pinned)],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
        except OSError as error:
            return Audit(what, problem=f"{uv} cannot be run ({error.strerror}); name uv by --uv")
        if resolved.returncode:
            return Audit(what, problem=f"its packages cannot be resolved: {_last_line(resolved.stderr)}")
        return _ask(what, service, ["--requirement", str(pinned), "--no-deps", "--disable-pip"])


def _ask(what: str, service: str, options: Sequence[str]) -> Audit:
    told = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--vulnerability-service", service, "--format", "json",
         "--progress-spinner", "off", "--timeout", "15", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        return parse_report(what, json.loads(told.stdout))
    except (json.JSONDecodeError, KeyError, TypeError):
        return Audit(what, problem=f"the advisory service {service} does not answer: {_last_line(told.stderr)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.audit", description=__doc__)
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi", help="whose advisories (default: pypi)")
    parser.add_argument("--uv", default="uv", help="the program that resolves what images contain")
    options = parser.parse_args(arguments)
    audits = [audit_environment(options.service)]
    audits += [audit_image(f"image {target}", extras, options.service, options.uv) for target, extras in IMAGES.items()]
    for audit in audits:
        print("\n".join(describe(audit)))
    result = decide_exit(audits)
    if result is AuditExit.NOT_ASKED:
        print("\nThis is no clean bill: run it where the advisory service can be reached.", file=sys.stderr)
    return result


if __name__ == "__main__":
    sys.exit(main())
