{{- define "deputize.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "deputize.labels" -}}
app.kubernetes.io/name: deputize
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deputize.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "deputize.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "deputize.processSecurity" -}}
{{- include "deputize.containerSecurity" . }}
{{- if .Values.sandboxes.enabled }}
  # bubblewrap makes namespaces and mounts of its own, without a capability outside of them.
  procMount: Unmasked
  seccompProfile: {{ toYaml .Values.sandboxes.seccompProfile | nindent 4 }}
  appArmorProfile: { type: Unconfined }
{{- end }}
{{- end }}
