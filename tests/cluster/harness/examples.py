"""The services of `examples/`, unedited: on the cluster as on this machine, and asked the same.

They are copied first, since some have a program that makes their files beside itself. Their data are brought to volumes
by the commands of docs/data.md.
"""

from __future__ import annotations

import base64
import csv
import itertools
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.components import REPOSITORY
from tests.cluster.harness.installation import MIRROR_PORT, SYSTEM_NAMESPACE
from tests.cluster.harness.pods import python_pod
from tests.cluster.harness.services import Service
from tests.support.generation.names import assert_named
from tests.support.graphs.published import ogb_files, sample
from tests.support.pages.pages import code_blocks, read_page, section
from typer.testing import CliRunner

from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.main import app
from gnnserve_worker.generation.pipeline import find
from gnnserve_worker.repository.repository import Repository

EXAMPLES = REPOSITORY / "examples"
MAKERS = ("spam/reviews.py", "given-variants/make.py")
"""Programs that make the files of an example, where the checkout has none."""
_COUNT = 20
"""Nodes, or pairs, that each service is asked about."""
_SEED = 7
_SCORES_DIFFER = 1e-3
"""Largest difference of two scores: networks are trained on as many threads here as there, and sums are rounded."""
_ROUNDED_DIFFER = {"int8": 1e-2}
"""The same by storage of coarser rows: where sums differ in their last digit, some numbers are rounded to the next
step."""


@dataclass(frozen=True, slots=True)
class Example:
    manifest: Path
    service: GNNService

    @property
    def name(self) -> str:
        return self.service.metadata.name

    @property
    def claim(self) -> str | None:
        """The claim with its data."""
        volume = self.service.spec.graph.volume
        return None if volume is None else volume.claim_name

    @property
    def recommends(self) -> bool:
        embeddings = self.service.spec.embeddings
        return embeddings is not None and embeddings.index

    def question(self) -> dict[str, Any]:
        """A prediction about nodes, or pairs, of its graph."""
        spec = self.service.spec
        typed, tables = spec.graph.source.typed, spec.graph.source.csv
        asked: dict[str, Any] = {"seed": _SEED, "return": ["labels", "scores"]}
        if typed is not None and typed.csv is not None:
            if spec.task.links is not None:
                (edges,) = typed.csv.edges
                ends = ((edges.source_type, edges.source), (edges.target_type, edges.target))
                rows = _rows(edges.uri.path)
                return asked | {
                    "pairs": [[f"{kind}/{row[column]}" for kind, column in ends] for row in rows],
                    "return": ["scores"],
                }
            (nodes,) = (table for table in typed.csv.nodes if table.label is not None)
            return asked | {"nodes": [f"{nodes.type}/{row[nodes.id]}" for row in _rows(nodes.uri.path)]}
        if tables is not None:
            return asked | {"nodes": [row[tables.nodes.id] for row in _rows(tables.nodes.uri.path)]}
        return asked | {"nodes": [*range(_COUNT)]}


def copied(folder: Path, *which: str) -> dict[str, Example]:
    """Examples by the name of their service, in a copy of their folders where all files are made. `which`: manifests,
    by path in `examples/`; none: those of all services."""
    copy = folder / "examples"
    shutil.copytree(EXAMPLES, copy)
    for maker in MAKERS:
        if not which or any(Path(path).parent == Path(maker).parent for path in which):
            runpy.run_path(str(copy / maker), run_name="__main__")
    paths = [copy / path for path in which] or sorted(copy.rglob("*.yaml"))
    services = [path for path in paths if "\nkind: GNNService\n" in path.read_text(encoding="utf-8")]
    found = [Example(path, load_manifest(path)) for path in services]
    return {example.name: example for example in found}


def _rows(table: Path) -> Iterable[Mapping[str, str]]:
    with table.open(encoding="utf-8") as file:
        return [*itertools.islice(csv.DictReader(file), _COUNT)]


# --- on the cluster


def apply(namespace: Namespace, examples: Iterable[Example]) -> dict[str, Service]:
    """Bring the data first, then apply each manifest as it is, and the pools that are beside them."""
    examples = [*examples]
    with ThreadPoolExecutor() as several:
        [*several.map(partial(_bring_data, namespace), examples)]
    pools = {example.manifest.with_name("pool.yaml") for example in examples if example.service.spec.worker.pool_ref}
    for manifest in [*pools, *(example.manifest for example in examples)]:
        namespace.kubectl("apply", f"--filename={manifest}")
    return {example.name: Service(namespace, example.name) for example in examples}


def documented_commands() -> list[str]:
    """The commands that bring the data of examples/shop to a volume, as docs/data.md has them."""
    (block,) = code_blocks(section(read_page("data.md"), "Data in a cluster"), "console")
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def _bring_data(namespace: Namespace, example: Example) -> None:
    if example.claim is None:
        return
    folder = example.manifest.parent
    pod = (EXAMPLES / "data-volume.yaml").read_text(encoding="utf-8").replace("shop-data", example.claim)
    # The node has no other image, and no registry to pull from.
    image = f"image: {namespace.cluster.worker_image}\n      imagePullPolicy: IfNotPresent"
    described = folder.parent / f"{example.claim}.yaml"
    described.write_text(re.sub("image: .*", image, pod), encoding="utf-8")
    here = {"examples/data-volume.yaml": str(described), "examples/shop": str(folder), "shop-data": example.claim}
    for command in documented_commands():
        program, *words = shlex.split(re.sub("|".join(here), lambda found: here[found[0]], command))
        assert program == "kubectl", command
        namespace.kubectl(*words)


@contextmanager
def mirror(cluster: Cluster) -> Iterator[None]:
    """A web server with a made data set in the format of ogbn-arxiv, where the installation expects it."""
    system, labels = Namespace(SYSTEM_NAMESPACE, cluster), {"app": "mirror"}
    about = {"name": "mirror", "labels": labels}
    pod = python_pod(cluster, "mirror", _SERVE_FILES, labels=labels)
    (container,) = pod["spec"]["containers"]
    # The standard library is enough; the claim of packages is not of that namespace.
    pod["spec"]["volumes"] = [{"name": "files", "configMap": {"name": "mirror"}}]
    container["volumeMounts"] = [{"name": "files", "mountPath": "/mirror/ogbn-arxiv"}]
    container["readinessProbe"] = {"tcpSocket": {"port": MIRROR_PORT}, "periodSeconds": 1}
    encoded = {name: base64.b64encode(content).decode() for name, content in _made_arxiv().items()}
    ports = {"selector": labels, "ports": [{"port": MIRROR_PORT}]}
    objects = (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "binaryData": encoded},
        {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": ports},
        pod,
    )
    system.apply(*objects)
    try:
        system.kubectl("wait", "pod/mirror", "--for=condition=Ready", "--timeout=60s")
        yield
    finally:
        system.kubectl("delete", "pod/mirror", "service/mirror", "configmap/mirror", "--wait=false")


_SERVE_FILES = f"""
import functools, http.server
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="/mirror")
http.server.ThreadingHTTPServer(("", {MIRROR_PORT}), handler).serve_forever()
"""


def _made_arxiv() -> dict[str, bytes]:
    return ogb_files(sample(nodes=400, columns=16, classes=4))


# --- on this machine


@contextmanager
def served_here(examples: Iterable[Example], folder: Path) -> Iterator[dict[str, httpx.Client]]:
    """The same manifests, generated and served by one process; clients by the name of the service."""
    (folder / "mirror/ogbn-arxiv").mkdir(parents=True)
    for name, content in _made_arxiv().items():
        (folder / "mirror/ogbn-arxiv" / name).write_bytes(content)
    said = {"GNNSERVE_MIRROR": str(folder / "mirror"), "GNNSERVE_PROFILE_SECONDS": "0.1"}
    examples, repository = [*examples], ("--repository", str(folder / "repository"))
    for example in examples:
        done = CliRunner().invoke(app, ["generate", str(example.manifest), *repository], env=said)
        assert done.exit_code == 0, done.output
        about = example.service.metadata
        generated = find(example.service, Repository(folder / "repository", about.namespace, about.name))
        assert generated is not None, example.name
        assert_named(example.service.spec, generated)
    manifests = [str(example.manifest) for example in examples]
    command = (sys.executable, "-m", "gnnserve_cli", "serve", *manifests, *repository, "--port", "0")
    with subprocess.Popen(command, env=os.environ | said, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _clients(process, {example.name for example in examples})
        finally:
            process.terminate()


def _clients(process: subprocess.Popen[str], names: set[str]) -> dict[str, httpx.Client]:
    found: dict[str, httpx.Client] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if serving := re.fullmatch(r"Serving (?:(\S+) )?on (http\S+)\n", line):
            found[serving[1] or next(iter(names))] = httpx.Client(base_url=serving[2], timeout=30)
        if found.keys() == names:
            return found
    raise AssertionError(f"gnnserve serve ended, and served {sorted(found)} of {sorted(names)}")


# --- compared


def compare(example: Example, here: httpx.Client, there: Service) -> None:
    """Ask both by each variant that both have; the profile, which decides about some, is another."""
    variants = {one["name"]: one["storage"] for one in here.get("/v1/variants").json()["profile"]["variants"]}
    common = [
        one["name"] for one in there.ask("GET", "/v1/variants")[1]["profile"]["variants"] if one["name"] in variants
    ]
    assert common, f"{example.name} has none of {list(variants)}"
    for variant in common:
        question = example.question() | {"variant": variant}
        ours, theirs = _ask_both("/v1/predict", question, here, there)
        where = f"{example.name}, {variant}"
        assert theirs.get("labels") == ours.get("labels"), where
        close = _ROUNDED_DIFFER.get(variants[variant], _SCORES_DIFFER)
        np.testing.assert_allclose(theirs["scores"], ours["scores"], rtol=0, atol=close, err_msg=where)
    if example.recommends:
        question = example.question()
        about = {"node": (question.get("nodes") or question["pairs"][0])[0], "count": 5, "seed": _SEED}
        wait_for("the index", lambda: there.ask("POST", "/v1/recommend", about)[0] == 200)
        ours, theirs = _ask_both("/v1/recommend", about, here, there)
        assert [one["id"] for one in theirs["items"]] == [one["id"] for one in ours["items"]], example.name


def _ask_both(
    path: str, question: Mapping[str, Any], here: httpx.Client, there: Service
) -> tuple[dict[str, Any], dict[str, Any]]:
    response = here.post(path, json=dict(question))
    assert response.status_code == 200, response.text
    status, answer = there.ask("POST", path, question)
    assert status == 200, answer
    return response.json(), answer
