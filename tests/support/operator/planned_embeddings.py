"""Services with embeddings, before the planner."""

from __future__ import annotations

from typing import Any

from tests.support.operator.observed import Namespace


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    return namespace


def embedding_jobs(namespace: Namespace) -> list[dict[str, Any]]:
    return [
        raw for (kind, _), raw in namespace.objects.items()
        if kind == "Job" and raw["metadata"]["labels"]["app.kubernetes.io/component"] == "embeddings"
    ]  # fmt: skip


def end(namespace: Namespace, message: str = "", exit_code: int = 0) -> None:
    """Its pod ends, and the Job with it."""
    (job,) = embedding_jobs(namespace)
    terminated = {"exitCode": exit_code, "message": message}
    namespace.add_pod(job, state={"terminated": terminated}, phase="Failed" if exit_code else "Succeeded")
    stamp = namespace.now.isoformat().replace("+00:00", "Z")
    kind = "Failed" if exit_code else "Complete"
    job["status"] = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": stamp}]}
