{{/*
Only requests of the kubelet plugin, and the node that its token is bound to. Every projected token has that claim
(ServiceAccountTokenPodNodeInfo, Kubernetes 1.32).
*/}}
{{- define "fettle.pluginRequests" -}}
matchConditions:
  - name: kubelet-plugin
    expression: "request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "fettle.pluginName" . }}'"
variables:
  - name: tokenNode
    expression: "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([''])[0]"
{{- end }}

{{/* Refuses a token that is bound to no node, such as one made by hand. */}}
{{- define "fettle.boundToken" -}}
- expression: "variables.tokenNode != ''"
  message: >-
    this token of the kubelet plugin is bound to no node, so it may write nothing; the plugin must use the token that kubelet
    mounts into its pod
  reason: Forbidden
{{- end }}
