{{/*
What the operator may do where it watches: exactly what it calls, nothing by wildcard, no secrets.
Server-side apply needs "patch", and "create" where the object is not there yet. Deleted are
Jobs of old recipes, and NetworkPolicies and PodMonitors that are no longer wanted; the rest goes with its GNNService or GNNWorkerPool, or stays (a claim).
*/}}
{{- define "gnnserve.rules" -}}
- apiGroups: [gnnserve.dev]
  resources: [gnnservices, gnnworkerpools]
  verbs: [get, list, watch]
- apiGroups: [gnnserve.dev]
  resources: [gnnservices/status, gnnworkerpools/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# Listed of a Job that has no pod: nothing else tells why the API server refuses it.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
# The operator grants workers the right to read ConfigMaps, and cannot grant rights that it lacks.
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims, serviceaccounts, services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, create, patch, delete]
{{- end }}

{{/*
What the operator may do in the release's namespace, to be the only one that works. No one can be given the right to create
one name only.
*/}}
{{- define "gnnserve.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "gnnserve.name" . }}]
  verbs: [get, update]
# Whether the pod that holds the Lease is gone.
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
{{- end }}
