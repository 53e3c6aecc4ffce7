{{/*
Names are fixed, not derived from the release: a node has one Fettle (the driver's name is fixed), so a second release
in the same cluster must collide, and Helm then says which release owns the object.
*/}}
{{- define "fettle.pluginName" -}}fettle-kubeletplugin{{- end }}
{{- define "fettle.controllerName" -}}fettle-controller{{- end }}
{{- define "fettle.webhookName" -}}fettle-webhook{{- end }}
{{- define "fettle.mpsName" -}}fettle-mps{{- end }}
{{- /* Where the host has the mounts of claims with MPS: in the driver root, so that the daemons and the container runtime see them. */}}
{{- define "fettle.mpsMemory" -}}{{ trimSuffix "/" .Values.nvidia.driverRoot }}/run/fettle/mps-memory{{- end }}
{{- define "fettle.metricsReaderName" -}}fettle-metrics-reader{{- end }}
{{- define "fettle.uninstallName" -}}fettle-uninstall{{- end }}
{{- define "fettle.selfTestName" -}}fettle-selftest{{- end }}

{{/* The spec of the self-test's ResourceClaimTemplate. */}}
{{- define "fettle.selfTestSpec" -}}
spec:
  devices:
    requests:
      - name: look
        exactly:
          deviceClassName: {{ .Values.selfTest.deviceClassName }}
          adminAccess: true
          allocationMode: {{ .Values.selfTest.allocationMode }}
          {{- if eq .Values.selfTest.allocationMode "ExactCount" }}
          count: 1
          {{- end }}
          # Admin access does not get past taints, and All fails for all devices if one is tainted.
          tolerations:
            - operator: Exists
{{- end }}

{{/* A template's spec is immutable, so another spec needs another name: an upgrade makes the new one and removes the old one. */}}
{{- define "fettle.selfTestTemplateName" -}}
{{ include "fettle.selfTestName" . }}-{{ include "fettle.selfTestSpec" . | sha256sum | trunc 8 }}
{{- end }}

{{/* Names of the CustomResourceDefinitions that the controller applies, as a YAML list. */}}
{{- define "fettle.crds" -}}
- acceleratornodes.fettle.dev
- acceleratorstacks.fettle.dev
- clusterdevicepresets.fettle.dev
- clusterfpgabitstreams.fettle.dev
- clustergpukernelcaches.fettle.dev
- devicepresets.fettle.dev
- fpgabitstreams.fettle.dev
- gpukernelcaches.fettle.dev
- partitionpolicies.fettle.dev
- trustpolicies.fettle.dev
{{- end }}

{{/* How registries are reached: the same files for the controller and for the kubelet plugin, which read bitstreams and kernel
caches from them. */}}
{{- define "fettle.registries" -}}
{{- $registries := .Values.bitstreams.registries -}}
registries.yaml: |
  {{- $file := dict -}}
  {{- with $registries.plainHTTP }}{{ $_ := set $file "plainHTTP" . }}{{ end -}}
  {{- with $registries.mirrors }}{{ $_ := set $file "mirrors" . }}{{ end -}}
  {{- with $registries.mirrorsOnly }}{{ $_ := set $file "mirrorsOnly" . }}{{ end -}}
  {{- with $registries.allowedDestinations }}{{ $_ := set $file "allowedDestinations" . }}{{ end -}}
  {{- with $registries.clusterCIDRs }}{{ $_ := set $file "clusterCIDRs" . }}{{ end -}}
  {{- if $registries.caBundle }}{{ $_ := set $file "caFile" "ca.crt" }}{{ end }}
  {{- toYaml $file | nindent 2 }}
{{- with $registries.caBundle }}
ca.crt: |
  {{- . | trim | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whose certificates and logs TrustPolicies without a trusted root of their own believe: the same file for both, or none. */}}
{{- define "fettle.trust" -}}
{{- with .Values.trust.publicRoot }}
trusted-root.json: |
  {{- . | trim | nindent 2 }}
{{- end }}
{{- end }}

{{/* What lets the controller grant the kubelet plugin what it may read itself, an object at a time: pull secrets of bitstreams and kernel
caches, ConfigMaps of presets. Nobody can grant what they do not have. */}}
{{- define "fettle.grantRules" -}}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, update, delete]
{{- end }}

{{/* Names from files/names.yaml, which is generated: dict "root" $ "list" NAME. The result is JSON. */}}
{{- define "fettle.names" -}}
{{- get (.root.Files.Get "files/names.yaml" | fromYaml) .list | toJson -}}
{{- end }}

{{/* Vendors whose presets are shipped, between commas. On a simulated machine there is no driver of theirs, which pods would wait for. */}}
{{- define "fettle.presetVendors" -}}
{{- $vendors := .Values.presets.vendors -}}
{{- if kindIs "invalid" $vendors -}}
{{- $vendors = ternary (include "fettle.names" (dict "root" . "list" "presets") | fromJsonArray) list (eq .Values.hostRoot "/") -}}
{{- end -}}
{{- join "," $vendors -}}
{{- end }}

{{/* "true" if pods are told of a device without the preset that it needs: on real machines, and where presets.vendors is set. */}}
{{- define "fettle.presetsExpected" -}}
{{- if or (eq .Values.hostRoot "/") (not (kindIs "invalid" .Values.presets.vendors)) -}}true{{- end -}}
{{- end }}

{{/* The vendors whose preset is neither shipped nor in the cluster, between commas. An older API server, or helm template, tells of none in
the cluster. */}}
{{- define "fettle.presetsMissing" -}}
{{- if include "fettle.presetsExpected" . -}}
{{- $shipped := splitList "," (include "fettle.presetVendors" .) -}}
{{- $missing := list -}}
{{- range $vendor := include "fettle.names" (dict "root" . "list" "presets") | fromJsonArray -}}
{{- $there := false -}}
{{- if $.Capabilities.APIVersions.Has "fettle.dev/v1alpha1/ClusterDevicePreset" -}}
{{- $there = lookup "fettle.dev/v1alpha1" "ClusterDevicePreset" "" (printf "%s.fettle.dev" $vendor) -}}
{{- end -}}
{{- if not (or (has $vendor $shipped) $there) -}}{{- $missing = append $missing $vendor -}}{{- end -}}
{{- end -}}
{{- join "," $missing -}}
{{- end -}}
{{- end }}

{{/* The names of the presets that are shipped, between commas. */}}
{{- define "fettle.presetNames" -}}
{{- $names := list -}}
{{- range include "fettle.names" (dict "root" . "list" "presets") | fromJsonArray }}{{ $names = append $names (printf "%s.fettle.dev" .) }}{{ end -}}
{{- join ", " $names -}}
{{- end }}

{{/* The names of the classes of parts of GPUs, between commas. */}}
{{- define "fettle.partClassNames" -}}
{{- $names := list -}}
{{- range include "fettle.names" (dict "root" . "list" "parts") | fromJsonArray }}{{ $names = append $names (printf "%s.gpu.fettle.dev" .) }}{{ end -}}
{{- join ", " $names -}}
{{- end }}

{{/* Types of parts of GPUs that have a DeviceClass, between commas. */}}
{{- define "fettle.partClasses" -}}
{{- $parts := list -}}
{{- range include "fettle.names" (dict "root" . "list" "parts") | fromJsonArray -}}
{{- if get $.Values.deviceClasses . -}}
{{- $parts = append $parts . -}}
{{- end -}}
{{- end -}}
{{- join "," $parts -}}
{{- end }}

{{/* The namespaces of a list, as JSON; none where "*" makes it all. */}}
{{- define "fettle.listed" -}}
{{- $list := default list . -}}
{{- if has "*" $list }}[]{{ else }}{{ toJson $list }}{{ end -}}
{{- end }}

{{/* Labels that select a component's pods: dict "root" $ "component" NAME. Never changes, since selectors are immutable. */}}
{{- define "fettle.selectorLabels" -}}
app.kubernetes.io/name: fettle
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of every object: dict "root" $ "component" NAME. */}}
{{- define "fettle.labels" -}}
{{ include "fettle.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fettle
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a component's pods. Without versions, so that an upgrade restarts only what changed. */}}
{{- define "fettle.podLabels" -}}
{{ include "fettle.selectorLabels" . }}
app.kubernetes.io/part-of: fettle
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An image reference: dict "root" $ "name" NAME "image" VALUES. The digest wins over the tag. */}}
{{- define "fettle.image" -}}
{{- $repository := default (printf "%s/%s" .root.Values.image.registry .name) .image.repository -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ coalesce .image.tag .root.Values.image.tag .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Pull secrets of a pod, or nothing. */}}
{{- define "fettle.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A path of the host tree as the host sees it: dict "root" $ "path" "/sys". */}}
{{- define "fettle.hostPath" -}}
{{ trimSuffix "/" .root.Values.hostRoot }}{{ .path }}
{{- end }}

{{/* Security context of containers that need nothing from the host. */}}
{{- define "fettle.unprivilegedContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Security context of pods that run as nobody in particular. */}}
{{- define "fettle.nonRootPodContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Name of the PriorityClass of both components. */}}
{{- define "fettle.priorityClassName" -}}
{{ .Values.priorityClass.name }}
{{- end }}
