{{/*
Names, labels and images. A release's name has at most 53 characters, so this one has at most 62 and nothing is cut.
*/}}
{{- define "gnnserve.name" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name }}{{- else -}}{{ .Release.Name }}-{{ .Chart.Name }}{{- end -}}
{{- end }}

{{/*
For objects outside of the release's namespace. Two releases may have one name in two namespaces, and ":" is in neither.
*/}}
{{- define "gnnserve.qualifiedName" -}}
{{ .Release.Namespace }}:{{ include "gnnserve.name" . }}
{{- end }}

{{- define "gnnserve.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "gnnserve.name" .) }}
{{- else -}}
{{ required "serviceAccount.create is false, so serviceAccount.name must name an existing ServiceAccount" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- define "gnnserve.selectorLabels" -}}
app.kubernetes.io/name: gnnserve
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "gnnserve.labels" -}}
{{ include "gnnserve.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
Of a dict with "image" and "root".
*/}}
{{- define "gnnserve.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/*
The same, or null where no repository is named.
*/}}
{{- define "gnnserve.optionalImage" -}}
{{- if .image.repository -}}{{ include "gnnserve.image" . | quote }}{{- else -}}null{{- end -}}
{{- end }}

{{/*
The file that gnnserve_operator/settings.py reads.
*/}}
{{- define "gnnserve.settings" -}}
workerImage: {{ include "gnnserve.image" (dict "image" .Values.worker.image "root" .) | quote }}
gpuWorkerImage: {{ include "gnnserve.optionalImage" (dict "image" .Values.worker.gpuImage "root" .) }}
generationImage: {{ include "gnnserve.optionalImage" (dict "image" .Values.generation.image "root" .) }}
imagePullPolicy: {{ .Values.worker.image.pullPolicy }}
workerExtraVolumes: {{ .Values.worker.extraVolumes | default list | toJson }}
workerExtraVolumeMounts: {{ .Values.worker.extraVolumeMounts | default list | toJson }}
workerExtraEnv: {{ .Values.worker.extraEnv | default list | toJson }}
runAs: {{ .Values.podSecurity.runAs }}
namespaces: {{ .Values.watchNamespaces | default list | toJson }}
{{- if and (include "gnnserve.sharedRole" .) .Values.rbac.create }}
namespaceGrant:
  clusterRole: {{ include "gnnserve.qualifiedName" . | quote }}
  serviceAccount: {{ printf "%s:%s" .Release.Namespace (include "gnnserve.serviceAccountName" .) | quote }}
{{- else }}
namespaceGrant: null
{{- end }}
clusterDomain: {{ .Values.clusterDomain | quote }}
networkPolicy: {{ .Values.networkPolicy.enabled }}
apiServerPorts: {{ .Values.networkPolicy.apiServerPorts | toJson }}
postgresPorts: {{ .Values.networkPolicy.postgresPorts | default list | toJson }}
meshPorts: {{ .Values.networkPolicy.meshPorts | default list | toJson }}
prometheusUrl: {{ with .Values.prometheus.url }}{{ . | quote }}{{ else }}null{{ end }}
prometheusNamespaceLabel: {{ .Values.prometheus.namespaceLabel }}
resyncSeconds: {{ .Values.resyncSeconds }}
concurrency: {{ .Values.concurrency }}
maxConcurrentJobs: {{ .Values.generation.maxConcurrentJobs }}
generationResources: {{ .Values.generation.resources | default dict | toJson }}
maxConcurrentRollouts: {{ .Values.rollout.maxConcurrentServices }}
leaderElection:
  leaseName: {{ include "gnnserve.name" . }}
  namespace: {{ .Release.Namespace }}
  leaseSeconds: {{ .Values.leaderElection.leaseSeconds }}
  renewDeadlineSeconds: {{ .Values.leaderElection.renewDeadlineSeconds }}
  retrySeconds: {{ .Values.leaderElection.retrySeconds }}
httpPort: 8080
logFormat: {{ .Values.logs.format }}
logLevel: {{ .Values.logs.level }}
{{- end }}

{{/*
Not empty where the rights in the watched namespaces are those of one ClusterRole, which RoleBindings grant there.
*/}}
{{- define "gnnserve.sharedRole" -}}
{{- if ne .Values.rbac.bindings "Role" -}}
{{- if not .Values.watchNamespaces -}}
{{ fail (printf "rbac.bindings is %s, which is about watchNamespaces, and that is empty: name the namespaces there" .Values.rbac.bindings) }}
{{- end -}}
true
{{- end -}}
{{- end }}

{{/*
Refuses times by which two operators could work at once, or one would give up after a single failure. Also the operator does.
*/}}
{{- define "gnnserve.requireElectionTimes" -}}
{{- with .Values.leaderElection -}}
{{- if or (ge (float64 .renewDeadlineSeconds) (float64 .leaseSeconds)) (gt (mulf 2 .retrySeconds) (float64 .renewDeadlineSeconds)) -}}
{{ fail (printf "leaderElection: expected 2 x retrySeconds <= renewDeadlineSeconds < leaseSeconds, found %v, %v and %v" .retrySeconds .renewDeadlineSeconds .leaseSeconds) }}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Refuses a release whose rules and dashboard would find no worker. Joins of workers' series with the operator's own, which
always have `namespace`, need one name for it.
*/}}
{{- define "gnnserve.requireNamespaceLabel" -}}
{{- if ne .Values.prometheus.namespaceLabel "namespace" -}}
{{ fail (printf "prometheus.namespaceLabel is %s, but metrics.prometheusRule and metrics.dashboard read the label namespace of workers' series: leave both of them disabled, or have workers scraped with that label, as PodMonitors do" .Values.prometheus.namespaceLabel) }}
{{- end -}}
{{- end }}

{{/*
Both pods of this chart are restricted in the sense of the Pod Security Standards, also where the platform chooses their user.
*/}}
{{- define "gnnserve.podSecurityContext" -}}
runAsNonRoot: true
{{- if eq .Values.podSecurity.runAs "Fixed" }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gnnserve.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
