{{/* The kubelet plugin's configuration file. */}}
{{- define "fettle.pluginConfig" -}}
apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
discoveryInterval: {{ .Values.discoveryInterval }}
reconcileInterval: {{ .Values.reconcileInterval }}
nvml:
  disabled: {{ not .Values.nvidia.enabled }}
  {{- if .Values.nvidia.enabled }}
  driverRoot: /driver-root
  timeout: {{ .Values.nvidia.timeout }}
  {{- if .Values.nvidia.publishUnlinked }}
  publishUnlinked: true
  {{- end }}
  {{- end }}
  hostDriverRoot: {{ .Values.nvidia.driverRoot }}
  {{- if .Values.nvidia.renderNodes }}
  renderNodes: true
  {{- end }}
{{- if .Values.deviceMetadata }}
deviceMetadata: true
{{- end }}
{{- if .Values.fpga.programming }}
fpga:
  programming: true
  backends:
    {{- toYaml .Values.fpga.backends | nindent 4 }}
  {{- if has "xrt" .Values.fpga.backends }}
  xrt:
    driverRoot: /xrt-root
  {{- end }}
  maxFailedProgrammings: {{ .Values.fpga.maxFailedProgrammings }}
  {{- if .Values.fpga.bindingConditions }}
  bindingConditions: true
  {{- end }}
  {{- if .Values.fpga.fetchAhead }}
  fetchAhead: true
  {{- end }}
  {{- with .Values.fpga.simulatedNodes }}
  simulatedNodes: {{ . }}
  {{- end }}
{{- end }}
{{- if or .Values.partitions.pci .Values.partitions.strategies .Values.mps.enabled }}
partitions:
  {{- if .Values.partitions.pci }}
  pci: true
  {{- end }}
  {{- if or .Values.partitions.strategies .Values.mps.enabled }}
  strategies: true
  {{- end }}
  {{- if .Values.mps.enabled }}
  mpsSupervisor: /run/fettle-mps
  {{- end }}
{{- end }}
{{- with .Values.fpgaRegions }}
fpgaRegions:
  {{- toYaml . | nindent 2 }}
{{- end }}
artifacts:
  {{- toYaml .Values.artifacts | nindent 2 }}
budget:
  {{- toYaml .Values.budget | nindent 2 }}
presets:
  hostDirectories:
    {{- toYaml .Values.presets.hostDirectories | nindent 4 }}
  {{- with .Values.presets.allowedHostPaths }}
  allowedHostPaths:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.presets.scratch }}
  scratch: true
  {{- end }}
  {{- if include "fettle.presetsExpected" . }}
  reportMissing: true
  {{- end }}
{{- if .Values.kernelCaches.enabled }}
kernelCaches:
  enabled: true
  {{- if .Values.kernelCaches.fetchAhead }}
  fetchAhead: true
  {{- end }}
  {{- if .Values.kernelCaches.bindingConditions }}
  bindingConditions: true
  {{- end }}
{{- end }}
{{- with .Values.health }}
health:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostDevices }}
hostDevices:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.foreignDevices }}
foreignDevices:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" if presets may have the plugin mount something for a claim, else empty. */}}
{{- define "fettle.presetMounts" -}}
{{- if or .Values.presets.allowedHostPaths .Values.presets.scratch -}}true{{- end -}}
{{- end }}

{{/*
Directories of the nodes in which presets may name files, each once, as a YAML list of path and writable: those of administrators, and those
that namespaces may have. What the plugin has anyway to lend it as a device is not among them. Nor is what is below a directory that
containers may write to: kubelet would follow their links to it. The plugin sees it there, and follows none.
*/}}
{{- define "fettle.presetDirectories" -}}
{{- $seen := include "fettle.hostDirectories" . | fromYamlArray -}}
{{- $written := list -}}
{{- range .Values.presets.allowedHostPaths -}}
{{- if .writable -}}{{- $written = append $written (printf "%s/" .path) -}}{{- end -}}
{{- end -}}
{{- $candidates := list -}}
{{- range .Values.presets.allowedHostPaths -}}
{{- $candidates = append $candidates (dict "path" .path "writable" (default false .writable)) -}}
{{- end -}}
{{- range .Values.presets.hostDirectories -}}
{{- $candidates = append $candidates (dict "path" . "writable" false) -}}
{{- end -}}
{{- $directories := list -}}
{{- range $candidates -}}
{{- $path := .path -}}
{{- $below := false -}}
{{- range $written -}}{{- if hasPrefix . $path -}}{{- $below = true -}}{{- end -}}{{- end -}}
{{- if not (or $below (has $path $seen)) -}}
{{- $seen = append $seen $path -}}
{{- $directories = append $directories . -}}
{{- end -}}
{{- end -}}
{{- toYaml $directories -}}
{{- end }}

{{/* "true" if FPGAs of a kind are programmed, else empty. */}}
{{- define "fettle.programs" -}}
{{- if and .root.Values.fpga.programming (has .kind .root.Values.fpga.backends) -}}true{{- end -}}
{{- end }}

{{/* Affinity of the DaemonSet's pods, or nothing. */}}
{{- define "fettle.pluginAffinity" -}}
{{- if .Values.nfd.enabled }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .Values.nfd.labels }}
      - matchExpressions:
          - key: {{ . }}
            operator: In
            values: ["true"]
      {{- end }}
{{- else }}
{{- with .Values.kubeletPlugin.affinity }}
{{- toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Volume mounts of the kubelet plugin. Sockets and CDI files need the same path inside and outside. */}}
{{- define "fettle.pluginVolumeMounts" -}}
- name: config
  mountPath: /etc/fettle
  readOnly: true
- name: plugin
  mountPath: {{ .Values.kubeletDir }}/plugins/fettle.dev
- name: registry
  mountPath: {{ .Values.kubeletDir }}/plugins_registry
- name: cdi
  mountPath: /var/run/cdi
- name: state
  mountPath: /var/lib/fettle
  {{- if and (or (include "fettle.presetMounts" .) .Values.kernelCaches.enabled) (include "fettle.privileged" .) }}
  # What the plugin mounts there for a claim is what a container gets.
  mountPropagation: Bidirectional
  {{- end }}
{{- if .Values.kubeletPlugin.collectClaims }}
- name: claims
  mountPath: /run/fettle-claims
{{- end }}
{{- if .Values.kubeletPlugin.podResources }}
- name: pod-resources
  mountPath: {{ .Values.kubeletDir }}/pod-resources
  readOnly: true
{{- end }}
{{- if .Values.mps.enabled }}
# Where the supervisor of NVIDIA's MPS is asked.
- name: mps
  mountPath: /run/fettle-mps
# Memory for what claims write to the directories of their daemons, at the host's own path.
- name: mps-memory
  mountPath: {{ include "fettle.mpsMemory" . }}
  {{- if include "fettle.privileged" . }}
  mountPropagation: Bidirectional
  {{- end }}
{{- end }}
- name: host-sys
  mountPath: /host/sys
  readOnly: {{ not (or .Values.partitions.pci (include "fettle.programs" (dict "root" $ "kind" "dfl")) (include "fettle.programs" (dict "root" $ "kind" "fpga_manager"))) }}
- name: host-dev
  mountPath: /host/dev
  readOnly: true
{{- if .Values.partitions.pci }}
# Who uses a GPU, and which drivers there are.
- name: host-proc
  mountPath: /host/proc
  readOnly: true
- name: host-modules
  mountPath: /host/lib/modules
  readOnly: true
{{- else }}
- name: host-proc-driver
  mountPath: /host/proc/driver
  readOnly: true
- name: host-proc-devices
  mountPath: /host/proc/devices
  readOnly: true
{{- end }}
{{- if .Values.nvidia.enabled }}
- name: driver-root
  mountPath: /driver-root
  readOnly: true
  mountPropagation: {{ .Values.kubeletPlugin.mountPropagation }}
{{- end }}
{{- range $i, $dir := include "fettle.hostDirectories" . | fromYamlArray }}
- name: host-dir-{{ $i }}
  mountPath: {{ print "/host" $dir | quote }}
  mountPropagation: {{ $.Values.kubeletPlugin.mountPropagation }}
{{- end }}
{{- if include "fettle.programs" (dict "root" $ "kind" "fpga_manager") }}
- name: firmware
  mountPath: /host{{ .Values.fpga.firmwareDir }}
  mountPropagation: {{ .Values.kubeletPlugin.mountPropagation }}
{{- end }}
{{- if include "fettle.programs" (dict "root" $ "kind" "xrt") }}
- name: xrt-root
  mountPath: /xrt-root
  readOnly: true
  mountPropagation: {{ .Values.kubeletPlugin.mountPropagation }}
{{- end }}
{{- range include "fettle.hostRoots" . | fromYamlArray }}
# Covers the volumes of all pods and kubelet's key.
- name: nothing
  mountPath: {{ . }}{{ $.Values.kubeletDir }}
  readOnly: true
{{- end }}
{{- range $i, $dir := include "fettle.presetDirectories" . | fromYamlArray }}
- name: preset-dir-{{ $i }}
  mountPath: /host{{ $dir.path }}
  readOnly: {{ not $dir.writable }}
  mountPropagation: {{ $.Values.kubeletPlugin.mountPropagation }}
{{- end }}
{{- range $i, $dir := .Values.fpga.stores }}
- name: bitstreams-{{ $i }}
  mountPath: /host{{ $dir }}
  readOnly: true
  mountPropagation: {{ $.Values.kubeletPlugin.mountPropagation }}
{{- end }}
{{- end }}

{{/* Where the plugin's container has the host's whole root, as a YAML list. */}}
{{- define "fettle.hostRoots" -}}
{{- $roots := list -}}
{{- if and .Values.nvidia.enabled (eq .Values.nvidia.driverRoot "/") -}}{{- $roots = append $roots "/driver-root" -}}{{- end -}}
{{- if and (include "fettle.programs" (dict "root" $ "kind" "xrt")) (eq .Values.fpga.xrt.driverRoot "/") -}}
{{- $roots = append $roots "/xrt-root" -}}
{{- end -}}
{{- toYaml $roots -}}
{{- end }}

{{/* "true" if a container has a directory with kubelet's in it, which is then covered. */}}
{{- define "fettle.coversKubelet" -}}
{{- if or .Values.kubeletPlugin.collectClaims (include "fettle.hostRoots" . | fromYamlArray) -}}true{{- end -}}
{{- end }}

{{/* The container that tells the plugin which claims kubelet holds, and alone has kubelet's directory. */}}
{{- define "fettle.claimsContainer" -}}
- name: claims
  image: {{ include "fettle.image" (dict "root" $ "name" (include "fettle.pluginName" .) "image" .Values.kubeletPlugin.image) }}
  imagePullPolicy: {{ default .Values.image.pullPolicy .Values.kubeletPlugin.image.pullPolicy }}
  command: [/fettle-claims]
  terminationMessagePolicy: FallbackToLogsOnError
  securityContext:
    {{- include "fettle.claimsSecurityContext" . | nindent 4 }}
  resources:
    requests:
      cpu: 1m
      memory: 8Mi
    limits:
      memory: 64Mi
  volumeMounts:
    - name: kubelet
      mountPath: /kubelet
      readOnly: true
      mountPropagation: None
    # Covers the volumes of all pods.
    - name: nothing
      mountPath: /kubelet/pods
      readOnly: true
    - name: claims
      mountPath: /run/fettle-claims
{{- end }}

{{/*
Volumes of the kubelet plugin. On a real machine what must be there is asked for; a simulated machine may lack parts of
proc, which are then made.
*/}}
{{- define "fettle.pluginVolumes" -}}
{{- $simulated := ne .Values.hostRoot "/" -}}
- name: config
  configMap:
    name: {{ include "fettle.pluginName" . }}
- name: plugin
  hostPath:
    path: {{ .Values.kubeletDir }}/plugins/fettle.dev
    type: DirectoryOrCreate
- name: registry
  hostPath:
    path: {{ .Values.kubeletDir }}/plugins_registry
    type: Directory
- name: cdi
  hostPath:
    path: /var/run/cdi
    type: DirectoryOrCreate
- name: state
  hostPath:
    path: /var/lib/fettle
    type: DirectoryOrCreate
{{- if .Values.kubeletPlugin.collectClaims }}
# For the container claims alone. The file dra_manager_state is replaced by each write, so its directory is what can be mounted.
- name: kubelet
  hostPath:
    path: {{ .Values.kubeletDir }}
    type: Directory
- name: claims
  emptyDir:
    sizeLimit: 1Mi
{{- end }}
{{- if .Values.kubeletPlugin.podResources }}
# Which pods have devices. A directory, since kubelet makes its socket again at each start.
- name: pod-resources
  hostPath:
    path: {{ .Values.kubeletDir }}/pod-resources
    type: DirectoryOrCreate
{{- end }}
{{- if .Values.mps.enabled }}
- name: mps
  hostPath:
    path: /run/fettle-mps
    type: DirectoryOrCreate
- name: mps-memory
  hostPath:
    path: {{ include "fettle.mpsMemory" . }}
    type: DirectoryOrCreate
{{- end }}
{{- if include "fettle.coversKubelet" . }}
- name: nothing
  emptyDir:
    sizeLimit: 1Mi
{{- end }}
- name: host-sys
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" "/sys") }}
    type: Directory
- name: host-dev
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" "/dev") }}
    type: Directory
{{- if .Values.partitions.pci }}
- name: host-proc
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" "/proc") }}
    type: {{ ternary "DirectoryOrCreate" "Directory" $simulated }}
- name: host-modules
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" "/lib/modules") }}
    type: {{ ternary "DirectoryOrCreate" "Directory" $simulated }}
{{- else }}
- name: host-proc-driver
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" "/proc/driver") }}
    type: {{ ternary "DirectoryOrCreate" "Directory" $simulated }}
- name: host-proc-devices
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" "/proc/devices") }}
    type: {{ ternary "FileOrCreate" "File" $simulated }}
{{- end }}
{{- if .Values.nvidia.enabled }}
- name: driver-root
  hostPath:
    path: {{ .Values.nvidia.driverRoot }}
    type: Directory
{{- end }}
{{- range $i, $dir := include "fettle.hostDirectories" . | fromYamlArray }}
{{- /* The host's own directory also where the rest of the machine is simulated: it is what a CDI mount names to the runtime. */}}
- name: host-dir-{{ $i }}
  hostPath:
    path: {{ $dir | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- range $i, $dir := include "fettle.presetDirectories" . | fromYamlArray }}
{{- /* As those: the host's own, which is where a CDI mount's source is looked up. */}}
- name: preset-dir-{{ $i }}
  hostPath:
    path: {{ $dir.path }}
    type: DirectoryOrCreate
{{- end }}
{{- if include "fettle.programs" (dict "root" $ "kind" "fpga_manager") }}
- name: firmware
  hostPath:
    path: {{ include "fettle.hostPath" (dict "root" $ "path" .Values.fpga.firmwareDir) }}
    type: DirectoryOrCreate
{{- end }}
{{- if include "fettle.programs" (dict "root" $ "kind" "xrt") }}
# Everything below, the state directory included: XRT's program finds its libraries, the card and the image by the host's own paths.
- name: xrt-root
  hostPath:
    path: {{ .Values.fpga.xrt.driverRoot }}
    type: Directory
{{- end }}
{{- range $i, $dir := .Values.fpga.stores }}
- name: bitstreams-{{ $i }}
  hostPath:
    path: {{ $dir }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}
