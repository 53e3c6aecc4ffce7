{{/*
The features that need a privileged kubelet plugin, one line each: whether it is on, and why it needs it. A later feature
adds its line here and nothing else. The reason is printed into the DaemonSet as an annotation.
*/}}
{{- define "fettle.privilegedFeatures" -}}
- name: nvidia
  enabled: {{ .Values.nvidia.enabled }}
  reason: NVIDIA's library opens /dev/nvidiactl, which the device cgroup allows only to a privileged container
- name: fpga
  enabled: {{ and .Values.fpga.programming (has "dfl" .Values.fpga.backends) }}
  reason: FPGAs are programmed through /dev/dfl-fme.*, which the device cgroup allows only to a privileged container
- name: fpga-xrt
  enabled: {{ and .Values.fpga.programming (has "xrt" .Values.fpga.backends) }}
  reason: XRT's program opens /dev/xclmgmt*, which the device cgroup allows only to a privileged container
- name: presets
  enabled: {{ not (empty (include "fettle.presetMounts" .)) }}
  reason: the plugin mounts for a claim what the node must see, and only a privileged container may have Bidirectional propagation
- name: kernelCaches
  enabled: {{ .Values.kernelCaches.enabled }}
  reason: the plugin mounts caches for a claim, which the node must see, and only a privileged container may have Bidirectional propagation
- name: mps
  enabled: {{ .Values.mps.enabled }}
  reason: the plugin mounts memory for a claim's MPS daemon, which the node must see, and only a privileged container may have Bidirectional propagation
{{- end }}

{{/* Reasons of the features that are on, joined by "; "; empty if none. */}}
{{- define "fettle.privilegedReasons" -}}
{{- $reasons := list -}}
{{- range (include "fettle.privilegedFeatures" . | fromYamlArray) -}}
{{- if .enabled -}}{{- $reasons = append $reasons (printf "%s: %s" .name .reason) -}}{{- end -}}
{{- end -}}
{{- join "; " $reasons -}}
{{- end }}

{{/* "true" if the kubelet plugin runs privileged, else empty. kubeletPlugin.privileged overrides the table. */}}
{{- define "fettle.privileged" -}}
{{- $override := toString .Values.kubeletPlugin.privileged -}}
{{- if eq $override "true" -}}true
{{- else if and (eq $override "auto") (include "fettle.privilegedReasons" .) -}}true
{{- end -}}
{{- end }}

{{/* Capabilities that an unprivileged plugin gets back, as a YAML list: those that emptying host directories and binding GPUs need. */}}
{{- define "fettle.addedCapabilities" -}}
{{- $add := list -}}
{{- if include "fettle.hostDirectories" . -}}{{- $add = concat $add (list "CHOWN" "DAC_OVERRIDE" "FOWNER" "FSETID") -}}{{- end -}}
{{- if .Values.partitions.pci -}}{{- $add = concat $add (list "DAC_READ_SEARCH" "SYS_PTRACE") -}}{{- end -}}
{{- with $add -}}
[{{ join ", " . }}]
{{- end -}}
{{- end }}

{{/*
Security context of the kubelet plugin's container. It is root since kubelet's sockets and the CDI directory are. A privileged one gives up at
once what no feature needs: see "Rights of the plugin" in docs/design/confinement.md.
*/}}
{{- define "fettle.pluginSecurityContext" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if include "fettle.privileged" . }}
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- with include "fettle.addedCapabilities" . }}
  add: {{ . }}
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}
{{- include "fettle.pluginSELinux" . }}
{{- end }}

{{/* Security context of the container that reads kubelet's claims: root, to whom the file belongs, and nothing else. */}}
{{- define "fettle.claimsSecurityContext" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
{{ include "fettle.unprivilegedContext" . }}
seccompProfile:
  type: RuntimeDefault
{{- include "fettle.pluginSELinux" . }}
{{- end }}

{{/*
Security context of the container that runs NVIDIA's MPS. It gives up at once what no daemon needs: see "The supervisor of MPS" in
docs/design/confinement.md.
*/}}
{{- define "fettle.mpsSecurityContext" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
privileged: true
{{- include "fettle.pluginSELinux" . }}
{{- end }}

{{/* SELinux options of the plugin's containers, or nothing. */}}
{{- define "fettle.pluginSELinux" -}}
{{- $selinux := .Values.kubeletPlugin.seLinuxOptions }}
{{- if and .Values.openshift.enabled (not $selinux) }}
{{- $selinux = dict "type" "spc_t" }}
{{- end }}
{{- with $selinux }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
