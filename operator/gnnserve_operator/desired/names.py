"""Every name of a child, derived from the name of its GNNService; no other module composes one.

Names are deterministic, so that an operator which starts anew finds what its predecessor made, and fit the 63
characters of a DNS label whatever the service's length. A service's own name is at most 63 characters.
"""

from __future__ import annotations

import hashlib
import re

MAX_NAME_LENGTH = 63
JOB_DIGEST_LENGTH = 8


def service_name(service: str) -> str:
    return service


def worker_name(service: str) -> str:
    """Name of the Deployment and of everything else that belongs to the workers alone."""
    return _suffixed(service, "-worker")


def generation_name(service: str) -> str:
    """Name of the NetworkPolicy of generation pods."""
    return _suffixed(service, "-generate")


def job_name(service: str, template_digest: str) -> str:
    """Name of a Job. Each pod template has a Job of its own: a Job's template cannot be changed."""
    return _suffixed(service, f"-generate-{template_digest[:JOB_DIGEST_LENGTH]}")


def embeddings_name(service: str) -> str:
    """Name of the NetworkPolicy of pods that make embeddings."""
    return _suffixed(service, "-embeddings")


def embeddings_job_name(service: str, template_digest: str) -> str:
    """Name of a Job that makes embeddings, one for each pod template."""
    return _suffixed(service, f"-embeddings-{template_digest[:JOB_DIGEST_LENGTH]}")


def routing_name(service: str) -> str:
    return _suffixed(service, "-routing")


def pool_name(pool: str) -> str:
    """Name of the Deployment of a GNNWorkerPool, and of everything else that belongs to its workers."""
    return _suffixed(pool, "-pool")


def pool_services_name(pool: str) -> str:
    """Name of the ConfigMap with the services of a GNNWorkerPool."""
    return _suffixed(pool, "-pool-services")


def pool_claim_name(pool: str) -> str:
    """Name of the claim that the operator makes for a GNNWorkerPool."""
    return _suffixed(pool, "-pool-repository")


def repository_claim_name(service: str, number: int = 1) -> str:
    """Name of a claim that the operator makes. They are numbered: while one is being deleted, its name is not free."""
    return _suffixed(service, "-repository" if number == 1 else f"-repository-{number}")


def is_repository_claim(service: str, claim: str) -> bool:
    """Whether `claim` is a name that the operator gives to a claim of this service."""
    number = re.search(r"-([0-9]{1,3})$", claim)
    return claim in {repository_claim_name(service), repository_claim_name(service, int(number[1]) if number else 1)}


def _suffixed(service: str, suffix: str) -> str:
    if len(service) + len(suffix) <= MAX_NAME_LENGTH:
        return service + suffix
    # Two long names with the same beginning must not share a child.
    mark = "-" + hashlib.sha256(service.encode()).hexdigest()[:6]
    return service[: MAX_NAME_LENGTH - len(suffix) - len(mark)].rstrip("-") + mark + suffix
