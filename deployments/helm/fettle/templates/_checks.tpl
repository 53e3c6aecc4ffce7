{{/*
What values.schema.json cannot say, in sentences. Included once, from the kubelet plugin's DaemonSet.
*/}}
{{- define "fettle.check" -}}
{{- include "fettle.checkCluster" . -}}
{{- include "fettle.checkHostDevices" . -}}
{{- include "fettle.checkFPGARegions" . -}}
{{- include "fettle.checkClaimLimits" . -}}
{{- include "fettle.checkPaths" . -}}
{{- include "fettle.checkAllowedHostPaths" . -}}
{{- include "fettle.checkRegistries" . -}}
{{- include "fettle.checkApart" . -}}
{{- include "fettle.checkImages" . -}}
{{- include "fettle.checkCombinations" . -}}
{{- end }}

{{- define "fettle.checkCluster" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if not (semverCompare ">=1.34.0-0" $version) -}}
{{- fail (printf "\n\nFettle needs Kubernetes 1.34 or newer, because it speaks only resource.k8s.io/v1.\nThis cluster is %s. Upgrade the cluster, then install Fettle again.\n" $version) -}}
{{- end -}}
{{- if not (.Capabilities.APIVersions.Has "resource.k8s.io/v1") -}}
{{- fail "\n\nThis cluster does not serve resource.k8s.io/v1, although its version could.\nLook for --runtime-config or --feature-gates=DynamicResourceAllocation=false on its API server and remove them.\n" -}}
{{- end -}}
{{- if and .Values.openshift.enabled (not (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
{{- fail "\n\nopenshift.enabled is true, but this cluster does not serve security.openshift.io/v1, so it is not OpenShift.\nSet openshift.enabled=false. (helm template: add --api-versions security.openshift.io/v1)\n" -}}
{{- end -}}
{{- if and (or .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled .Values.monitoring.rules.enabled) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail "\n\nmonitoring.podMonitor, monitoring.serviceMonitor or monitoring.rules is enabled, but this cluster does not serve monitoring.coreos.com/v1.\nInstall the Prometheus operator's CRDs first, or set all of them to false. (helm template: add --api-versions monitoring.coreos.com/v1)\n" -}}
{{- end -}}
{{- end }}

{{- define "fettle.checkHostDevices" -}}
{{- $names := dict -}}
{{- range $i, $device := .Values.hostDevices -}}
{{- if hasKey $names $device.name -}}
{{- fail (printf "\n\nhostDevices[%d].name: %q is used twice; device names would collide. Give each entry its own name.\n" $i $device.name) -}}
{{- end -}}
{{- $_ := set $names $device.name true -}}
{{- range $j, $glob := $device.directories -}}
{{- if not (include "fettle.globParent" $glob) -}}
{{- fail (printf "\n\nhostDevices[%d].directories[%d]: %q lies directly under /, so the chart would have to mount the whole host read-write.\nPut these directories one level down, such as /mnt%s.\n" $i $j $glob $glob) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fettle.checkRegistries" -}}
{{- $registries := .Values.bitstreams.registries -}}
{{- range $i, $host := $registries.mirrorsOnly -}}
{{- if not (hasKey ($registries.mirrors | default dict) $host) -}}
{{- fail (printf "\n\nbitstreams.registries.mirrorsOnly[%d]: %q is not in mirrors, so nothing could be read from it.\nGive it a mirror in bitstreams.registries.mirrors, under this name, or leave it out.\n" $i $host) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fettle.checkClaimLimits" -}}
{{- $names := dict -}}
{{- range $i, $limit := .Values.claimLimits -}}
{{- if hasKey $names $limit.name -}}
{{- fail (printf "\n\nclaimLimits[%d].name: %q appears twice. Give each entry its own name.\n" $i $limit.name) -}}
{{- end -}}
{{- $_ := set $names $limit.name true -}}
{{- end -}}
{{- end }}

{{- define "fettle.checkFPGARegions" -}}
{{- $devices := dict -}}
{{- range $i, $region := .Values.fpgaRegions -}}
{{- if hasKey $devices $region.device -}}
{{- fail (printf "\n\nfpgaRegions[%d].device: %q appears twice. Give each device one entry.\n" $i $region.device) -}}
{{- end -}}
{{- $_ := set $devices $region.device true -}}
{{- if regexMatch "^(0+|f+)$" $region.interfaceID -}}
{{- fail (printf "\n\nfpgaRegions[%d].interfaceID: %q is what an empty register reads as. Give the interface id of the region's static design.\n" $i $region.interfaceID) -}}
{{- end -}}
{{- range $j, $node := $region.nodes -}}
{{- if regexMatch "/(mem|kmem|port|(uio|dfl-fme\\.|xclmgmt|fpga)[0-9]+)$" $node -}}
{{- fail (printf "\n\nfpgaRegions[%d].nodes[%d]: with %q a pod could program the chip or reach the machine's memory. Leave it out.\n" $i $j $node) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* No . or .. element and no empty one: what is mounted must be what is written. */}}
{{- define "fettle.checkPaths" -}}
{{- $paths := dict "hostRoot" .Values.hostRoot "kubeletDir" .Values.kubeletDir "nvidia.driverRoot" .Values.nvidia.driverRoot "fpga.xrt.driverRoot" .Values.fpga.xrt.driverRoot "fpga.firmwareDir" .Values.fpga.firmwareDir -}}
{{- range $i, $device := .Values.hostDevices -}}
{{- $_ := set $paths (printf "hostDevices[%d].containerPath" $i) (default "/" $device.containerPath) -}}
{{- range $j, $glob := concat (default list $device.directories) (default list $device.charDevices) -}}
{{- $_ := set $paths (printf "hostDevices[%d] glob %d" $i $j) $glob -}}
{{- end -}}
{{- end -}}
{{- range $i, $region := .Values.fpgaRegions -}}
{{- range $j, $node := $region.nodes -}}
{{- $_ := set $paths (printf "fpgaRegions[%d].nodes[%d]" $i $j) $node -}}
{{- end -}}
{{- end -}}
{{- range $i, $allowed := .Values.presets.allowedHostPaths -}}
{{- $_ := set $paths (printf "presets.allowedHostPaths[%d].path" $i) $allowed.path -}}
{{- end -}}
{{- range $field, $path := $paths -}}
{{- if regexMatch "(^|/)\\.\\.?(/|$)|//" $path -}}
{{- fail (printf "\n\n%s: %q contains an empty, . or .. element. Write the path as it is on the host.\n" $field $path) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Directories by which a namespace would have the node, as the kubelet plugin knows them. */}}
{{- define "fettle.checkAllowedHostPaths" -}}
{{- $read := "^(/|/var(/lib|/log)?|/(boot|dev|proc|root|run|sys|etc|var/(snap|run|lib/(containers|kubelet)|log/(containers|pods)))(/.*)?)$" -}}
{{- $write := "^(/(bin|lib|lib32|lib64|libx32|nix|opt|ostree|sbin|snap|sysroot|usr|var/(cache|db|lib|lock|log|opt|spool))(/.*)?|/home(/[^/]+)?)$" -}}
{{- $software := "(^|/)(\\.kube|\\.ssh|cni|containerd|crio|docker|etcd|fettle|k0s|k3s|kubelet|kubernetes|microk8s|minikube|podman|rancher|rke2)(/|$)" -}}
{{- range $i, $allowed := .Values.presets.allowedHostPaths -}}
{{- if or (regexMatch $read $allowed.path) (regexMatch $software $allowed.path) (and $allowed.writable (regexMatch $write $allowed.path)) -}}
{{- fail (printf "\n\npresets.allowedHostPaths[%d].path: whoever has %q has the node. Name a directory of data%s.\n" $i $allowed.path (ternary ", or leave writable out" "" (default false $allowed.writable))) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
A claim's directory and one that DevicePresets may name must not be in each other: as the kubelet plugin, this compares the path elements that
both have.
*/}}
{{- define "fettle.checkApart" -}}
{{- range $i, $device := .Values.hostDevices -}}
{{- range $j, $glob := $device.directories -}}
{{- range $allowed := $.Values.presets.allowedHostPaths -}}
{{- $parts := splitList "/" $glob -}}
{{- $others := splitList "/" $allowed.path -}}
{{- $depth := min (len $parts) (len $others) | int -}}
{{- $pattern := slice $parts 0 $depth | join "/" | regexQuoteMeta | replace "\\*" "[^/]*" | replace "\\?" "[^/]" | replace "\\[" "[" | replace "\\]" "]" | replace "\\^" "^" -}}
{{- if regexMatch (printf "^%s$" $pattern) (slice $others 0 $depth | join "/") -}}
{{- fail (printf "\n\nhostDevices[%d].directories[%d]: %q may be %s of presets.allowedHostPaths, or below it, or above.\nWhat a claim has there, other namespaces would have too. Keep the two apart.\n" $i $j $glob $allowed.path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fettle.checkImages" -}}
{{- $images := dict "image" .Values.image "kubeletPlugin.image" .Values.kubeletPlugin.image "controller.image" .Values.controller.image "kernelCaches.volumes.image" .Values.kernelCaches.volumes.image -}}
{{- range $field, $image := $images -}}
{{- if eq $image.tag "latest" -}}
{{- fail (printf "\n\n%s.tag is \"latest\", which means something else on every node and cannot be rolled back.\nGive a version or a digest.\n" $field) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fettle.checkCombinations" -}}
{{- range $key := keys .Values.commonLabels | sortAlpha -}}
{{- if regexMatch "^(app\\.kubernetes\\.io|helm\\.sh)/" $key -}}
{{- fail (printf "\n\ncommonLabels: %q is a label that the chart sets itself. Choose another prefix.\n" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.fpga.bindingConditions (not .Values.fpga.programming) -}}
{{- fail "\n\nfpga.bindingConditions is true, but fpga.programming is not, so nothing that a pod could wait for would ever be done.\nSet both, or neither.\n" -}}
{{- end -}}
{{- if and .Values.kernelCaches.bindingConditions (not .Values.kernelCaches.enabled) -}}
{{- fail "\n\nkernelCaches.bindingConditions is true, but kernelCaches.enabled is not, so no claim gets a cache that its pod could wait for.\nSet both, or neither.\n" -}}
{{- end -}}
{{- if and .Values.partitions.strategies (not .Values.nvidia.enabled) -}}
{{- fail "\n\npartitions.strategies is true, but nvidia.enabled is not, and only NVIDIA's GPUs have strategies.\nSet both, or neither.\n" -}}
{{- end -}}
{{- if and .Values.mps.enabled (not .Values.nvidia.enabled) -}}
{{- fail "\n\nmps.enabled is true, but nvidia.enabled is not, and without NVIDIA's library no GPU has the UUID by which MPS is told of it.\nSet both, or neither.\n" -}}
{{- end -}}
{{- if and .Values.nfd.enabled .Values.kubeletPlugin.affinity -}}
{{- fail "\n\nnfd.enabled and kubeletPlugin.affinity both set the DaemonSet's affinity.\nKeep one: copy the NFD terms you want into kubeletPlugin.affinity and set nfd.enabled=false.\n" -}}
{{- end -}}
{{- if and .Values.drivers.enabled (has .Values.drivers.namespace (list .Release.Namespace .Values.selfTest.namespace)) -}}
{{- fail (printf "\n\ndrivers.namespace is %q, which is used for something else. In the namespace of drivers pods may be privileged: keep it apart,\nfor instance drivers.namespace=fettle-drivers.\n" .Values.drivers.namespace) -}}
{{- end -}}
{{- if and .Values.selfTest.enabled (eq .Values.selfTest.namespace .Release.Namespace) -}}
{{- fail (printf "\n\nselfTest.namespace is %q, the release's own namespace. The self-test's namespace is labelled for admin access,\nwhich lets every claim in it look at any device: keep it apart, for instance selfTest.namespace=fettle-selftest.\n" .Release.Namespace) -}}
{{- end -}}
{{- end }}
