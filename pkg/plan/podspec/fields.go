// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"slices"
	"strings"
)

// class is what a plan makes of a field of a pod's spec.
type class int

const (
	// unknown is a field that is in no list: newer than this program.
	unknown class = iota
	// unjudged may keep a pod from a node, and is not looked at.
	unjudged
	// judged is looked at.
	judged
	// indifferent cannot keep a pod from a node.
	indifferent
)

// group is a list of fields of one class, by the type of the API that has them.
type group struct {
	class class
	// why says where a field is judged, or why it decides nothing, or what decides.
	why    string
	fields map[string]string
}

// rule is what holds for one field.
type rule struct {
	class class
	// only are the values that are judged, if not all are.
	only []string
}

// ruleOf reads FIELD, or FIELD=VALUE|VALUE of which only those values are judged.
func ruleOf(text string, c class) (field string, r rule) {
	field, values, some := strings.Cut(text, "=")
	r = rule{class: c}
	if some {
		r.only = strings.Split(values, "|")
	}
	return field, r
}

// rules returns the rule of each known field, as TYPE.FIELD. A field with a rule of its own is not looked into, so that a rule for a
// structure holds for all that it will ever have.
func rules() map[string]rule {
	out := map[string]rule{}
	for _, g := range groups() {
		for name, fields := range g.fields {
			for field := range strings.FieldsSeq(fields) {
				field, r := ruleOf(field, g.class)
				out[name+"."+field] = r
			}
		}
	}
	return out
}

// groups are all fields of a pod's spec. A field of Kubernetes that is in none of them is unknown, which a test tells of those that this
// program is built with. A structure is in a list as a whole only if it is unjudged, or is a preference, which refuses no node whatever
// it says. FIELD=A|B is judged if it has one of these values, and unjudged with another.
func groups() []group {
	return slices.Concat(unjudgedGroups(), judgedGroups(), indifferentGroups())
}

func unjudgedGroups() []group {
	return []group{
		{unjudged, "persistent volumes are bound, attached and used on some nodes only", map[string]string{
			"VolumeSource": "persistentVolumeClaim ephemeral csi",
		}},
		{unjudged, "disks are attached to one node, or to so many a node, or need a driver on the node", map[string]string{
			"VolumeSource": `awsElasticBlockStore azureDisk cinder fc flexVolume flocker gcePersistentDisk iscsi photonPersistentDisk
				portworxVolume quobyte rbd scaleIO storageos vsphereVolume`,
		}},
		{unjudged, "pods that have to be there may be on nodes whose pods are not read", map[string]string{
			"PodAffinity": "requiredDuringSchedulingIgnoredDuringExecution",
		}},
		{unjudged, "other pods of the group decide, too", map[string]string{"PodSpec": "schedulingGroup"}},
		{unjudged, "kubelet may refuse what it does not support or was not told to allow", map[string]string{
			"PodSecurityContext": "sysctls windowsOptions", "SecurityContext": "windowsOptions", "VolumeMount": "bindMountOptions",
		}},
		{unjudged, "is added to pods that have a node", map[string]string{"PodSpec": "ephemeralContainers"}},
	}
}

func judgedGroups() []group {
	return []group{
		{judged, "refused before any node is tried", map[string]string{"PodSchedulingGate": "name"}},
		{judged, "package plan skips a pod that has a node", map[string]string{"PodSpec": "nodeName"}},
		{judged, "another scheduler has rules of its own", map[string]string{"PodSpec": "schedulerName=default-scheduler"}},
		{judged, "kubelet refuses pods for another system, and devices are on Linux", map[string]string{"PodOS": "name=linux"}},
		{judged, "labels, taints and conditions of nodes", map[string]string{
			"PodSpec": "nodeSelector", "NodeSelectorRequirement": "key operator values",
			"Toleration": "key operator value effect tolerationSeconds",
		}},
		{judged, "CPU, memory and other quantities of nodes", map[string]string{
			"PodSpec": "overhead", "ResourceRequirements": "limits requests", "Container": "restartPolicy",
		}},
		{judged, "devices", map[string]string{
			"PodResourceClaim": "name resourceClaimName resourceClaimTemplateName", "ResourceClaim": "name request",
		}},
		{judged, "Ports. The ports of pods on the host's network are those of the host", map[string]string{
			"ContainerPort": "hostPort containerPort protocol hostIP", "PodSpec": "hostNetwork",
		}},
		{judged, "AntiAffinity. With a larger domain than a node, pods decide that may not be read. The API server merges the keys of labels " +
			"into the selector", map[string]string{
			"PodAffinityTerm": "labelSelector namespaces namespaceSelector matchLabelKeys mismatchLabelKeys topologyKey=kubernetes.io/hostname",
		}},
		{judged, "a constraint that only scores refuses no node", map[string]string{
			"TopologySpreadConstraint": "whenUnsatisfiable=ScheduleAnyway",
		}},
		{judged, "to restart all containers needs a kubelet that declares it", map[string]string{"ContainerRestartRule": "action=Restart"}},
		{judged, "which pods have to make way, and who may have them make way: package reclaim", map[string]string{
			"PodSpec": "priority preemptionPolicy",
		}},
		{judged, "Unjudged: with the host's network it needs a kubelet that declares it", map[string]string{"PodSpec": "hostUsers"}},
	}
}

func indifferentGroups() []group {
	return []group{
		{indifferent, "a preference scores nodes and refuses none", map[string]string{
			"NodeAffinity":    "preferredDuringSchedulingIgnoredDuringExecution",
			"PodAffinity":     "preferredDuringSchedulingIgnoredDuringExecution",
			"PodAntiAffinity": "preferredDuringSchedulingIgnoredDuringExecution",
		}},
		{indifferent, "whenUnsatisfiable decides", map[string]string{
			"TopologySpreadConstraint": "maxSkew topologyKey labelSelector minDomains nodeAffinityPolicy nodeTaintsPolicy matchLabelKeys",
		}},
		{indifferent, "admission has made priority, nodeSelector, tolerations and overhead of it", map[string]string{
			"PodSpec": "priorityClassName runtimeClassName",
		}},
		{indifferent, "how the pod is called, reached and ended, and what it may ask the API server", map[string]string{
			"PodSpec": `restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy serviceAccountName serviceAccount
				automountServiceAccountToken hostPID hostIPC shareProcessNamespace hostname subdomain enableServiceLinks setHostnameAsFQDN
				hostnameOverride`,
			"LocalObjectReference": "name", "HostAlias": "ip hostnames", "PodReadinessGate": "conditionType",
			"PodDNSConfig": "nameservers searches", "PodDNSConfigOption": "name value", "EvictionResponder": "name priority",
		}},
		{indifferent, "what a container runs, and how it is watched", map[string]string{
			"Container": `name image command args workingDir terminationMessagePath terminationMessagePolicy imagePullPolicy stdin stdinOnce
				tty`,
			"ContainerPort": "name", "ContainerResizePolicy": "resourceName restartPolicy", "ContainerRestartRuleOnExitCodes": "operator values",
			"EnvFromSource": "prefix", "EnvVar": "name value", "ConfigMapEnvSource": "optional", "SecretEnvSource": "optional",
			"ObjectFieldSelector": "apiVersion fieldPath", "ResourceFieldSelector": "containerName resource divisor",
			"ConfigMapKeySelector": "key optional", "SecretKeySelector": "key optional", "FileKeySelector": "volumeName path key optional",
			"Probe": `initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold
				terminationGracePeriodSeconds`,
			"ExecAction": "command", "HTTPGetAction": "path port host scheme protocol", "HTTPHeader": "name value",
			"TCPSocketAction": "port host", "GRPCAction": "port service mode", "SleepAction": "seconds", "Lifecycle": "stopSignal",
		}},
		{indifferent, "under which rights a container runs. A node where it cannot is no worse for the scheduler", map[string]string{
			"PodSecurityContext": `runAsUser runAsGroup runAsNonRoot supplementalGroups supplementalGroupsPolicy fsGroup fsGroupChangePolicy
				seLinuxChangePolicy`,
			"SecurityContext": "privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount",
			"Capabilities":    "add drop", "SELinuxOptions": "user role type level",
			"SeccompProfile": "type localhostProfile", "AppArmorProfile": "type localhostProfile",
		}},
		{indifferent, "volumes that every node has, or reaches over the network", map[string]string{
			"Volume": "name", "VolumeDevice": "name devicePath",
			"VolumeMount":          "name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr",
			"HostPathVolumeSource": "path type", "EmptyDirVolumeSource": "medium sizeLimit mode", "ImageVolumeSource": "reference pullPolicy",
			"GitRepoVolumeSource": "repository revision directory", "NFSVolumeSource": "server path readOnly",
			"GlusterfsVolumeSource": "endpoints path readOnly", "AzureFileVolumeSource": "secretName shareName readOnly",
			"CephFSVolumeSource": "monitors path user secretFile readOnly", "KeyToPath": "key path mode user",
			"SecretVolumeSource": "secretName defaultMode optional defaultUser", "SecretProjection": "optional",
			"ConfigMapVolumeSource": "defaultMode optional defaultUser", "ConfigMapProjection": "optional",
			"DownwardAPIVolumeSource": "defaultMode defaultUser", "DownwardAPIVolumeFile": "path mode user",
			"ProjectedVolumeSource":         "defaultMode defaultUser",
			"ServiceAccountTokenProjection": "audience expirationSeconds path user",
			"ClusterTrustBundleProjection":  "name signerName labelSelector optional path user",
			"PodCertificateProjection": `signerName keyType maxExpirationSeconds credentialBundlePath keyPath certificateChainPath
				userAnnotations user`,
		}},
	}
}
