"""What would be published: targets, names and versions agree wherever they are written; bills of materials are read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import yaml
from cyclonedx.model.bom import Bom
from tests.cluster.harness.binaries import COSIGN_VERSION
from tests.support.operator.declared_environment import ROOT
from tools.audit import IMAGES
from tools.sbom import bill_of, debian_components

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
CHART = yaml.safe_load((ROOT / "charts/gnnserve/Chart.yaml").read_text())

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_every_image_is_built_and_published() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^TARGETS \?= (.*)$", makefile, re.MULTILINE)
    assert targets.split() == [*IMAGES]
    for job in ("images", "join"):
        assert WORKFLOW["jobs"][job]["strategy"]["matrix"]["target"] == [*IMAGES]


def test_the_chart_tells_of_every_image_with_its_version() -> None:
    told = yaml.safe_load(CHART["annotations"]["artifacthub.io/images"])
    assert {of["name"]: of["image"] for of in told} == {
        target: f"gnnserve/{target}:{PROJECT['version']}" for target in IMAGES
    }
    assert {of["kind"] for of in yaml.safe_load(CHART["annotations"]["artifacthub.io/crds"])} == {
        yaml.safe_load(file.read_text())["spec"]["names"]["kind"] for file in (ROOT / "crds").glob("*.yaml")
    }


def test_jobs_of_the_workflow_wait_for_jobs_that_there_are() -> None:
    jobs = WORKFLOW["jobs"]
    for name, job in jobs.items():
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= jobs.keys() - {name}


def test_signatures_are_made_by_the_cosign_that_is_tested() -> None:
    """`make test-signatures` runs the workflow's commands with it."""
    installed = [
        step["with"]["cosign-release"]
        for job in WORKFLOW["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("sigstore/cosign-installer")
    ]
    assert installed == [f"v{COSIGN_VERSION}"] * 2


def test_a_bill_of_materials_lists_what_is_installed() -> None:
    # As in an image: by standard input, where nothing of ours can be imported.
    source = (ROOT / "tools/sbom.py").read_text()
    done = subprocess.run(
        [sys.executable, "-", "gnnserve/worker-cpu:1"], input=source, capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    listed = Bom.from_json(bill)
    versions = {component.name: component.version for component in listed.components}
    assert versions["numba"] == metadata.version("numba")
    assert listed.metadata.component.name == "gnnserve/worker-cpu:1"


def test_packages_that_debian_has_taken_away_are_not_listed() -> None:
    assert [of["purl"] for of in debian_components(STATUS)] == ["pkg:deb/debian/libc6@2.36-9?arch=amd64"]
    assert bill_of("any")["specVersion"] == "1.6"
