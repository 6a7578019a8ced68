"""The audit's judgement of what an advisory service told: silence is never taken for safety."""

from __future__ import annotations

import pytest
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
