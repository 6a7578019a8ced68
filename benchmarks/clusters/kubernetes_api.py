"""The Kubernetes API as benchmarks use it, where starting kubectl for each question would be what is measured."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

Manifest = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class KubernetesApi:
    """A client with the certificate of a kubeconfig of the harness; any number of threads may use it."""

    def __init__(self, kubeconfig: str) -> None:
        document = json.loads(Path(kubeconfig).read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._client = httpx.Client(base_url=cluster["server"], verify=tls, timeout=60, trust_env=False)

    def call(
        self, method: str, path: str, body: Manifest | None = None, content_type: str = "application/json"
    ) -> Manifest:
        """Raises httpx.HTTPError, also for a status that is no success."""
        content = None if body is None else json.dumps(body)
        answer = self._client.request(method, path, content=content, headers={"Content-Type": content_type})
        answer.raise_for_status()
        return dict(answer.json())

    def items(self, path: str, selector: str = "") -> list[Manifest]:
        return list(self._list(path, {"labelSelector": selector}, "application/json")["items"])

    def count(self, path: str, selector: str = "") -> int:
        return len(self._list(path, {"labelSelector": selector}, _METADATA_ONLY)["items"] or ())

    def follow(self, path: str, selector: str = "") -> Iterator[Manifest]:
        """Every object that there is, and then each one that changes, for ever; what is deleted is not told."""
        while True:
            listed = self._list(path, {"labelSelector": selector}, "application/json")
            yield from listed["items"]
            query = {
                "labelSelector": selector,
                "watch": "1",
                "resourceVersion": listed["metadata"]["resourceVersion"],
            }
            with self._client.stream("GET", path, params=query, timeout=None) as stream:
                for line in stream.iter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    if event["type"] != "DELETED":
                        yield event["object"]

    def _list(self, path: str, query: Mapping[str, str], accept: str) -> Manifest:
        answer = self._client.get(path, params=query, headers={"Accept": accept})
        answer.raise_for_status()
        return dict(answer.json())
