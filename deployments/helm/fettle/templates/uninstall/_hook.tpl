{{/* Annotations of a pre-delete hook: a weight. What the Job needs is kept until it has succeeded. */}}
{{- define "fettle.preDelete" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* The Roles that the controller made for pull secrets. */}}
{{- define "fettle.revokeRules" -}}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, delete]
{{- end }}
