{{/* Annotations of a pre-delete hook: a weight. What the Job needs is kept until it has succeeded. */}}
{{- define "fettle.preDelete" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
