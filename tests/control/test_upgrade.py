"""A new operator finds what an older one made, and restarts nothing of it."""

from __future__ import annotations

import pytest
from tests.support.operator.older_release import Built, BuiltPool, Released, older_pools, older_services, released_specs

from gnnserve_api.pods.pool import PoolServices
from gnnserve_api.spec.pool import POOL_KIND, GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.repository import decide_repository
from gnnserve_operator.desired.children import build_children
from gnnserve_operator.desired.deployment import MountedClaim, build_worker_template
from gnnserve_operator.desired.job import build_job
from gnnserve_operator.desired.metadata import Parent, digest_of
from gnnserve_operator.desired.pool import PoolInputs, claim_of, entry_of, secrets_of
from gnnserve_operator.desired.storage import WantedClaim
from gnnserve_operator.observed import ObservedState
from gnnserve_operator.settings import Settings

OLDER = older_services()
RELEASED = released_specs()
POOLS = older_pools()


@pytest.mark.parametrize(("name", "built"), OLDER.items(), ids=OLDER)
def test_an_upgrade_of_the_operator_restarts_no_worker_and_generates_nothing_again(name: str, built: Built) -> None:
    parent, settings = Parent(name, "default", "uid"), Settings(worker_image="worker:1")
    spec = GNNServiceSpec.model_validate(built.spec)
    claim = decide_repository(name, spec, ObservedState()).name
    assert build_worker_template(parent, spec, settings, MountedClaim(claim)) == built.worker
    job = build_job(parent, spec, settings, claim)
    assert job["spec"]["template"] == built.generation
    assert job["metadata"]["name"] == built.job


@pytest.mark.parametrize(("name", "released"), RELEASED.items(), ids=RELEASED)
def test_an_upgrade_keeps_the_job_and_the_workers_of_every_stored_spec(name: str, released: Released) -> None:
    parent, settings = Parent(name, "default", "uid"), Settings(worker_image="worker:1")
    spec = GNNServiceSpec.model_validate(released.spec)
    claim = decide_repository(name, spec, ObservedState()).name
    assert build_job(parent, spec, settings, claim)["metadata"]["name"] == released.job
    assert digest_of(build_worker_template(parent, spec, settings, MountedClaim(claim))) == released.worker


@pytest.mark.parametrize(("name", "built"), POOLS.items(), ids=POOLS)
def test_an_upgrade_keeps_every_child_of_a_pool(name: str, built: BuiltPool) -> None:
    spec = GNNWorkerPoolSpec.model_validate(built.spec)
    specs = {service: GNNServiceSpec.model_validate(found) for service, found in built.services.items()}
    entries = (
        entry_of(service, f"uid-of-{service}", found, 20_000 + place)
        for place, (service, found) in enumerate(specs.items())
    )
    given = PoolInputs(
        Parent("shared", "default", "uid", POOL_KIND),
        spec,
        Settings(worker_image="worker:1"),
        PoolServices(tuple(entries)),
        {service: secrets for service, found in specs.items() if (secrets := secrets_of(found))},
        MountedClaim(claim_of("shared", spec), "uid-of-claim"),
        WantedClaim("shared-pool-repository", "20Gi", is_retained=True),
        pod_monitor_available=True,
        intervals_s=tuple(found.routing.interval_seconds for found in specs.values()),
    )
    assert {child["kind"]: digest_of(child) for child in build_children(given)} == built.children
