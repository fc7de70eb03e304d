{{- define "jvmprof.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "jvmprof.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "jvmprof.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "jvmprof.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "jvmprof.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "jvmprof.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "jvmprof.selector" -}}
app.kubernetes.io/name: {{ include "jvmprof.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "jvmprof.labels" -}}
{{ include "jvmprof.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Capabilities beside the five. Linux 6.16 and later demand SYS_ADMIN for uprobes, by which allocation and pauses are seen. */ -}}
{{- define "jvmprof.extraCapabilities" -}}
{{- $capabilities := .Values.extraCapabilities | default list -}}
{{- if or (index .Values.config "alloc-enabled") (index .Values.config "alloc_enabled") (index .Values.config "pauses") -}}
{{- $capabilities = append $capabilities "SYS_ADMIN" -}}
{{- end -}}
{{- with $capabilities -}}
{{- toYaml (uniq .) -}}
{{- end -}}
{{- end -}}

{{- /* The daemon's settings: those of the values, and what they mount. */ -}}
{{- define "jvmprof.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.bearerToken.secretName -}}
{{- $_ := set $config "remote-store-bearer-token-file" (printf "/etc/jvmprof-token/%s" .Values.bearerToken.key) -}}
{{- end -}}
{{- if or .Values.certificateAuthority.configMapName .Values.certificateAuthority.secretName -}}
{{- $_ := set $config "remote-store-ca-file" (printf "/etc/jvmprof-ca/%s" .Values.certificateAuthority.key) -}}
{{- end -}}
{{- with .Values.httpPort -}}
{{- $_ := set $config "http-address" (printf "0.0.0.0:%d" (int .)) -}}
{{- end -}}
{{- if not .Values.containerRuntime.enabled -}}
{{- $_ := set $config "no-container-runtime" true -}}
{{- end -}}
{{- /* As JSON, which is TOML for these values: toToml makes floats of all numbers. */ -}}
{{- range $key, $value := $config }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- with .Values.extraConfig }}

{{ . | trim }}
{{- end }}
{{- end -}}
