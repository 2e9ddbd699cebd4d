{{/* Parts of the container that are the same for gateways and sidecars. */}}
{{- define "oxproxy.container" -}}
name: oxproxy
image: {{ include "oxproxy.image" (list . .Values.image) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config, {{ printf "/etc/oxproxy/config/%s" .Values.existingConfig.key | quote }}]
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: amqp
    containerPort: {{ .Values.ports.amqp }}
    protocol: TCP
  - name: oxproxy-admin
    containerPort: {{ include "oxproxy.adminPort" . }}
    protocol: TCP
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- $scheme := include "oxproxy.adminScheme" . | upper }}
startupProbe:
  httpGet: {path: /livez, port: oxproxy-admin, scheme: {{ $scheme }}}
  {{- toYaml .Values.startupProbe | nindent 2 }}
livenessProbe:
  httpGet: {path: /livez, port: oxproxy-admin, scheme: {{ $scheme }}}
  {{- toYaml .Values.livenessProbe | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: oxproxy-admin, scheme: {{ $scheme }}}
  {{- toYaml .Values.readinessProbe | nindent 2 }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - {name: oxproxy-config, mountPath: /etc/oxproxy/config, readOnly: true}
  {{- /* Whole directories instead of subPath, so that changed files appear in running containers. */}}
  {{- if include "oxproxy.rulesSources" . }}
  - {name: oxproxy-rules, mountPath: /etc/oxproxy/rules, readOnly: true}
  {{- end }}
  {{- if include "oxproxy.controlSecret" . }}
  - {name: oxproxy-control, mountPath: /etc/oxproxy/control, readOnly: true}
  {{- end }}
  {{- if include "oxproxy.declaredSecret" . }}
  - {name: oxproxy-declared, mountPath: /etc/oxproxy/declared, readOnly: true}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - {name: oxproxy-tls, mountPath: /etc/oxproxy/tls, readOnly: true}
  {{- end }}
  {{- if .Values.admin.tlsSecret }}
  - {name: oxproxy-admin-tls, mountPath: /etc/oxproxy/admin-tls, readOnly: true}
  {{- end }}
  {{- if include "oxproxy.tokensSecret" . }}
  - {name: oxproxy-admin-tokens, mountPath: /etc/oxproxy/admin-tokens, readOnly: true}
  {{- end }}
  {{- if .Values.trust }}
  - {name: oxproxy-trust, mountPath: /etc/oxproxy/trust, readOnly: true}
  {{- end }}
  - {name: oxproxy-state, mountPath: /var/lib/oxproxy}
  {{- if .Values.audit.enabled }}
  - {name: oxproxy-audit, mountPath: /var/lib/oxproxy-audit}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "oxproxy.volumes" -}}
- name: oxproxy-config
  {{- if .Values.existingConfig.configMap }}
  configMap: {name: {{ .Values.existingConfig.configMap | quote }}}
  {{- else if .Values.existingConfig.secret }}
  secret: {secretName: {{ .Values.existingConfig.secret | quote }}}
  {{- else }}
  configMap: {name: {{ include "oxproxy.fullname" . }}-config}
  {{- end }}
{{- with include "oxproxy.rulesSources" . }}
- name: oxproxy-rules
  projected:
    sources:
      {{- . | trim | nindent 6 }}
{{- end }}
{{- with include "oxproxy.controlSecret" . }}
- name: oxproxy-control
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $.Values.control.key | quote }}, path: password}
{{- end }}
{{- with include "oxproxy.declaredSecret" . }}
- name: oxproxy-declared
  secret:
    secretName: {{ . | quote }}
    items:
      {{- range $.Values.declared.keys }}
      - {key: {{ . | quote }}, path: {{ . | quote }}}
      {{- end }}
{{- end }}
{{- with .Values.tls.secretName }}
- name: oxproxy-tls
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- with .Values.admin.tlsSecret }}
- name: oxproxy-admin-tls
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- with include "oxproxy.tokensSecret" . }}
- name: oxproxy-admin-tokens
  secret:
    secretName: {{ . | quote }}
    items:
      {{- range $.Values.admin.tokens }}
      - {key: {{ .key | quote }}, path: {{ .key | quote }}}
      {{- end }}
{{- end }}
{{- with .Values.trust }}
- name: oxproxy-trust
  {{- toYaml . | nindent 2 }}
{{- end }}
- name: oxproxy-state
  emptyDir: {sizeLimit: 64Mi}
{{- if .Values.audit.enabled }}
- name: oxproxy-audit
  {{- toYaml (default (dict "emptyDir" (dict "sizeLimit" "4Gi")) .Values.audit.volume) | nindent 2 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
For pods of other charts: a native sidecar container (Kubernetes 1.29 and newer; 1.28 with the feature gate
SidecarContainers). It is ready before the other containers of the pod start, and stops after them. In a chart that
depends on this one: include "oxproxy.sidecar.container" .Subcharts.oxproxy
*/}}
{{- define "oxproxy.sidecar.container" -}}
{{ include "oxproxy.container" . }}
restartPolicy: Always
{{- end -}}

{{- define "oxproxy.sidecar.volumes" -}}
{{ include "oxproxy.volumes" . }}
{{- end -}}

{{/* Annotations for the pod, which restart it when configuration or rules change. */}}
{{- define "oxproxy.sidecar.annotations" -}}
{{ include "oxproxy.checksums" . }}
{{- end -}}

{{/* Labels by which the PodMonitor of this chart finds the pod. */}}
{{- define "oxproxy.sidecar.labels" -}}
{{ toYaml .Values.podMonitor.selector }}
{{- end -}}

{{/* Seconds that the sidecar may run after the pod's other containers; must be added to the grace period. */}}
{{- define "oxproxy.sidecar.seconds" -}}
{{ add (int .Values.drain.deadlineSeconds) 15 }}
{{- end -}}
