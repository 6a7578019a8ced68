"""What helps where the API server refuses pods, by what its refusal says."""

from __future__ import annotations

_OPENSHIFT = "security context constraint"
"""Words of OpenShift's admission."""


def remedy_of_refusal(refusal: str, section: str) -> str:
    """`section`: the part of the spec that asks for the pods."""
    if _OPENSHIFT in refusal:
        return (
            "Set the chart's podSecurity.runAs to Platform, so that pods name no user and OpenShift gives them one "
            "(docs/operator.md)"
        )
    return f"Raise the quota or relax the namespace's policy, or ask for less in {section}"
