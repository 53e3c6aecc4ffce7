// SPDX-License-Identifier: Apache-2.0

package attacks

// target is an object that is not an account's own, and what an attacker would make of it.
type target struct {
	// resource is PLURAL.GROUP, or PLURAL/SUBRESOURCE.GROUP, what says whose it is.
	resource, what string
	// manifest is the object, in YAML. One of a namespace is tried in all namespaces, unless it names its own.
	manifest string
	// patch is a merge patch, an annotation by default.
	patch string
	// there: the chart made the object. only: it is not created, or only created.
	there      bool
	createOnly bool
	changeOnly bool
	// in is the only namespace in which it is tried.
	in string
}

const note = `{"metadata":{"annotations":{"attack":"1"}}}`

// The objects that an account of the chart has no business with, and those of the chart with what they must not become.
func targets() []target {
	return append(nodeTargets(), append(clusterTargets(), append(namespacedTargets(), fettleTargets()...)...)...)
}

// nodeTargets are of node2, or of nobody's node. The kubelet plugin's token is bound to node1.
func nodeTargets() []target {
	const slice = "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n"
	return []target{
		{
			resource: "resourceslices.resource.k8s.io", what: "of node2", manifest: slice + `
metadata: {name: node2-x}
spec: {driver: fettle.dev, nodeName: node2, pool: {name: node2/gpu, generation: 1, resourceSliceCount: 1}}`,
			patch: `{"spec":{"pool":{"generation":9}}}`,
		},
		{
			resource: "resourceslices.resource.k8s.io", what: "of node1 in a pool of node2", createOnly: true, manifest: slice + `
metadata: {name: node1-y}
spec:
  driver: fettle.dev
  nodeName: node1
  pool: {name: node2/gpu, generation: 9, resourceSliceCount: 1}
  devices: [{name: gpu-0, taints: [{key: a, effect: NoExecute}]}]`,
		},
		{
			resource: "resourceslices.resource.k8s.io", what: "of all nodes", manifest: slice + `
metadata: {name: all-x}
spec: {driver: fettle.dev, allNodes: true, pool: {name: all, generation: 1, resourceSliceCount: 1}}`,
		},
		{
			resource: "resourceslices.resource.k8s.io", what: "of node1 and another driver", manifest: slice + `
metadata: {name: node1-other}
spec: {driver: gpu.example.com, nodeName: node1, pool: {name: node1/gpu, generation: 1, resourceSliceCount: 1}}`,
		},
		{
			resource: "resourceslices.resource.k8s.io", what: "of node1 with other nodes' selectors", createOnly: true, manifest: slice + `
metadata: {name: node1-z}
spec:
  driver: fettle.dev
  perDeviceNodeSelection: true
  pool: {name: node1/gpu, generation: 9, resourceSliceCount: 1}
  devices: [{name: gpu-0, nodeName: node2}]`,
		},
		{resource: "acceleratornodes.fettle.dev", what: "of node2", manifest: ours("AcceleratorNode", "node2", ``)},
		{
			resource: "acceleratornodes.fettle.dev", what: "of node2, retire", manifest: ours("AcceleratorNode", "node2", ``), changeOnly: true,
			patch: `{"metadata":{"annotations":{"fettle.dev/retire":"admin"}}}`,
		},
		{
			resource: "acceleratornodes/status.fettle.dev", what: "of node2", manifest: ours("AcceleratorNode", "node2", ``),
			patch: `{"status":{"preparedClaims":7}}`,
		},
		{
			resource: "acceleratornodes/status.fettle.dev", what: "of node2, checks", manifest: ours("AcceleratorNode", "node2", ``),
			patch: `{"status":{"checks":[{"deviceClassName":"a","evidence":"e","passed":true,"reason":"R","time":"2026-01-01T00:00:00Z"}]}}`,
		},
		{
			resource: "resourceclaims/status.resource.k8s.io", what: "with devices of node2 only", manifest: claimOfNode2,
			patch: `{"status":{"devices":[{"driver":"fettle.dev","pool":"node2/gpu","device":"gpu-0"}]}}`,
		},
		{
			resource: "resourceclaims/status.resource.k8s.io", what: "with devices of node2 only, allocation", manifest: claimOfNode2,
			patch: `{"status":{"allocation":null}}`,
		},
		{resource: "resourceclaims.resource.k8s.io", what: "with devices of node2 only", manifest: claimOfNode2},
		event("kube-system", "about node2", "fettle-kubeletplugin", "{apiVersion: v1, kind: Node, name: node2}"),
		event("team-a", "about a pod", "fettle-kubeletplugin", "{apiVersion: v1, kind: Pod, namespace: team-a, name: p}"),
		event("kube-system", "about node1 in the name of kubelet", "kubelet", "{apiVersion: v1, kind: Node, name: node1}"),
		event("team-a", "about a claim", "fettle-kubeletplugin",
			"{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, namespace: team-a, name: c}"),
		{resource: "events", what: "in the name of kubelet", in: "kube-system", createOnly: true, manifest: `
apiVersion: v1
kind: Event
metadata: {name: e}
involvedObject: {apiVersion: v1, kind: Node, name: node2}
reason: R
type: Normal
source: {component: kubelet}
`},
		{resource: "nodes", what: "a label", manifest: node2, patch: `{"metadata":{"labels":{"a":"b"}}}`},
		tainted("NoExecute"), tainted("NoSchedule"),
		{
			resource: "nodes", what: "another's taint taken off", manifest: node2, changeOnly: true, patch: `{"spec":{"taints":[]}}`,
		},
		{
			resource: "nodes", what: "cordoned", manifest: node2, changeOnly: true, patch: `{"spec":{"unschedulable":true}}`,
		},
		{resource: "nodes/status", what: "of node2", manifest: node2, patch: `{"status":{"capacity":{"a.example/b":"1"}}}`},
	}
}

// tainted is node2 with a taint beside those that it has.
func tainted(effect string) target {
	return target{
		resource: "nodes", what: "a " + effect + " taint", manifest: node2, changeOnly: true,
		patch: `{"metadata":{"annotations":{"fettle.dev/taints":"a=:` + effect + `"}},"spec":{"taints":[{"key":"theirs","effect":"NoSchedule"},` +
			`{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"},{"key":"a","effect":"` + effect + `"}]}}`,
	}
}

const (
	// The API server gives a new node the second taint if it lacks it.
	node2 = `
apiVersion: v1
kind: Node
metadata: {name: node2}
spec: {taints: [{key: theirs, effect: NoSchedule}, {key: node.kubernetes.io/not-ready, effect: NoSchedule}]}
`
	claimOfNode2 = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: of-node2}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.fettle.dev}}]}}
status:
  allocation:
    devices: {results: [{request: gpu, driver: fettle.dev, pool: node2/gpu, device: gpu-0}]}
    nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node2]}]}]}
`
)

// grantedRole is one that the controller made, for bindings to name.
const grantedRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: 'fettle.dev:fpgabitstream:x', labels: {app.kubernetes.io/managed-by: fettle-controller}}
rules: [{apiGroups: [''], resources: [secrets], resourceNames: [pull], verbs: [get]}]
`

func event(in, what, component, about string) target {
	return target{resource: "events.events.k8s.io", what: what, in: in, manifest: `
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: e-` + component + `}
eventTime: "2026-01-01T00:00:00.000000Z"
type: Normal
reason: R
action: A
reportingController: ` + component + `
reportingInstance: ` + component + `-x
regarding: ` + about + "\n", createOnly: true}
}

// ours is an object of a kind of Fettle's.
func ours(kind, name, spec string) string {
	out := "apiVersion: fettle.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name + "}\n"
	if spec != "" {
		out += "spec: " + spec + "\n"
	}
	return out
}

func clusterTargets() []target {
	const class = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: "
	const managed = ", labels: {app.kubernetes.io/managed-by: fettle-controller}}\n"
	return []target{
		{resource: "deviceclasses.resource.k8s.io", what: "another's", manifest: class + "foreign}\n"},
		{resource: "deviceclasses.resource.k8s.io", what: "another's with the label", manifest: class + "labelled" + managed},
		{
			resource: "deviceclasses.resource.k8s.io", what: "shipped, all devices", manifest: class + "gpu.fettle.dev" + managed,
			patch: `{"spec":{"selectors":[]}}`,
		},
		{resource: "namespaces", what: "another's", manifest: "apiVersion: v1\nkind: Namespace\nmetadata: {name: theirs}\n"},
		{resource: "customresourcedefinitions.apiextensions.k8s.io", what: "another group's", manifest: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: xs.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: xs, kind: X}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`},
		{
			resource: "customresourcedefinitions.apiextensions.k8s.io", what: "of Fettle, with a conversion webhook", there: true,
			manifest: "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: trustpolicies.fettle.dev}\n",
			patch: `{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],` +
				`"clientConfig":{"url":"https://example.com"}}}}}`,
		},
		webhookTarget("MutatingWebhookConfiguration", "fettle-pods"), webhookTarget("ValidatingWebhookConfiguration", "fettle-config"),
		{resource: "priorityclasses.scheduling.k8s.io", what: "another's", manifest: `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: theirs}
value: 1
`},
		{resource: "priorityclasses.scheduling.k8s.io", what: "that beats all pods", createOnly: true, manifest: `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: mine, labels: {app.kubernetes.io/managed-by: fettle-controller}}
value: 1000000000
`},
		{resource: "tokenreviews.authentication.k8s.io", what: "of any token", createOnly: true, manifest: `
apiVersion: authentication.k8s.io/v1
kind: TokenReview
spec: {token: x}
`},
		{resource: "subjectaccessreviews.authorization.k8s.io", what: "of any account", createOnly: true, manifest: `
apiVersion: authorization.k8s.io/v1
kind: SubjectAccessReview
spec: {user: x, nonResourceAttributes: {path: /, verb: get}}
`},
	}
}

// webhookTarget is a configuration of the chart's that sends all Secrets somewhere.
func webhookTarget(kind, name string) target {
	plural := map[string]string{
		"MutatingWebhookConfiguration": "mutatingwebhookconfigurations", "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
	}[kind]
	return target{
		resource: plural + ".admissionregistration.k8s.io", what: "the chart's, with a webhook for Secrets", there: true,
		manifest: "apiVersion: admissionregistration.k8s.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\n",
		patch: `{"webhooks":[{"name":"a.example.com","clientConfig":{"url":"https://example.com"},"sideEffects":"None",` +
			`"admissionReviewVersions":["v1"],"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["secrets"]}]}]}`,
	}
}

func namespacedTargets() []target {
	const (
		podSpec  = "{containers: [{name: c, image: example.com/c}]}"
		template = "{metadata: {labels: {a: b}}, spec: " + podSpec + "}"
		selector = "selector: {matchLabels: {a: b}}"
		rbac     = "apiVersion: rbac.authorization.k8s.io/v1\n"
		granted  = "labels: {app.kubernetes.io/managed-by: fettle-controller}"
	)
	meta := func(version, kind, rest string) string {
		return "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: theirs}\n" + rest + "\n"
	}
	return []target{
		{resource: "pods", what: "another's", manifest: meta("v1", "Pod", "spec: "+podSpec)},
		{resource: "pods/eviction", what: "of any pod of a name", createOnly: true, manifest: meta("policy/v1", "Eviction", "")},
		{resource: "secrets", what: "another's", manifest: meta("v1", "Secret", "")},
		{resource: "secrets", what: "a token of the kubelet plugin", createOnly: true, manifest: `
apiVersion: v1
kind: Secret
metadata: {name: token, annotations: {kubernetes.io/service-account.name: fettle-kubeletplugin}}
type: kubernetes.io/service-account-token
`},
		{resource: "configmaps", what: "another's", manifest: meta("v1", "ConfigMap", "")},
		{resource: "services", what: "another's", manifest: meta("v1", "Service", "spec: {ports: [{port: 80}], selector: {a: b}}")},
		{resource: "serviceaccounts", what: "another's", manifest: meta("v1", "ServiceAccount", "")},
		{
			resource: "persistentvolumeclaims", what: "another's", manifest: meta("v1", "PersistentVolumeClaim",
				"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}"),
		},
		{resource: "leases.coordination.k8s.io", what: "another's", manifest: meta("coordination.k8s.io/v1", "Lease", "")},
		{resource: "daemonsets.apps", what: "another's", manifest: meta("apps/v1", "DaemonSet", "spec: {"+selector+", template: "+template+"}")},
		{
			resource: "deployments.apps", what: "another's",
			manifest: meta("apps/v1", "Deployment", "spec: {"+selector+", template: "+template+"}"),
		},
		{
			resource: "jobs.batch", what: "another's", manifest: meta("batch/v1", "Job",
				"spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}"),
		},
		{resource: "jobs.batch", what: "of a kernel cache, with a Secret", createOnly: true, manifest: `
apiVersion: batch/v1
kind: Job
metadata: {name: fill, labels: {fettle.dev/kernel-cache-uid: u}}
spec:
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      containers:
      - name: c
        image: registry.example/fettle:v1
        command: [/fettle, $(S)]
        env: [{name: S, valueFrom: {secretKeyRef: {name: theirs, key: k}}}]
        terminationMessagePolicy: FallbackToLogsOnError
        securityContext: {allowPrivilegeEscalation: false}
`},
		{resource: "roles.rbac.authorization.k8s.io", what: "another's", manifest: rbac + "kind: Role\nmetadata: {name: theirs}\nrules: []\n"},
		{
			resource: "roles.rbac.authorization.k8s.io", what: "granted, of all Secrets", createOnly: true, manifest: rbac +
				"kind: Role\nmetadata: {name: 'fettle.dev:fpgabitstream:x', " + granted + "}\n" +
				"rules: [{apiGroups: [''], resources: [secrets], verbs: [get]}]\n",
		},
		{
			resource: "rolebindings.rbac.authorization.k8s.io", what: "another's", manifest: rbac +
				"kind: RoleBinding\nmetadata: {name: theirs}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: theirs}\n",
		},
		{
			resource: "rolebindings.rbac.authorization.k8s.io", what: "granted, to another account", createOnly: true, manifest: rbac +
				"kind: RoleBinding\nmetadata: {name: 'fettle.dev:fpgabitstream:x', " + granted + "}\n" +
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: 'fettle.dev:fpgabitstream:x'}\n" +
				"subjects: [{kind: ServiceAccount, name: default, namespace: kube-system}]\n",
		},
		{
			resource: "resourceclaimtemplates.resource.k8s.io", what: "another's", manifest: meta("resource.k8s.io/v1", "ResourceClaimTemplate",
				"spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.fettle.dev}}]}}}"),
		},
	}
}

// fettleTargets are objects of Fettle's kinds that administrators and tenants made.
func fettleTargets() []target {
	const presetSpec = "{deviceSelector: {deviceClassNames: [gpu.fettle.dev]}}"
	const nodeTree = "{deviceSelector: {deviceClassNames: [gpu.fettle.dev]}, mounts: [{hostPath: /usr, containerPath: /h, readOnly: false}]}"
	var out []target
	for _, kind := range []struct{ kind, plural, spec string }{
		{"DevicePreset", "devicepresets", presetSpec},
		{"ClusterDevicePreset", "clusterdevicepresets", presetSpec},
		{"FPGABitstream", "fpgabitstreams", "{image: registry.example/a}"},
		{"ClusterFPGABitstream", "clusterfpgabitstreams", "{image: registry.example/a, namespaces: ['*']}"},
		{"GPUKernelCache", "gpukernelcaches", "{image: registry.example/a}"},
		{"ClusterGPUKernelCache", "clustergpukernelcaches", "{image: registry.example/a, workloadNamespaces: ['*']}"},
		{"TrustPolicy", "trustpolicies", "{images: [registry.example/**], mode: Skip}"},
		{"PartitionPolicy", "partitionpolicies", "{devices: {passthrough: true}}"},
		{"AcceleratorStack", "acceleratorstacks", "{driver: {engine: Host}}"},
	} {
		manifest := ours(kind.kind, "theirs", kind.spec)
		out = append(out,
			target{resource: kind.plural + ".fettle.dev", what: "another's", manifest: manifest},
			target{
				resource: kind.plural + "/status.fettle.dev", what: "another's", manifest: manifest,
				patch: `{"status":{"observedGeneration":7}}`,
			},
		)
	}
	return append(out,
		target{
			resource: "clusterdevicepresets.fettle.dev", what: "a shipped name, with the node's /usr",
			manifest: ours("ClusterDevicePreset", "nvidia.fettle.dev", presetSpec),
			patch:    `{"spec":{"mounts":[{"hostPath":"/usr","containerPath":"/h","readOnly":false}]}}`,
		},
		target{
			resource: "clusterdevicepresets.fettle.dev", what: "another name, with the node's /usr", createOnly: true,
			manifest: ours("ClusterDevicePreset", "mine", nodeTree),
		},
	)
}
