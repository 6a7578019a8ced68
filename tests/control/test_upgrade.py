"""A new operator finds what an older one made, and restarts nothing of it."""

from __future__ import annotations

import pytest
from tests.support.older_release import Built, Released, older_services, released_specs

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.repository import decide_repository
from gnnserve_operator.desired.deployment import MountedClaim, build_worker_template
from gnnserve_operator.desired.job import build_job
from gnnserve_operator.desired.metadata import Parent, digest_of
from gnnserve_operator.observed import Observed
from gnnserve_operator.settings import Settings

OLDER = older_services()
RELEASED = released_specs()


@pytest.mark.parametrize(("name", "built"), OLDER.items(), ids=OLDER)
def test_an_upgrade_of_the_operator_restarts_no_worker_and_generates_nothing_again(name: str, built: Built) -> None:
    parent, settings = Parent(name, "default", "uid"), Settings(worker_image="worker:1")
    spec = GNNServiceSpec.model_validate(built.spec)
    claim = decide_repository(name, spec, Observed()).name
    assert build_worker_template(parent, spec, settings, MountedClaim(claim)) == built.worker
    job = build_job(parent, spec, settings, claim)
    assert job["spec"]["template"] == built.generation
    assert job["metadata"]["name"] == built.job


@pytest.mark.parametrize(("name", "released"), RELEASED.items(), ids=RELEASED)
def test_an_upgrade_keeps_the_job_and_the_workers_of_every_stored_spec(name: str, released: Released) -> None:
    parent, settings = Parent(name, "default", "uid"), Settings(worker_image="worker:1")
    spec = GNNServiceSpec.model_validate(released.spec)
    claim = decide_repository(name, spec, Observed()).name
    assert build_job(parent, spec, settings, claim)["metadata"]["name"] == released.job
    assert digest_of(build_worker_template(parent, spec, settings, MountedClaim(claim))) == released.worker
