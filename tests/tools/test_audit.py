"""The audit's judgement of what an advisory service told: silence is never taken for safety."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import audit as audit_module
from tools.audit import Audit, AuditExit, Finding, decide_exit, describe, parse_report

GOOD = {"name": "numpy", "version": "2.4.0", "vulns": []}
OURS = {"name": "gnnserve", "skip_reason": "Dependency not found on PyPI"}
UNKNOWN = {"name": "scipy", "skip_reason": "Dependency not found on PyPI"}
BAD = {"name": "aiohttp", "version": "3.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.2"], "aliases": []}]}


def report(*entries: object) -> dict[str, object]:
    return {"dependencies": list(entries), "fixes": []}


@pytest.mark.parametrize(
    ("audits", "exit_code"),
    [
        pytest.param([parse_report("a", report(GOOD, OURS))], AuditExit.OK, id="all were asked about"),
        pytest.param([parse_report("a", report(GOOD, UNKNOWN))], AuditExit.NOT_ASKED, id="of one nothing is told"),
        pytest.param([parse_report("a", report())], AuditExit.NOT_ASKED, id="there was nothing to ask about"),
        pytest.param([Audit("a", problem="no answer")], AuditExit.NOT_ASKED, id="nobody answers"),
        pytest.param([Audit("a", problem="no answer"), parse_report("b", report(BAD))], AuditExit.VULNERABLE,
                     id="a known one counts first"),
    ],
)  # fmt: skip
def test_only_a_complete_audit_without_a_finding_passes(audits: list[Audit], exit_code: AuditExit) -> None:
    assert decide_exit(audits) is exit_code


def test_a_finding_says_what_to_do_and_silence_is_named() -> None:
    audit = parse_report("operator image", report(BAD, UNKNOWN))
    assert audit.findings == (Finding("aiohttp", "3.1", "PYSEC-1", ("3.2",)),)
    assert describe(audit) == [
        "operator image: 1 packages asked about, 1 known vulnerabilities",
        "  aiohttp 3.1: PYSEC-1, fixed in 3.2",
        "  NOT AUDITED: the advisory service tells nothing of 1 packages: scipy",
    ]


def test_an_audit_that_cannot_be_made_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit_module, "audit_environment", lambda _: parse_report("environment", report(GOOD)))
    assert audit_module.main(["--uv", str(tmp_path / "uv")]) == AuditExit.NOT_ASKED
    assert f"{tmp_path / 'uv'} cannot be run (No such file or directory); name uv by --uv" in capsys.readouterr().out


def test_images_are_resolved_for_the_platform_that_they_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {told}\nexit 1\n')
    uv.chmod(0o700)
    assert audit_module.audit_image("image generate", ("serve", "generate"), "pypi", str(uv)).problem is not None
    assert "--python-platform x86_64-unknown-linux-gnu" in told.read_text()
