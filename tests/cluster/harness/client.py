"""A cluster as tests use it, the harness's own or a user's: kubectl, helm, namespaces, and waiting."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sysconfig
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.cluster.harness.commands import HarnessError, output_of
from tests.cluster.harness.node import Node
from tests.cluster.harness.volumes import read_only_claim

T = TypeVar("T")

PACKAGES_CLAIM = "python-packages"
"""Mounted at `images.PACKAGES_PATH`."""


@dataclass(frozen=True, slots=True)
class Cluster:
    kubeconfig: str
    kubectl_program: Path
    helm_program: Path
    operator_image: str
    worker_image: str
    node: Node | None
    """The harness's own; None where KUBECONFIG names a cluster of the user's, whose images are full ones."""

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        return output_of(self.kubectl_program, *words, stdin=stdin, timeout_s=timeout_s, env=self.environment())

    def get(self, *words: str) -> dict[str, Any]:
        """`kubectl get` as parsed JSON."""
        return dict(json.loads(self.kubectl("get", *words, "--output=json")))

    def fetch(self, path: str) -> dict[str, Any]:
        """An object by its path. From our own node without kubectl, whose start takes a tenth of a second of processor
        time: tests ask several times a second for minutes."""
        if self.node is None:
            return dict(json.loads(self.kubectl("get", "--raw", path)))
        host, trust = _server_of(self.kubeconfig)
        connection = http.client.HTTPSConnection(host, timeout=30, context=trust)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            body = response.read()
        except OSError as error:
            raise HarnessError(f"{path}: {error}") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise HarnessError(f"{path}: the API server answered {response.status}: {body.decode(errors='replace')}")
        return dict(json.loads(body))

    def apply(self, *objects: dict[str, Any]) -> str:
        return self.kubectl("apply", "--filename=-", stdin=_as_list(objects))

    def helm(self, *words: str, timeout_s: float = 300) -> str:
        return output_of(self.helm_program, *words, timeout_s=timeout_s, env=self.environment())

    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": self.kubeconfig}

    def create_namespace(self, name: str) -> Namespace:
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": restricted}}
        # Not applied: the annotation that `apply` keeps would be noise in what people debug from.
        self.kubectl("create", "--filename=-", stdin=json.dumps(namespace))
        made = Namespace(name, self)
        wait_for(f"the ServiceAccount of {name}", lambda: made.exists("serviceaccount/default"))
        return made

    def create_workspace(self, name: str) -> Namespace:
        """A namespace for services; on our own node with the claim of Python packages that the thin image needs."""
        made = self.create_namespace(name)
        if self.node is not None:
            # Those of the environment that runs this: the same Python 3.11 as the image's, as far as they can tell.
            made.bind_folder(PACKAGES_CLAIM, Path(sysconfig.get_path("purelib")))
        return made


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    cluster: Cluster

    def __str__(self) -> str:
        return self.name

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        return self.cluster.kubectl("--namespace", self.name, *words, stdin=stdin, timeout_s=timeout_s)

    def get(self, *words: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", *words, "--output=json")))

    def items(self, *words: str) -> list[dict[str, Any]]:
        return list(self.get(*words)["items"])

    def exists(self, *words: str) -> bool:
        return bool(self.kubectl("get", *words, "--ignore-not-found", "--output=name").strip())

    def apply(self, *objects: dict[str, Any]) -> str:
        return self.kubectl("apply", "--filename=-", stdin=_as_list(objects))

    def bind_folder(self, claim: str, folder: Path) -> None:
        """A claim bound to a folder of this machine; only the harness's own node can see it."""
        if self.cluster.node is None:
            raise HarnessError(f"{folder} cannot be mounted: KUBECONFIG names a cluster on other machines")
        self.apply(*read_only_claim(self.name, claim, folder))

    def run(self, pod: dict[str, Any], timeout_s: float = 120) -> str:
        """Start a pod, wait for its end, return what it printed; a pod that fails, fails the test with that."""
        name = pod["metadata"]["name"]
        self.apply(pod)

        def ended() -> str | None:
            status = self.get(f"pod/{name}").get("status", {})
            return status["phase"] if status.get("phase") in {"Succeeded", "Failed"} else None

        phase = wait_for(f"pod {name} to end", ended, timeout_s)
        printed = self.kubectl("logs", name)
        if phase == "Failed":
            raise HarnessError(f"pod {name} failed; it printed:\n{printed}")
        return printed

    def delete(self) -> None:
        """Deletes without waiting: what is left ends in the background, and ends at once."""
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float = 60, every_s: float = 0.25) -> T:
    """The first answer that is something; the failure tells what was waited for.

    None, False and an empty collection are nothing yet; zero is a value.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found is not None and found is not False and not (isinstance(found, Sized) and len(found) == 0):
            return found
        if time.monotonic() > deadline:
            raise HarnessError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(every_s)


@cache
def _server_of(kubeconfig: str) -> tuple[str, ssl.SSLContext]:
    """Address and certificates, as the harness writes them there."""
    told = json.loads(Path(kubeconfig).read_text())
    cluster, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    trust.load_cert_chain(user["client-certificate"], user["client-key"])
    return urlsplit(cluster["server"]).netloc, trust


def _as_list(objects: tuple[dict[str, Any], ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
