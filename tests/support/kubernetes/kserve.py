"""What KServe makes of a runtime and an InferenceService, as far as the examples depend on it (KServe 0.21).

Its controller takes the first runtime that selects itself for the model's format and protocol, adds the model's
arguments to the runtime's, merges ports by their numbers, and replaces template variables by the InferenceService's
metadata. Its webhook mounts what `storageUri` names at /mnt/models: a claim as it is, the rest as it was downloaded.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MODEL_PATH = "/mnt/models"
CONTAINER = "kserve-container"
_CLAIM = re.compile(r"pvc://([^/]+)/?(.*)")
_PLACEHOLDER = re.compile(r"\{\{\s*\.(\w+)\s*\}\}")

Manifest = Mapping[str, Any]


def choose_runtime(service: Manifest, runtimes: Sequence[Manifest]) -> Manifest:
    """The runtime of a service that names none. Raises LookupError where KServe would say `NoSupportingRuntime`."""
    model = service["spec"]["predictor"]["model"]
    for runtime in runtimes:
        formats = runtime["spec"]["supportedModelFormats"]
        selects = any(one["name"] == model["modelFormat"]["name"] and one.get("autoSelect") for one in formats)
        if selects and model.get("protocolVersion", "v1") in runtime["spec"]["protocolVersions"]:
            return runtime
    raise LookupError(f"no runtime for {model['modelFormat']} by {model.get('protocolVersion', 'v1')}")


def render_pod(service: Manifest, runtime: Manifest) -> dict[str, Any]:
    """The part of the predictor's PodSpec that the runtime and the service decide, its one container included."""
    spec, model = runtime["spec"], service["spec"]["predictor"]["model"]
    (container,) = copy.deepcopy(spec["containers"])
    assert container["name"] == CONTAINER
    container["args"] = [*container.get("args", []), *model.get("args", [])]
    ports = {port["containerPort"]: port for port in container.get("ports", [])}
    for port in model.get("ports", []):
        ports[port["containerPort"]] = {**ports.get(port["containerPort"], {}), **port}
    container["ports"] = list(ports.values())
    volumes, mounts = [*spec.get("volumes", [])], [*container.get("volumeMounts", [])]
    claim = _CLAIM.fullmatch(model["storageUri"])
    source = {"emptyDir": {}} if claim is None else {"persistentVolumeClaim": {"claimName": claim[1], "readOnly": True}}
    volumes.append({"name": "model", **source})
    mounts.append({"name": "model", "mountPath": MODEL_PATH, "subPath": claim[2] if claim else "", "readOnly": True})
    about = {"Name": service["metadata"]["name"]}
    filled = json.loads(_PLACEHOLDER.sub(lambda found: about[found[1]], json.dumps(container)))
    return {"containers": [{**filled, "volumeMounts": mounts}], "volumes": volumes}


def service_ports(container: Manifest) -> list[tuple[str, int, int]]:
    """Name, port and target port of what the Service of a Standard deployment has."""
    ports = container["ports"] or [{"name": "predictor", "containerPort": 8080}]
    return [
        (port.get("name", ""), 80 if index == 0 else port["containerPort"], port["containerPort"])
        for index, port in enumerate(ports)
    ]
