"""Whether a pod fits the `restricted` Pod Security Standard, from the standard's own text and not from our builders.

https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from __future__ import annotations

from typing import Any

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def violations(pod_spec: dict[str, Any]) -> list[str]:
    found = []
    pod = pod_spec.get("securityContext") or {}
    found += [field for field in ("hostNetwork", "hostPID", "hostIPC") if pod_spec.get(field)]
    for volume in pod_spec.get("volumes") or ():
        if kinds := set(volume) - {"name"} - _VOLUMES:
            found.append(f"volume {volume['name']}: {', '.join(kinds)}")
    for container in [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]:
        own = container.get("securityContext") or {}
        name = container["name"]
        if own.get("privileged"):
            found.append(f"{name}: privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name}: allowPrivilegeEscalation")
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            found.append(f"{name}: runAsNonRoot")
        if own.get("runAsUser", pod.get("runAsUser")) == 0:
            found.append(f"{name}: runAsUser")
        profile = own.get("seccompProfile", pod.get("seccompProfile")) or {}
        if profile.get("type") not in {"RuntimeDefault", "Localhost"}:
            found.append(f"{name}: seccompProfile")
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()):
            found.append(f"{name}: capabilities.drop")
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            found.append(f"{name}: capabilities.add")
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            found.append(f"{name}: hostPort")
    return found
