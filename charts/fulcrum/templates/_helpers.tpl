{{- define "fulcrum.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "fulcrum.operator" -}}
{{- printf "%s-operator" (include "fulcrum.name" .) -}}
{{- end -}}

{{- define "fulcrum.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "fulcrum.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the account to use, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "fulcrum.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "fulcrum.selector" -}}
app.kubernetes.io/name: fulcrum
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "fulcrum.labels" -}}
{{ include "fulcrum.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: fulcrum
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "fulcrum.dashboardRules" -}}
{{- if .Values.dashboard.enabled }}
# The last decisions on the dashboard.
- apiGroups: ['']
  resources: [events]
  verbs: [list, watch]
{{- end }}
{{- end -}}
