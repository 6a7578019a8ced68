"""Gives every claim of the harness's StorageClass a folder of its own, as a storage driver would.

Pods run under restricted Pod Security and may name claims but no host paths. One watch on claims does it: a claim that
waits gets a PersistentVolume bound to it, a claim that goes takes its volume, and the folder we made for it, along.
The Kubernetes client is not used, so that a node works without the project's environment.
"""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.cluster.harness.commands import say
from tests.cluster.harness.configuration import PROVISIONER
from tests.cluster.harness.layout import NODE, POD_UID, STORAGE_CLASS, Addresses, Layout
from tests.cluster.harness.volumes import OURS, volume

CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
WATCH_S = 240


@dataclass(frozen=True, slots=True)
class Api:
    tls: ssl.SSLContext
    addresses: Addresses

    @classmethod
    def of(cls, layout: Layout) -> Api:
        tls = ssl.create_default_context(cafile=layout.pki / "ca.crt")
        tls.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        return cls(tls, layout.addresses)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = self._connection(30)
        try:
            connection.request(
                method, path, body=json.dumps(body) if body else None, headers={"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            content = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status >= 400:
            raise OSError(f"{method} {path}: {answer.status} {content.get('message', '')}")
        return dict(content)

    def watch(self, path: str, since: str) -> Iterator[dict[str, Any]]:
        connection = self._connection(WATCH_S + 30)
        query = urlencode({"watch": 1, "resourceVersion": since, "timeoutSeconds": WATCH_S})
        try:
            connection.request("GET", f"{path}?{query}")
            answer = connection.getresponse()
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    # Our place in the history is gone: the caller lists again.
                    return
                yield event
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        host, port = self.addresses.host, self.addresses.api_port
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.tls)


def follow(layout: Layout, api: Api) -> None:
    """Follows a list of all claims and their changes until the watch ends."""
    claims = api.call("GET", CLAIMS)
    here = {claim["metadata"]["uid"] for claim in claims["items"]}
    for found in api.call("GET", VOLUMES)["items"]:
        if found["metadata"].get("labels", {}).items() >= OURS.items() and (
            found.get("status", {}).get("phase") == "Released" or _claim_uid(found) not in {*here, None}
        ):
            _remove(layout, api, found["metadata"]["name"])
    for claim in claims["items"]:
        _provide(layout, api, claim)
    for event in api.watch(CLAIMS, claims["metadata"]["resourceVersion"]):
        claim = event["object"]
        if event["type"] == "DELETED":
            # The API server let it go, so no pod uses it any more.
            _remove(layout, api, claim["spec"].get("volumeName") or _name(claim))
        else:
            _provide(layout, api, claim)


def _provide(layout: Layout, api: Api, claim: dict[str, Any]) -> None:
    metadata, spec = claim["metadata"], claim["spec"]
    waits = claim.get("status", {}).get("phase", "Pending") == "Pending" and not spec.get("volumeName")
    if not waits or spec.get("storageClassName") != STORAGE_CLASS or "deletionTimestamp" in metadata:
        return
    folder = layout.volumes / _name(claim)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.chown(folder, POD_UID, POD_UID)
    folder.chmod(0o770)
    wanted = volume(
        _name(claim),
        folder,
        claim={"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
        storage_class=STORAGE_CLASS,
        capacity=spec["resources"]["requests"]["storage"],
    )
    wanted["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": PROVISIONER}
    try:
        api.call("POST", VOLUMES, wanted)
    except OSError as refused:
        if ": 409 " not in str(refused):  # made at an earlier sight of the claim, and not bound yet
            raise
    else:
        say(f"volume {_name(claim)} for {metadata['namespace']}/{metadata['name']} on {NODE}")


def _remove(layout: Layout, api: Api, name: str) -> None:
    try:
        found = api.call("GET", f"{VOLUMES}/{name}")
        if not found["metadata"].get("labels", {}).items() >= OURS.items():
            return
        api.call("DELETE", f"{VOLUMES}/{name}")
    except OSError as refused:
        if ": 404 " not in str(refused):
            raise
    # Only a folder that we made: volumes over folders of the user's go without them.
    if name.startswith("claim-"):
        shutil.rmtree(layout.volumes / name, ignore_errors=True)


def _name(claim: dict[str, Any]) -> str:
    return f"claim-{claim['metadata']['uid']}"


def _claim_uid(found: dict[str, Any]) -> str | None:
    uid = found["spec"].get("claimRef", {}).get("uid")
    return str(uid) if uid else None


def main() -> None:
    layout = Layout(Path(sys.argv[1]))
    api = Api.of(layout)
    while True:
        try:
            follow(layout, api)
        except (OSError, http.client.HTTPException, ValueError) as lost:
            say(f"looking again in a second: {lost}")
            time.sleep(1)


if __name__ == "__main__":
    main()
