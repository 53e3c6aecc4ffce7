{{/* A value as a literal of CEL. Its maps and lists may mix types only as dyn. */}}
{{- define "fettle.cel" -}}
{{- if kindIs "map" . -}}
{{- $parts := list -}}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s: %s" (toJson $key) (include "fettle.cel" $value)) }}{{ end -}}
dyn({ {{- join ", " $parts -}} })
{{- else if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (include "fettle.cel" .) }}{{ end -}}
dyn([ {{- join ", " $parts -}} ])
{{- else if kindIs "string" . -}}
dyn({{ toJson . }})
{{- else if kindIs "bool" . -}}
dyn({{ . }})
{{- else -}}
dyn({{ int64 . }})
{{- end -}}
{{- end }}

{{/* The security context of the pods that fill volumes of kernel caches, and what their container asks for: as controller/volumes has them. */}}
{{- define "fettle.fillPodContext" -}}
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
{{ include "fettle.nonRootPodContext" . }}
{{- end }}
{{- define "fettle.fillResources" -}}
limits:
  memory: 256Mi
requests:
  cpu: 100m
  memory: 64Mi
{{- end }}

{{/*
The kinds of which the controller may write only some objects: own says which, of OBJECT; more is what else they must keep.
*/}}
{{- define "fettle.fences" -}}
{{- $managed := "OBJECT.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'fettle-controller'" -}}
{{- $granted := printf "%s && OBJECT.metadata.name.startsWith('fettle.dev:')" $managed -}}
{{- $off := list -}}
{{- range include "fettle.names" (dict "root" . "list" "parts") | fromJsonArray -}}
{{- if not (get $.Values.deviceClasses .) }}{{ $off = append $off (printf "%s.gpu.fettle.dev" .) }}{{ end -}}
{{- end -}}
{{- $cached := "OBJECT.metadata.?labels[?'fettle.dev/kernel-cache-uid'].orValue('') != ''" -}}
{{- $stated := "" -}}
{{- if .Values.drivers.enabled -}}
{{- $stated = printf "request.namespace == '%s' && OBJECT.metadata.?labels[?'fettle.dev/state'].orValue('') != ''" .Values.drivers.namespace -}}
{{- end -}}
- group: resource.k8s.io
  resource: deviceclasses
  own: {{ printf "%s && OBJECT.metadata.name in ['%s']" $managed (include "fettle.names" (dict "root" . "list" "classes") | fromJsonArray | join "', '") | quote }}
  says: the DeviceClasses that it ships, while they have its label
  shipped: {{ printf "%s[object.metadata.name]" (include "fettle.cel" (.Files.Get "files/classes.yaml" | fromYaml)) | quote }}
  more:
    # An administrator's config stays, and a class that narrows who gets devices is not made anew without.
    - expression: >-
        dyn(object.spec).all(k, k in ['config', 'extendedResourceName', 'selectors'])
        && dyn(object.spec).selectors == variables.shipped.selectors
        && (!has(dyn(object.spec).extendedResourceName)
        || dyn(object.spec).extendedResourceName == variables.shipped.?extendedResourceName.orValue(''))
        && dyn(object.spec).?config.orValue([]) == (request.operation == 'CREATE' ? variables.shipped.?config.orValue([])
        : dyn(oldObject.spec).?config.orValue([]))
        && (request.operation == 'UPDATE' || !(object.metadata.name in {{ $off | toJson | replace "\"" "'" }}))
      message: Fettle's controller writes of the DeviceClasses that it ships only what is shipped, and none that are switched off
  deletes:
    - expression: "request.userInfo.username.endsWith(':{{ include "fettle.uninstallName" . }}') || oldObject.metadata.name in {{ $off | toJson | replace "\"" "'" }}"
      message: Fettle's controller deletes only DeviceClasses that are switched off
- group: fettle.dev
  version: v1alpha1
  resource: clusterdevicepresets
  own: {{ printf "%s && OBJECT.metadata.name in ['%s']" $managed (include "fettle.presetNames" . | splitList ", " | sortAlpha | join "', '") | quote }}
  says: the ClusterDevicePresets that it ships, while they have its label
  more:
    - expression: {{ printf "dyn(object.spec) == %s[object.metadata.name]" (include "fettle.cel" (.Files.Get "files/presets.yaml" | fromYaml)) | quote }}
      message: Fettle's controller writes the ClusterDevicePresets that it ships only as they are shipped
- group: apiextensions.k8s.io
  resource: customresourcedefinitions
  own: {{ printf "OBJECT.spec.group == 'fettle.dev' && OBJECT.metadata.name in %s" (include "fettle.crds" . | fromYamlArray | toJson | replace "\"" "'") | quote }}
  says: the CustomResourceDefinitions that it ships
  more:
    - expression: >-
        object.spec.versions.all(v, v.name == 'v1alpha1') && object.spec.?conversion.?strategy.orValue('None') == 'None'
        && object.metadata.name == object.spec.names.plural + '.fettle.dev'
        && object.spec.versions.all(v, v.?subresources.?status.hasValue())
      message: Fettle's controller writes only the version v1alpha1 of its CustomResourceDefinitions, with a status, and has nothing converted by a webhook
- group: rbac.authorization.k8s.io
  resource: roles
  namespaced: true
  own: {{ $granted | quote }}
  says: Roles that it made, named fettle.dev:KIND:NAME
  more:
    - expression: >-
        object.?rules.orValue([]).all(r, r.verbs == ['get'] && r.?apiGroups.orValue([]) == ['']
        && r.?resources.orValue([]).all(n, n in ['secrets', 'configmaps']) && size(r.?resourceNames.orValue([])) > 0
        && !r.?resourceNames.orValue([]).exists(n, n.startsWith('sh.helm.release.') || n == '{{ include "fettle.webhookSecretName" . }}'))
      message: Fettle's controller grants only the reading of Secrets and ConfigMaps, each by its name, and none of Helm's and of the webhook
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
{{- if .Values.selfTest.enabled }}
- group: ""
  resource: pods
  operations: [CREATE, UPDATE]
  own: {{ printf "request.namespace == '%s' && %s && OBJECT.metadata.?labels[?'fettle.dev/check'].orValue('') == 'claim'" .Values.selfTest.namespace $managed | quote }}
  says: pods of checks, in the namespace of the self-test
  more:
    # What admission of the cluster adds may be there, too.
    - expression: >-
        dyn(object.spec).all(k, k in ['affinity', 'automountServiceAccountToken', 'containers', 'dnsPolicy', 'enableServiceLinks',
        'imagePullSecrets', 'nodeSelector', 'preemptionPolicy', 'priority', 'priorityClassName', 'resourceClaims', 'restartPolicy',
        'schedulerName', 'securityContext', 'serviceAccount', 'serviceAccountName', 'terminationGracePeriodSeconds', 'tolerations'])
        && object.spec.?automountServiceAccountToken.orValue(true) == false && object.spec.?enableServiceLinks.orValue(true) == false
        && object.spec.?serviceAccountName.orValue('default') == 'default'
        && dyn(object.spec).?securityContext.orValue({}).all(k, k in ['fsGroup', 'seLinuxOptions', 'seccompProfile', 'supplementalGroups'])
        && object.spec.?resourceClaims.orValue([]).all(c, c.?resourceClaimTemplateName.orValue('').startsWith('check-'))
        && object.metadata.?annotations.orValue({}).all(k, !k.startsWith('cdi.k8s.io/') && (!k.contains('.security.') || k.startsWith('openshift.io/')))
        && object.metadata.?labels[?'app.kubernetes.io/name'].orValue('') != 'fettle'
      message: Fettle's controller makes only pods of checks without a token, rights, volumes or anything of the node
    - expression: >-
        size(object.spec.containers) == 1 && object.spec.containers.all(c,
        dyn(c).all(k, k in ['args', 'command', 'image', 'imagePullPolicy', 'name', 'resources', 'securityContext', 'terminationMessagePath',
        'terminationMessagePolicy'])
        && c.?image.orValue('') == '{{ include "fettle.image" (dict "root" . "name" (include "fettle.pluginName" .) "image" .Values.kubeletPlugin.image) }}'
        && c.?command.orValue([]) == ['/fettle-kubeletplugin'] && c.?args.orValue([]) == ['selftest']
        && c.?terminationMessagePath.orValue('/dev/termination-log') == '/dev/termination-log'
        && dyn(c).?securityContext.orValue({}).all(k, k in ['allowPrivilegeEscalation', 'capabilities', 'readOnlyRootFilesystem', 'runAsUser',
        'seLinuxOptions', 'seccompProfile'])
        && c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false && c.?securityContext.?readOnlyRootFilesystem.orValue(false)
        && c.?securityContext.?capabilities.?add.orValue([]).size() == 0
        && c.?securityContext.?seccompProfile.?type.orValue('') == 'RuntimeDefault')
      message: Fettle's controller makes only pods of checks that run the self-test of its own image
- group: resource.k8s.io
  resource: resourceclaimtemplates
  own: {{ printf "request.namespace == '%s' && %s && OBJECT.metadata.name.startsWith('check-')" .Values.selfTest.namespace $managed | quote }}
  says: templates of checks, in the namespace of the self-test
  more:
    - expression: >-
        dyn(object.spec.spec.devices).all(k, k == 'requests') && size(object.spec.spec.devices.requests) == 1
        && object.spec.spec.devices.requests.all(r, dyn(r).all(k, k in ['exactly', 'name'])
        && dyn(r).?exactly.orValue({}).all(k, k in ['adminAccess', 'allocationMode', 'count', 'deviceClassName', 'tolerations'])
        && r.?exactly.?adminAccess.orValue(false))
      message: Fettle's controller makes only templates of checks, which look at one device and configure none
{{- end }}
{{- if .Values.kernelCaches.volumes.enabled }}
{{- $orState := ternary (printf "(%s) || " ($stated | replace "OBJECT" "object")) "" (ne $stated "") }}
- group: batch
  resource: jobs
  namespaced: true
  own: {{ printf "%s%s" $cached (ternary (printf " || (%s)" $stated) "" (ne $stated "")) | quote }}
  says: Jobs of kernel caches{{ if $stated }}, and of extra states of AcceleratorStacks in the namespace of drivers{{ end }}
  more:
    # By what may be there, so that a field of a later API is refused. It has what controller/volumes builds and what the API server adds.
    - expression: >-
        {{ $orState }}dyn(object.spec).all(k, k in ['activeDeadlineSeconds', 'backoffLimit', 'completionMode', 'completions', 'manualSelector',
        'parallelism', 'podReplacementPolicy', 'selector', 'suspend', 'template', 'ttlSecondsAfterFinished'])
        && !object.spec.?manualSelector.orValue(false) && object.spec.?parallelism.orValue(1) == 1 && object.spec.?completions.orValue(1) == 1
        && object.spec.template.?metadata.?labels[?'app.kubernetes.io/name'].orValue('') != 'fettle'
        && object.spec.template.?metadata.?annotations.orValue({}).all(k, !k.startsWith('cdi.k8s.io/') && !k.contains('.security.'))
      message: Fettle's controller makes Jobs of one pod, which no Service of Fettle selects and no runtime gives anything by an annotation
    - expression: >-
        {{ $orState }}dyn(object.spec.template.spec).all(k, k in ['affinity', 'automountServiceAccountToken', 'containers', 'dnsPolicy',
        'enableServiceLinks', 'imagePullSecrets', 'nodeSelector', 'priorityClassName', 'restartPolicy', 'schedulerName', 'securityContext',
        'terminationGracePeriodSeconds', 'tolerations', 'volumes'])
        && object.spec.template.spec.?automountServiceAccountToken.orValue(true) == false
        && object.spec.template.spec.?enableServiceLinks.orValue(true) == false
        && object.spec.template.spec.?dnsPolicy.orValue('ClusterFirst') == 'ClusterFirst'
        && object.spec.template.spec.?restartPolicy.orValue('') == 'Never'
        && object.spec.template.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler'
        && object.spec.template.spec.?terminationGracePeriodSeconds.orValue(30) == 30
        && !object.spec.template.spec.?priorityClassName.orValue('').startsWith('system-')
        && dyn(object.spec.template.spec).?securityContext.orValue({}) == {{ include "fettle.cel" (include "fettle.fillPodContext" . | fromYaml) }}
      message: Fettle's controller makes only Jobs without a token, an account, rights or anything of the node, and with no other fields of a pod
    - expression: >-
        {{ $orState }}size(object.spec.template.spec.containers) == 1 && object.spec.template.spec.containers.all(c,
        dyn(c).all(k, k in ['args', 'command', 'image', 'imagePullPolicy', 'name', 'resources', 'securityContext', 'terminationMessagePath',
        'terminationMessagePolicy', 'volumeMounts'])
        && c.name == 'extract' && c.?image.orValue('') == '{{ include "fettle.image" (dict "root" . "name" "fettle" "image" .Values.kernelCaches.volumes.image) }}'
        && c.?command.orValue([]) == ['/fettle'] && c.?args.orValue([]).all(a, !a.contains('\n') && !a.contains('$('))
        && c.?args.orValue([]).join('\n').matches('^cache\nextract\n[^-\n][^\n]*@[a-z0-9]+:[0-9a-f]+\n/cache\n--into\n--digest\n[a-z0-9]+:[0-9a-f]+(\n--mount-path\n/[^\n]*)?(\n--registries\n/registries/registries[.]yaml)?(\n--registry-config\n/credentials)?$')
        && c.?terminationMessagePath.orValue('/dev/termination-log') == '/dev/termination-log'
        && c.?terminationMessagePolicy.orValue('') == 'FallbackToLogsOnError'
        && dyn(c).?securityContext.orValue({}) == {{ include "fettle.cel" (include "fettle.unprivilegedContext" . | fromYaml) }}
        && dyn(c).?resources.orValue({}) == {{ include "fettle.cel" (include "fettle.fillResources" . | fromYaml) }}
        && c.?volumeMounts.orValue([]).all(m, dyn(m).all(k, k in ['mountPath', 'name', 'readOnly', 'recursiveReadOnly'])
        && m.name + m.mountPath in ['cache/cache', 'tmp/tmp', 'registries/registries', 'credentials/credentials']))
      message: Fettle's controller makes only Jobs of one container, of its own image, which extracts a cache and is given nothing else
    - expression: >-
        {{ $orState }}object.spec.template.spec.?volumes.orValue([]).all(v, dyn(v).all(k, k == 'name' || v.name + '/' + k in
        ['cache/persistentVolumeClaim', 'tmp/emptyDir', 'registries/downwardAPI', 'credentials/projected'])
        && dyn(v).?persistentVolumeClaim.orValue({}).all(k, k == 'claimName')
        && dyn(v).?emptyDir.orValue({}).all(k, k == 'sizeLimit')
        && v.?downwardAPI.?items.orValue([]).all(i, i.?fieldRef.?fieldPath.orValue('') in
        ["metadata.annotations['fettle.dev/registries']", "metadata.annotations['fettle.dev/registries-ca']"])
        && v.?projected.?sources.orValue([]).all(s, dyn(s).all(k, k == 'secret') && size(s.?secret.?items.orValue([])) > 0
        && s.?secret.?items.orValue([]).all(i, i.key in ['.dockerconfigjson', '.dockercfg'])))
      message: Fettle's controller makes only Jobs with a claim, a little memory, and of Secrets no more than the keys of pull secrets
- group: ""
  resource: persistentvolumeclaims
  namespaced: true
  own: {{ $cached | quote }}
  says: PersistentVolumeClaims of kernel caches
{{- end }}
{{- end }}
