"""Jobs: one that generates, or compacts, a revision, and one that makes the embeddings of a published revision.

There is one for each pod template: of generation for each recipe, image and set of resources, and for each revision
that is compacted; of embeddings for each revision and each spec.embeddings. One that made the same embeddings with
other resources, or another image, is not followed by another.

Neither has a time to live. A failed generation Job is the record of the failure, which deleting it or changing the spec
clears; that a Job of embeddings succeeded is the record that they are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.change_log import URI_KEY
from gnnserve_api.spec.audience import Audience, parts_for
from gnnserve_api.spec.paths import paths_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired import storage
from gnnserve_operator.desired.metadata import (
    REPAIR_ANNOTATION,
    WAITS_ANNOTATION,
    Component,
    Parent,
    as_manifest,
    child_metadata,
    digest_of,
    embeddings_job_name,
    job_name,
    labels_for,
)
from gnnserve_operator.desired.pod import (
    EMBEDDINGS_CONTAINER,
    GENERATE_CONTAINER,
    GRAPH_VOLUME,
    REPOSITORY_VOLUME,
    build_container,
    build_failure_policy,
    build_pod_metadata,
    build_pod_spec,
    build_resources,
    claim_volume,
    job_pods,
    secret_volume,
    variable_in,
)
from gnnserve_operator.kinds import Manifest
from gnnserve_operator.settings import Settings

HUB_VOLUME = "hub"


def build_job(
    parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: str, compacts: str | None = None
) -> Manifest:
    """Build the Job. `claim`: name of the claim that it generates into. `compacts`: the revision that it makes anew at
    the end of the log of changes; None: it makes what the spec says."""
    recipe = spec.recipe()
    template = build_generation_template(parent, spec, settings, recipe, claim, compacts)
    name = job_name(parent.name, digest_of(template))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": child_metadata(parent, name, Component.GENERATION, recipe=recipe),
        "spec": {
            "backoffLimit": spec.generation.retries,
            "activeDeadlineSeconds": spec.generation.deadline_seconds,
            # Two attempts at once would contend for the repository.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": build_failure_policy(GENERATE_CONTAINER),
            "template": template,
        },
    }


def for_repair(job: Manifest, number: int) -> Manifest:
    """The Job as one that generates a damaged revision again."""
    return _annotated(job, REPAIR_ANNOTATION, str(number))


def waiting_for(job: Manifest, words: str) -> Manifest:
    """The Job as one that waits for something, in words; empty: it does not."""
    return _annotated(job, WAITS_ANNOTATION, words) if words else job


def _annotated(job: Manifest, annotation: str, value: str) -> Manifest:
    metadata = job["metadata"]
    annotations = {**(metadata.get("annotations") or {}), annotation: value}
    return {**job, "metadata": {**metadata, "annotations": annotations}}


def suspended(job: Manifest) -> Manifest:
    """The Job as one that the operator suspends: its service is suspended, or waits for its turn. Any other manifest
    says nothing of it, so that a queue of the cluster, or a person, may suspend the Job as well."""
    return {**job, "spec": {**job["spec"], "suspend": True}}


def build_generation_template(
    parent: Parent, spec: GNNServiceSpec, settings: Settings, recipe: str, claim: str, compacts: str | None = None
) -> Manifest:
    given = job_pods(parent.name, spec)
    mounts, volumes = data_volumes(spec, claim)
    mounts += storage.build_log_secret_mounts(spec)
    volumes += storage.build_log_volumes(spec)
    if (hub := spec.generation.hub) is not None:
        mounts.append({"name": HUB_VOLUME, "mountPath": pods.HUB_PATH, "readOnly": True})
        volumes.append(secret_volume(HUB_VOLUME, hub.secret_name, pods.HUB_TOKEN_KEY))
    container = build_container(
        GENERATE_CONTAINER,
        pods.GENERATE_COMMAND,
        given,
        settings,
        env={
            pods.MANIFEST_VARIABLE: generation_manifest(parent, spec),
            pods.REPOSITORY_VARIABLE: pods.REPOSITORY_PATH,
            **data_environment(spec),
            **_hub_environment(spec),
            **storage.build_generation_environment(parent, spec, compacts),
        },
        mounts=mounts,
        resources=build_resources(given.settings, given.gpu, settings.generation_resources),
    )
    pod = build_pod_spec(given, settings, container=container, volumes=volumes)
    pod |= {"restartPolicy": "Never", "automountServiceAccountToken": False}
    if compacts is not None and storage.excludes_second_worker(spec):
        # Of generation Jobs only this one opens the log.
        pod = storage.beside_worker(pod, parent)
    return {
        "metadata": build_pod_metadata(given.settings, labels_for(parent.name, Component.GENERATION, recipe)),
        "spec": pod,
    }


def data_volumes(spec: GNNServiceSpec, claim: str) -> tuple[list[Manifest], list[Manifest]]:
    """Mounts and volumes of the repository, which is in that claim, and of the data, where the spec names theirs."""
    mounts: list[Manifest] = [{"name": REPOSITORY_VOLUME, "mountPath": pods.REPOSITORY_PATH}]
    volumes: list[Manifest] = [claim_volume(REPOSITORY_VOLUME, claim)]
    if spec.graph.volume is not None:
        mounts.append({"name": GRAPH_VOLUME, "mountPath": spec.graph.volume.mount_path, "readOnly": True})
        volumes.append(claim_volume(GRAPH_VOLUME, spec.graph.volume.claim_name))
    return mounts, volumes


def data_environment(spec: GNNServiceSpec) -> dict[str, str]:
    """Where relative paths begin. Of a spec without one it is left out: a Job of an older operator stays as it is."""
    volume = spec.graph.volume
    if volume is None or all(one.value.is_absolute for one in paths_of(spec)):
        return {}
    return {pods.DATA_VARIABLE: volume.mount_path}


def _hub_environment(spec: GNNServiceSpec) -> dict[str, str]:
    """Where the token for the Hugging Face Hub is; empty: it is asked without one."""
    return (
        {} if spec.generation.hub is None else {pods.HUB_TOKEN_FILE_VARIABLE: f"{pods.HUB_PATH}/{pods.HUB_TOKEN_KEY}"}
    )


def generation_manifest(parent: Parent, spec: GNNServiceSpec) -> str:
    """The GNNService as generation needs it; nothing in it changes with what generation does not depend on."""
    return as_manifest(parent, _generation_parts(spec))


def handed_recipe(spec: GNNServiceSpec) -> str:
    """The recipe of what the Job is handed, which is the spec's where nothing is missing."""
    return GNNServiceSpec.model_validate(_generation_parts(spec)).recipe()


def _generation_parts(spec: GNNServiceSpec) -> dict[str, Any]:
    """A Job that goes back to a revision needs the graph's source, in which compacted changes have no features."""
    audience = Audience.REVISION | Audience.GENERATION if spec.revision is None else Audience.RETURN
    parts = parts_for(spec, audience)
    if "routing" in parts and spec.repository.history is None:
        # A canary is told so that it is kept.
        del parts["routing"]
    elif "routing" in parts:
        # Its share must be there, and is none of the Job's.
        parts["routing"]["canary"]["percent"] = 0
    return parts


def build_embeddings_job(
    parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: str, revision: str
) -> Manifest | None:
    """`claim`: name of the claim that holds the revision. None: the spec asks for no embeddings."""
    if spec.embeddings is None:
        return None
    template = _build_embeddings_template(parent, spec, settings, claim, revision)
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


def _build_embeddings_template(
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
            pods.MANIFEST_VARIABLE: _embeddings_manifest(parent, spec),
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


def _embeddings_manifest(parent: Parent, spec: GNNServiceSpec) -> str:
    """The GNNService as this Job needs it."""
    return as_manifest(parent, parts_for(spec, Audience.EMBEDDINGS))
