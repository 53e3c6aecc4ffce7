{{- define "fettle.webhookSecretName" -}}fettle-webhook-tls{{- end }}

{{/*
What the webhook serves with, and how the API server knows it: dict of tls.crt, tls.key and ca.crt in PEM, and of the token at the end of its
path, as YAML. It is made once for a rendering. The Secret of an earlier rendering is kept for five years, of the ten that its certificate
lasts. No program of Fettle may write it, nor the webhook configurations.
*/}}
{{- define "fettle.webhookCertificate" -}}
{{- if not (hasKey .Values "madeCertificate") -}}
{{- $host := printf "%s.%s.svc" (include "fettle.webhookName" .) .Release.Namespace -}}
{{- $chosen := default dict .Values.webhook.certificate -}}
{{- $made := now | unixEpoch -}}
{{- $old := lookup "v1" "Secret" .Release.Namespace (include "fettle.webhookSecretName" .) | default dict -}}
{{- $kept := dict -}}
{{- range $key, $value := $old.data | default dict -}}{{- $_ := set $kept $key (b64dec $value) -}}{{- end -}}
{{- $oldMade := dig "metadata" "annotations" "fettle.dev/made" "0" $old -}}
{{- $fresh := lt (sub ($made | int64) ($oldMade | int64)) 157680000 -}}
{{- $data := dict "token" (coalesce $chosen.token (get $kept "token") (randAlphaNum 64 | sha256sum)) -}}
{{- if not $chosen.secretName -}}
{{- if and $fresh (get $kept "tls.crt") (get $kept "tls.key") (get $kept "ca.crt") -}}
{{- $data = merge $data (pick $kept "tls.crt" "tls.key" "ca.crt") -}}
{{- $made = $oldMade -}}
{{- else -}}
{{- $ca := genCAWithKey (printf "%s-ca" (include "fettle.webhookName" .)) 3650 (genPrivateKey "ecdsa") -}}
{{- $pair := genSignedCertWithKey $host nil (list $host (printf "%s.cluster.local" $host)) 3650 $ca (genPrivateKey "ecdsa") -}}
{{- $data = merge $data (dict "tls.crt" $pair.Cert "tls.key" $pair.Key "ca.crt" $ca.Cert) -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values "madeCertificate" (dict "made" $made "data" $data) -}}
{{- end -}}
{{- toYaml .Values.madeCertificate -}}
{{- end }}

{{/* Where the API server calls the webhook, and by which authority it trusts it: dict "root" $ "path" PREFIX. */}}
{{- define "fettle.webhookClient" -}}
{{- $data := (include "fettle.webhookCertificate" .root | fromYaml).data -}}
{{- $bundle := coalesce (default dict .root.Values.webhook.certificate).caBundle (get $data "ca.crt") -}}
clientConfig:
  {{- with $bundle }}
  caBundle: {{ b64enc . }}
  {{- end }}
  service:
    name: {{ include "fettle.webhookName" .root }}
    namespace: {{ .root.Release.Namespace }}
    path: {{ .path }}/{{ $data.token }}
    port: 443
{{- end }}

{{/* Annotations of the webhook configurations, such as those by which cert-manager writes the bundle. */}}
{{- define "fettle.webhookAnnotations" -}}
{{- with (default dict .Values.webhook.certificate).annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
