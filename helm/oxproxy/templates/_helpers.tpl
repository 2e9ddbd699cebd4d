{{- define "oxproxy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "oxproxy.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "oxproxy.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "oxproxy.selectorLabels" -}}
app.kubernetes.io/name: {{ include "oxproxy.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "oxproxy.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "oxproxy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: oxproxy
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The pod of `helm test`, as a peer of the NetworkPolicy. */}}
{{- define "oxproxy.testPeer" -}}
- podSelector:
    matchLabels:
      {{- include "oxproxy.selectorLabels" . | nindent 6 }}
      app.kubernetes.io/component: test
{{- end -}}

{{/* Alerts and dashboards select jobs whose name contains "oxproxy". */}}
{{- define "oxproxy.job" -}}
{{- $name := include "oxproxy.fullname" . -}}
{{- if contains "oxproxy" $name }}{{ $name }}{{ else }}{{ printf "oxproxy-%s" $name }}{{ end -}}
{{- end -}}

{{- define "oxproxy.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "oxproxy.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Image reference from a map with repository, tag and digest: (list $ $map). */}}
{{- define "oxproxy.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "oxproxy.controlSecret" -}}
{{- if .Values.control.existingSecret -}}
{{- .Values.control.existingSecret -}}
{{- else if .Values.control.password -}}
{{- printf "%s-control" (include "oxproxy.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* A password in values, configuration or environment is required; the sidecar would otherwise use its default. */}}
{{- define "oxproxy.needControlPassword" -}}
{{- $control := default dict (dig "upstream" "control" dict .Values.config) -}}
{{- $given := or $control.password $control.password_env $control.password_file -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "OXPROXY_UPSTREAM__CONTROL__PASSWORD" .name }}{{ $given = true }}{{ end -}}
{{- end -}}
{{- if not $given -}}
{{- fail (printf "control: no password for the control user %s, expected control.password or control.existingSecret" (default "guest" $control.username)) -}}
{{- end -}}
{{- end -}}

{{/* Secret that signs client bindings; empty if the configuration names other sources. */}}
{{- define "oxproxy.declaredSecret" -}}
{{- if .Values.declared.existingSecret -}}
{{- .Values.declared.existingSecret -}}
{{- else if not (default dict .Values.config.declared).secrets -}}
{{- if gt (len .Values.declared.keys) 1 -}}
{{- fail "declared.keys: got several keys, expected declared.existingSecret, the Secret that contains them" -}}
{{- end -}}
{{- printf "%s-declared" (include "oxproxy.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* True if the chart writes the configuration. */}}
{{- define "oxproxy.ownConfig" -}}
{{- if and .Values.existingConfig.configMap .Values.existingConfig.secret -}}
{{- fail "existingConfig: got configMap and secret, expected one of them" -}}
{{- end -}}
{{- if not (or .Values.existingConfig.configMap .Values.existingConfig.secret) }}true{{ end -}}
{{- end -}}

{{/* The container's admin port, which differs from the port for producers. */}}
{{- define "oxproxy.adminPort" -}}
{{- if eq (int .Values.ports.amqp) (int .Values.ports.admin) -}}
{{- fail (printf "ports.amqp: got %d, expected a port other than ports.admin" (int .Values.ports.amqp)) -}}
{{- end -}}
{{- int .Values.ports.admin -}}
{{- end -}}

{{/* The configuration: settings of the chart, overridden by `config` in the values. */}}
{{- define "oxproxy.config" -}}
{{- if hasKey .Values.config "shutdown" -}}
{{- fail "config.shutdown: use drain.deadlineSeconds, since the pod's grace period depends on it" -}}
{{- end -}}
{{- $host := eq .Values.mode "sidecar" | ternary "127.0.0.1" "0.0.0.0" -}}
{{- $listener := dict "address" (printf "%s:%v" $host (int .Values.ports.amqp)) -}}
{{- if .Values.tls.secretName -}}
{{- $tls := dict "certificate" "/etc/oxproxy/tls/tls.crt" "key" "/etc/oxproxy/tls/tls.key" -}}
{{- with .Values.tls.clientCa -}}
{{- $_ := set $tls "client_ca" (printf "/etc/oxproxy/tls/%s" .) -}}
{{- end -}}
{{- $_ := set $listener "tls" $tls -}}
{{- else if .Values.tls.clientCa -}}
{{- fail "tls.clientCa: requires tls.secretName, the Secret that contains this key" -}}
{{- end -}}
{{- $config := dict "listen" (list $listener) -}}
{{- $_ := set $config "admin" (include "oxproxy.admin" . | fromJson) -}}
{{- $_ := set $config "shutdown" (dict "deadline" (printf "%vs" (int .Values.drain.deadlineSeconds))) -}}
{{- if include "oxproxy.rulesSources" . -}}
{{- $_ := set $config "rules" (list "/etc/oxproxy/rules/*") -}}
{{- end -}}
{{- if include "oxproxy.controlSecret" . -}}
{{- $_ := set $config "upstream" (dict "control" (dict "password_file" "/etc/oxproxy/control/password")) -}}
{{- else -}}
{{- include "oxproxy.needControlPassword" . -}}
{{- end -}}
{{- if .Values.audit.enabled -}}
{{- $audit := dict "directory" "/var/lib/oxproxy-audit" -}}
{{- /* A pod that exceeds the limit of its ephemeral volume, 4 GiB, is evicted. */ -}}
{{- if not .Values.audit.volume -}}
{{- $_ := set $audit "keep_mib" 2048 -}}
{{- end -}}
{{- $_ := set $config "audit" $audit -}}
{{- end -}}
{{- range $section, $settings := .Values.config -}}
{{- if not (kindIs "invalid" $settings) -}}{{- /* not null */ -}}
{{- $config = mergeOverwrite $config (dict $section (deepCopy $settings)) -}}
{{- end -}}
{{- end -}}
{{- if and (include "oxproxy.declaredSecret" .) (not (default dict $config.declared).secrets) -}}
{{- $secrets := list -}}
{{- range .Values.declared.keys -}}
{{- $secrets = append $secrets (dict "file" (printf "/etc/oxproxy/declared/%s" .)) -}}
{{- end -}}
{{- $config = mergeOverwrite $config (dict "declared" (dict "secrets" $secrets)) -}}
{{- end -}}
{{- $tls := default dict (default dict $config.admin).tls -}}
{{- if and $tls.client_ca (ne (default "required" $tls.client_verify) "optional") -}}
{{- fail "config.admin.tls.client_ca: requires client_verify: optional, since the probes of Kubernetes have no certificate" -}}
{{- end -}}
{{- if and $tls.certificate (not .Values.admin.tlsSecret) -}}
{{- fail "config.admin.tls.certificate: requires admin.tlsSecret, since probes and monitors otherwise use http" -}}
{{- end -}}
{{- $config | toYaml -}}
{{- end -}}

{{/* The section `admin` of the configuration, as JSON. */}}
{{- define "oxproxy.admin" -}}
{{- $admin := dict "address" (printf "0.0.0.0:%v" (int .Values.ports.admin)) -}}
{{- if .Values.admin.tlsSecret -}}
{{- $_ := set $admin "tls" (dict "certificate" "/etc/oxproxy/admin-tls/tls.crt" "key" "/etc/oxproxy/admin-tls/tls.key") -}}
{{- end -}}
{{- if include "oxproxy.tokensSecret" . -}}
{{- $tokens := list -}}
{{- range .Values.admin.tokens -}}
{{- $tokens = append $tokens (dict "name" .name "role" .role "token_file" (printf "/etc/oxproxy/admin-tokens/%s" .key)) -}}
{{- end -}}
{{- $_ := set $admin "tokens" $tokens -}}
{{- if .Values.admin.metricsKey -}}
{{- $_ := set $admin "metrics_role" "view" -}}
{{- end -}}
{{- end -}}
{{- $admin | toJson -}}
{{- end -}}

{{/* Secret with tokens for the admin address; empty if there are none. */}}
{{- define "oxproxy.tokensSecret" -}}
{{- $admin := .Values.admin -}}
{{- if ne (empty $admin.tokens) (empty $admin.tokensSecret) -}}
{{- fail "admin: got one of tokens and tokensSecret, expected both or neither" -}}
{{- end -}}
{{- $keys := list -}}
{{- range $admin.tokens }}{{ $keys = append $keys .key }}{{ end -}}
{{- if and $admin.metricsKey (not (has $admin.metricsKey $keys)) -}}
{{- fail (printf "admin.metricsKey: got %s, expected the key of a token in admin.tokens" $admin.metricsKey) -}}
{{- end -}}
{{- $admin.tokensSecret -}}
{{- end -}}

{{- define "oxproxy.adminScheme" -}}
{{- if .Values.admin.tlsSecret }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* How Prometheus connects to the admin address: scheme, verification and token of an endpoint. */}}
{{- define "oxproxy.scrape" -}}
{{- if .Values.admin.tlsSecret }}
{{- if not .Values.admin.monitorTls }}
{{- fail "admin.monitorTls: not set, expected how Prometheus verifies the certificate of admin.tlsSecret" }}
{{- end }}
scheme: https
tlsConfig:
  {{- toYaml .Values.admin.monitorTls | nindent 2 }}
{{- end }}
{{- if and (default dict .Values.config.admin).metrics_role (not .Values.admin.metricsKey) }}
{{- fail "config.admin.metrics_role: requires admin.metricsKey, the key of the token that Prometheus presents" }}
{{- end }}
{{- if and (include "oxproxy.tokensSecret" .) .Values.admin.metricsKey }}
authorization:
  credentials: {name: {{ .Values.admin.tokensSecret | quote }}, key: {{ .Values.admin.metricsKey | quote }}}
{{- end }}
{{- end -}}

{{/* Sources of the projected volume with rules files; empty if there are none. */}}
{{- define "oxproxy.rulesSources" -}}
{{- if .Values.rules.files }}
- configMap:
    name: {{ include "oxproxy.fullname" . }}-rules
{{- end }}
{{- range .Values.rules.existingConfigMaps }}
- configMap:
    name: {{ . | quote }}
{{- end }}
{{- range .Values.rules.existingSecrets }}
- secret:
    name: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Hashes of the files that pods read at startup. Objects that are not part of the chart are read from the cluster. */}}
{{- define "oxproxy.checksums" -}}
{{- $namespace := .Release.Namespace -}}
{{- $config := dict -}}
{{- if include "oxproxy.ownConfig" . -}}
{{- $_ := set $config "config" (include "oxproxy.config" .) -}}
{{- else if .Values.existingConfig.configMap -}}
{{- $_ := set $config "config" (lookup "v1" "ConfigMap" $namespace .Values.existingConfig.configMap).data -}}
{{- else -}}
{{- $_ := set $config "config" (lookup "v1" "Secret" $namespace .Values.existingConfig.secret).data -}}
{{- end -}}
{{- if .Values.control.existingSecret -}}
{{- $_ := set $config "control" (lookup "v1" "Secret" $namespace .Values.control.existingSecret).data -}}
{{- else -}}
{{- $_ := set $config "control" .Values.control.password -}}
{{- end -}}
{{- if .Values.declared.existingSecret -}}
{{- $_ := set $config "declared" (lookup "v1" "Secret" $namespace .Values.declared.existingSecret).data -}}
{{- end -}}
checksum/config: {{ $config | toJson | sha256sum }}
{{- if .Values.rules.restartOnChange }}
{{- $rules := dict "files" .Values.rules.files }}
{{- range .Values.rules.existingConfigMaps }}
{{- $_ := set $rules (printf "configmap/%s" .) (lookup "v1" "ConfigMap" $namespace .).data }}
{{- end }}
{{- range .Values.rules.existingSecrets }}
{{- $_ := set $rules (printf "secret/%s" .) (lookup "v1" "Secret" $namespace .).data }}
{{- end }}
checksum/rules: {{ $rules | toJson | sha256sum }}
{{- end }}
{{- end -}}

{{/* Seconds from the termination of a pod until it is killed. */}}
{{- define "oxproxy.gracePeriod" -}}
{{- $needed := add (int .Values.drain.preStopSeconds) (int .Values.drain.deadlineSeconds) 5 -}}
{{- $given := .Values.drain.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}
{{- add $needed 10 -}}
{{- else if le (int $given) (int $needed) -}}
{{- fail (printf "drain.terminationGracePeriodSeconds: got %d, expected more than %d: preStopSeconds, deadlineSeconds and 5" (int $given) (int $needed)) -}}
{{- else -}}
{{- int $given -}}
{{- end -}}
{{- end -}}
