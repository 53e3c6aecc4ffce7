{{/*
The kinds of which the controller may write only some objects: own says which, of OBJECT; more is what else they must keep.
*/}}
{{- define "fettle.fences" -}}
{{- $managed := "OBJECT.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'fettle-controller'" -}}
{{- $granted := printf "%s && OBJECT.metadata.name.startsWith('fettle.dev:')" $managed -}}
{{- $cached := "OBJECT.metadata.?labels[?'fettle.dev/kernel-cache-uid'].orValue('') != ''" -}}
{{- $stated := "" -}}
{{- if .Values.drivers.enabled -}}
{{- $stated = printf "request.namespace == '%s' && OBJECT.metadata.?labels[?'fettle.dev/state'].orValue('') != ''" .Values.drivers.namespace -}}
{{- end -}}
- group: resource.k8s.io
  resource: deviceclasses
  own: {{ printf "%s && OBJECT.metadata.name in ['fpga.fettle.dev', 'gpu.fettle.dev', 'host.fettle.dev', 'amd.gpu.fettle.dev', 'intel.gpu.fettle.dev', 'nvidia.gpu.fettle.dev', 'mig.gpu.fettle.dev', 'partition.gpu.fettle.dev', 'vf.gpu.fettle.dev', 'vfio.gpu.fettle.dev']" $managed | quote }}
  says: the DeviceClasses that it ships, while they have its label
- group: apiextensions.k8s.io
  resource: customresourcedefinitions
  own: "OBJECT.spec.group == 'fettle.dev'"
  says: CustomResourceDefinitions of the group fettle.dev
- group: rbac.authorization.k8s.io
  resource: roles
  namespaced: true
  own: {{ $granted | quote }}
  says: Roles that it made, named fettle.dev:KIND:NAME
  more:
    - expression: >-
        object.?rules.orValue([]).all(r, r.verbs == ['get'] && r.?apiGroups.orValue([]) == ['']
        && r.?resources.orValue([]).all(n, n in ['secrets', 'configmaps']) && size(r.?resourceNames.orValue([])) > 0)
      message: Fettle's controller grants only the reading of Secrets and ConfigMaps, each by its name
- group: rbac.authorization.k8s.io
  resource: rolebindings
  namespaced: true
  own: {{ $granted | quote }}
  says: RoleBindings that it made, named fettle.dev:KIND:NAME
  more:
    - expression: >-
        object.roleRef.kind == 'Role' && object.roleRef.name == object.metadata.name && object.?subjects.orValue([]).all(s,
        s.kind == 'ServiceAccount' && s.name == '{{ include "fettle.pluginName" . }}' && s.?namespace.orValue('') == '{{ .Release.Namespace }}')
      message: Fettle's controller binds only its own Roles, and only to the kubelet plugin
{{- if or .Values.partitions.nodes .Values.uninstall.enabled }}
- group: scheduling.k8s.io
  resource: priorityclasses
  own: {{ $managed | quote }}
  says: PriorityClasses that it made, while they have its label
  more:
    - expression: "!object.?globalDefault.orValue(false) && !object.metadata.name.startsWith('system-')"
      message: Fettle's controller makes no PriorityClass for all pods, and none of Kubernetes' own
{{- end }}
{{- if .Values.kernelCaches.volumes.enabled }}
- group: batch
  resource: jobs
  namespaced: true
  own: {{ printf "%s%s" $cached (ternary (printf " || (%s)" $stated) "" (ne $stated "")) | quote }}
  says: Jobs of kernel caches{{ if $stated }}, and of extra states of AcceleratorStacks in the namespace of drivers{{ end }}
  more:
    - expression: >-
        {{ if $stated }}({{ $stated | replace "OBJECT" "object" }}) ||
        {{ end }}object.spec.template.spec.?automountServiceAccountToken.orValue(true) == false
        && object.spec.template.spec.?serviceAccountName.orValue('default') in ['', 'default']
        && !object.spec.template.spec.?hostNetwork.orValue(false) && !object.spec.template.spec.?hostPID.orValue(false)
        && !object.spec.template.spec.?hostIPC.orValue(false)
        && object.spec.template.spec.?volumes.orValue([]).all(v, !has(v.hostPath))
        && size(object.spec.template.spec.?initContainers.orValue([])) == 0
        && object.spec.template.spec.containers.all(c, c.?image.orValue('') == '{{ include "fettle.image" (dict "root" . "name" "fettle" "image" .Values.kernelCaches.volumes.image) }}'
        && !c.?securityContext.?privileged.orValue(false) && !c.?securityContext.?allowPrivilegeEscalation.orValue(true))
      message: Fettle's controller makes only Jobs of its own image, without a token, privileges, or anything of the node
- group: ""
  resource: persistentvolumeclaims
  namespaced: true
  own: {{ $cached | quote }}
  says: PersistentVolumeClaims of kernel caches
{{- end }}
{{- end }}
