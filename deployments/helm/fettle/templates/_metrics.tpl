{{/* To whom and how a program serves its metrics. */}}
{{- define "fettle.metricsArgs" -}}
- --metrics-authentication={{ .Values.metrics.authentication }}
{{- if and .Values.metrics.authentication .Values.metrics.certificateSecret }}
- --metrics-certificate-dir=/etc/fettle-metrics
{{- end }}
{{- end }}

{{/* The certificate of metrics, or nothing. */}}
{{- define "fettle.metricsVolumeMounts" -}}
{{- if and .Values.metrics.authentication .Values.metrics.certificateSecret }}
- name: metrics-certificate
  mountPath: /etc/fettle-metrics
  readOnly: true
{{- end }}
{{- end }}
{{- define "fettle.metricsVolumes" -}}
{{- if and .Values.metrics.authentication .Values.metrics.certificateSecret }}
- name: metrics-certificate
  secret:
    secretName: {{ .Values.metrics.certificateSecret }}
{{- end }}
{{- end }}

{{/* "true" if the chart makes a token for the monitors that it renders, else empty. */}}
{{- define "fettle.metricsToken" -}}
{{- if and .Values.metrics.authentication (or .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled) -}}true{{- end -}}
{{- end }}

{{/* How a monitor's endpoint reaches metrics. */}}
{{- define "fettle.monitorAccess" -}}
{{- if .Values.metrics.authentication -}}
scheme: https
authorization:
  credentials:
    name: {{ include "fettle.metricsReaderName" . }}
    key: token
tlsConfig:
  insecureSkipVerify: {{ empty .Values.metrics.certificateSecret }}
  {{- with .Values.metrics.certificateSecret }}
  ca:
    secret:
      name: {{ . }}
      key: ca.crt
  serverName: fettle-metrics
  {{- end }}
{{- end }}
{{- end }}

{{/* What lets a program ask the API server who a caller is, and whether it may read metrics. */}}
{{- define "fettle.metricsRules" -}}
{{- if .Values.metrics.authentication -}}
# Who asks for metrics, and whether they may.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- end }}
