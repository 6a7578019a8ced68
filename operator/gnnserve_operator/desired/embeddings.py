"""The Job that makes the embeddings of a published revision: their index in the repository, and rows in databases.

One for each pod template, and so one for each revision and each spec.embeddings; one that made the same with other
resources, or another image, is not followed by another. It trains nothing and waits for no other service's Job. It has
no time to live: that it succeeded is the record that the embeddings are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnserve_api import pods
from gnnserve_api.spec.audience import Audience, parts_for
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.updates import URI_KEY
from gnnserve_operator.desired.job import data_environment, data_volumes, generation_manifest
from gnnserve_operator.desired.labels import Component, labels_for
from gnnserve_operator.desired.metadata import Manifest, Parent, as_manifest, child_metadata, digest_of
from gnnserve_operator.desired.names import embeddings_job_name
from gnnserve_operator.desired.pod import (
    EMBEDDINGS_CONTAINER,
    build_container,
    build_failure_policy,
    build_pod_metadata,
    build_pod_spec,
    build_resources,
    job_pods,
    secret_volume,
    variable_in,
)
from gnnserve_operator.settings import Settings


def build_embeddings_job(
    parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: str, revision: str
) -> Manifest | None:
    """`claim`: name of the claim that holds the revision. None: the spec asks for no embeddings."""
    if spec.embeddings is None:
        return None
    template = _build_template(parent, spec, settings, claim, revision)
    name = embeddings_job_name(parent.name, digest_of(template))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": child_metadata(parent, name, Component.EMBEDDINGS),
        "spec": {
            "backoffLimit": spec.generation.retries,
            "activeDeadlineSeconds": spec.generation.deadline_seconds,
            # Two attempts at once would write the same index.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": build_failure_policy(EMBEDDINGS_CONTAINER),
            "template": template,
        },
    }


def _build_template(
    parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: str, revision: str
) -> Manifest:  # fmt: skip
    given = job_pods(parent.name, spec)
    # Columns that recommendations are filtered by are read from the graph's source.
    mounts, volumes = data_volumes(spec, claim)
    secrets = () if spec.embeddings is None else spec.embeddings.secrets
    for place, secret in enumerate(secrets):
        name = f"embeddings-{place}"
        mounts.append({"name": name, "mountPath": f"{pods.EMBEDDINGS_PATH}/{place}", "readOnly": True})
        volumes.append(secret_volume(name, secret, URI_KEY))
    container = build_container(
        EMBEDDINGS_CONTAINER,
        pods.EMBEDDINGS_COMMAND,
        given,
        settings,
        env={
            pods.MANIFEST_VARIABLE: _manifest(parent, spec),
            pods.REPOSITORY_VARIABLE: pods.REPOSITORY_PATH,
            pods.EMBEDDED_REVISION_VARIABLE: revision,
            pods.SOURCE_VARIABLE: generation_manifest(parent, spec),
            **data_environment(spec),
        },
        mounts=mounts,
        # It computes on the processor, whatever generation trains on.
        resources=build_resources(given.settings, defaults=settings.generation_resources),
    )
    pod = build_pod_spec(given, settings, container=container, volumes=volumes)
    pod |= {"restartPolicy": "Never", "automountServiceAccountToken": False}
    labels = labels_for(parent.name, Component.EMBEDDINGS)
    return {"metadata": build_pod_metadata(given.settings, labels), "spec": pod}


def embeddings_made_by(template: Mapping[str, Any]) -> tuple[str, str]:
    """Revision, and part of the spec, of which a Job with this pod template makes embeddings. Two Jobs with equal ones
    make the same, whatever their images and resources."""
    return variable_in(template, pods.EMBEDDED_REVISION_VARIABLE), variable_in(template, pods.MANIFEST_VARIABLE)


def _manifest(parent: Parent, spec: GNNServiceSpec) -> str:
    """The GNNService as this Job needs it."""
    return as_manifest(parent, parts_for(spec, Audience.EMBEDDINGS))
