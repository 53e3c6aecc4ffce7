// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of caches.
const (
	KindGPUKernelCache        = "GPUKernelCache"
	KindClusterGPUKernelCache = "ClusterGPUKernelCache"
)

// GPUKernelCache is an image of compiled GPU kernels for the claims of its own namespace. It is on a node once, whoever has it, and a claim
// that names it in its GPUConfig finds its kernels where the program looks for them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=gkc,categories=fettle
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.counts.nodes`
// +kubebuilder:printcolumn:name="Node-In-Use",type=integer,JSONPath=`.status.counts.nodesInUse`
// +kubebuilder:printcolumn:name="Node-Not-In-Use",type=integer,JSONPath=`.status.counts.nodesNotInUse`
// +kubebuilder:printcolumn:name="Node-Error",type=integer,JSONPath=`.status.counts.nodesError`
// +kubebuilder:printcolumn:name="Pod-Running",type=integer,JSONPath=`.status.counts.podsRunning`
// +kubebuilder:printcolumn:name="Pod-Outdated",type=integer,JSONPath=`.status.counts.podsOutdated`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.resolvedDigest`
// +kubebuilder:printcolumn:name="Verified",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Verified")].status`
type GPUKernelCache struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is which image it is, and how nodes and claims get it.
	Spec GPUKernelCacheSpec `json:"spec"`
	// Status is what became of it.
	// +optional
	Status GPUKernelCacheStatus `json:"status,omitzero"`
}

// GPUKernelCacheList is a list of GPUKernelCaches.
//
// +kubebuilder:object:root=true
type GPUKernelCacheList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []GPUKernelCache `json:"items"`
}

// ClusterGPUKernelCache is an image of compiled GPU kernels for the claims of the namespaces in its list.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cgkc,categories=fettle
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.counts.nodes`
// +kubebuilder:printcolumn:name="Node-In-Use",type=integer,JSONPath=`.status.counts.nodesInUse`
// +kubebuilder:printcolumn:name="Node-Not-In-Use",type=integer,JSONPath=`.status.counts.nodesNotInUse`
// +kubebuilder:printcolumn:name="Node-Error",type=integer,JSONPath=`.status.counts.nodesError`
// +kubebuilder:printcolumn:name="Pod-Running",type=integer,JSONPath=`.status.counts.podsRunning`
// +kubebuilder:printcolumn:name="Pod-Outdated",type=integer,JSONPath=`.status.counts.podsOutdated`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.resolvedDigest`
// +kubebuilder:printcolumn:name="Verified",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Verified")].status`
// +kubebuilder:printcolumn:name="Namespaces",type=string,priority=1,JSONPath=`.status.summary.namespaces`
type ClusterGPUKernelCache struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is which image it is, who may have it, and how.
	Spec ClusterGPUKernelCacheSpec `json:"spec"`
	// Status is what became of it.
	// +optional
	Status GPUKernelCacheStatus `json:"status,omitzero"`
}

// ClusterGPUKernelCacheList is a list of ClusterGPUKernelCaches.
//
// +kubebuilder:object:root=true
type ClusterGPUKernelCacheList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []ClusterGPUKernelCache `json:"items"`
}

// ClusterGPUKernelCacheSpec is a GPUKernelCacheSpec with the namespaces that it is for.
//
// +kubebuilder:validation:XValidation:rule="!has(self.distribution) || !has(self.distribution.type) || self.distribution.type == 'NodeLocal' || !('*' in self.workloadNamespaces)",message="volumes are made in the namespaces that are named: list them, or use distribution.type NodeLocal"
type ClusterGPUKernelCacheSpec struct {
	GPUKernelCacheSpec `json:",inline"`

	// WorkloadNamespaces are those whose claims may have it, or "*" for all. With volumes, each gets its own.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`
	WorkloadNamespaces []string `json:"workloadNamespaces"`
}

// GPUKernelCacheSpec is which image a cache is, and how nodes and claims get it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.updatePolicy) || !has(self.updatePolicy.type) || self.updatePolicy.type != 'Pinned' || self.image.contains('@sha256:')",message="updatePolicy.type Pinned needs an image by digest: registry/repository@sha256:DIGEST"
// +kubebuilder:validation:XValidation:rule="!(has(self.storageClassName) || has(self.accessModes) || has(self.podTemplate)) || has(self.distribution) && has(self.distribution.type) && self.distribution.type != 'NodeLocal'",message="storageClassName, accessModes and podTemplate are for volumes: set distribution.type to ROXVolume or RWOPerNode"
// +kubebuilder:validation:XValidation:rule="!has(self.accessModes) || !has(self.distribution) || !has(self.distribution.type) || self.distribution.type != 'ROXVolume' || 'ReadOnlyMany' in self.accessModes",message="distribution.type ROXVolume needs ReadOnlyMany among accessModes"
type GPUKernelCacheSpec struct {
	// Image is an OCI image by tag or digest: registry/repository:TAG or registry/repository@sha256:DIGEST.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=525
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+([.-][a-z0-9]+)*(:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[a-z0-9]+((\\\\.|_|__|-+)[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$')",message="must be registry/repository:TAG or registry/repository@sha256:DIGEST, in lower case"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([^/]*[.:][^/]*|localhost)/')",message="must name its registry by a host with a dot or a port, such as docker.io"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^/]+/[^:@]{1,255}([:@]|$)') && !self.matches('@sha256:0{64}$')",message="must have a repository of at most 255 characters, and no digest of zeros"
	Image string `json:"image"`
	// ImagePullSecrets are Secrets of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg in the object's namespace; for a
	// ClusterGPUKernelCache in the driver's.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.name != '' && s.name.size() <= 253)",message="name each Secret, in at most 253 characters"
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// UpdatePolicy is what a tag that moved means. Unset: new claims get what it means now.
	// +optional
	UpdatePolicy *CacheUpdatePolicy `json:"updatePolicy,omitempty"`
	// Type is the program that the cache is for. Unset: Auto, what the image and its files say.
	// +optional
	Type CacheType `json:"type,omitempty"`
	// Verification is how the image's signatures are looked at. Who must have signed it is a TrustPolicy's to say.
	// +optional
	Verification *CacheVerification `json:"verification,omitempty"`
	// Compatibility is what becomes of a claim with a GPU that the cache is not for.
	// +optional
	Compatibility *CacheCompatibility `json:"compatibility,omitempty"`
	// Mount is how claims see the cache, where they do not say themselves.
	// +optional
	Mount *CacheMount `json:"mount,omitempty"`
	// Distribution is how the cache comes to the nodes. Unset: NodeLocal.
	// +optional
	Distribution *CacheDistribution `json:"distribution,omitempty"`
	// StorageClassName is that of the volumes. Unset: the cluster's default.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`
	// AccessModes are those of the volumes. Unset: ReadWriteOnce and ReadOnlyMany for ROXVolume, ReadWriteOnce for RWOPerNode.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Enum=ReadWriteOnce;ReadOnlyMany;ReadWriteMany;ReadWriteOncePod
	// +optional
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// PodTemplate is added to the pods of the Jobs that fill volumes.
	// +optional
	PodTemplate *CachePodTemplate `json:"podTemplate,omitempty"`
	// Retention is how long nodes keep what no claim uses.
	// +optional
	Retention *CacheRetention `json:"retention,omitempty"`
}

// CacheUpdatePolicy is what a tag that moved means.
type CacheUpdatePolicy struct {
	// Type is OnTagMove: new claims get what the tag means now, and those that have the earlier one keep it; or Pinned, for an image by
	// digest. Unset: OnTagMove.
	// +kubebuilder:validation:Enum=OnTagMove;Pinned
	// +optional
	Type CacheUpdateType `json:"type,omitempty"`
	// Interval is how often the registry is asked, 30s or longer. Unset: the controller's own.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('30s') && duration(self) <= duration('168h')",message="must be 30s to 168h"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// CacheUpdateType is OnTagMove or Pinned.
type CacheUpdateType string

// The types.
const (
	CacheUpdateOnTagMove CacheUpdateType = "OnTagMove"
	CacheUpdatePinned    CacheUpdateType = "Pinned"
)

// CacheType is the program that a cache is for.
//
// +kubebuilder:validation:Enum=Auto;Triton;VLLM;Inductor;CUDACompute;Generic
type CacheType string

// The types.
const (
	CacheAuto        CacheType = "Auto"
	CacheTriton      CacheType = "Triton"
	CacheVLLM        CacheType = "VLLM"
	CacheInductor    CacheType = "Inductor"
	CacheCUDACompute CacheType = "CUDACompute"
	// CacheGeneric is a directory of which nothing is known: it is mounted where mount.path says, and fits every GPU unless
	// compatibility.targets says otherwise.
	CacheGeneric CacheType = "Generic"
)

// CacheVerification is how an image's signatures are looked at.
type CacheVerification struct {
	// Mode counts where it is stricter than that of the TrustPolicies. Unset: theirs.
	// +optional
	Mode VerificationMode `json:"mode,omitempty"`
	// Format is the form in which the image is said to be signed. It is a hint for people: all forms that the TrustPolicies take are
	// looked for.
	// +optional
	Format SignatureFormat `json:"format,omitempty"`
}

// CacheCompatibility is what becomes of a claim with a GPU that the cache is not for.
type CacheCompatibility struct {
	// OnMismatch is Refuse: the claim is refused; Skip: it goes without the cache; or Mount: it gets it all the same. Unset: Refuse.
	// +kubebuilder:validation:Enum=Refuse;Skip;Mount
	// +optional
	OnMismatch CacheMismatch `json:"onMismatch,omitempty"`
	// Targets are the GPUs that the cache is for, where neither its files nor the image say.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Targets []CacheTarget `json:"targets,omitempty"`
}

// CacheMismatch is Refuse, Skip or Mount.
type CacheMismatch string

// What can become of a claim.
const (
	CacheMismatchRefuse CacheMismatch = "Refuse"
	CacheMismatchSkip   CacheMismatch = "Skip"
	CacheMismatchMount  CacheMismatch = "Mount"
)

// CacheTarget is a sort of GPU.
//
// +kubebuilder:validation:XValidation:rule="self.backend != 'cuda' || self.arch.matches('^(sm_|compute_)?[1-9][0-9]{1,2}[af]?$')",message="arch of backend cuda must be one such as 90, sm_90 or sm_90a"
// +kubebuilder:validation:XValidation:rule="self.backend != 'hip' || self.arch.matches('^gfx[1-9][0-9a-f]{2,5}(:[a-z]+[0-9a-z]*[+-])*$')",message="arch of backend hip must be one such as gfx942 or gfx942:sramecc+:xnack-"
type CacheTarget struct {
	// Backend is cuda or hip.
	// +kubebuilder:validation:Enum=cuda;hip
	Backend string `json:"backend"`
	// Arch is sm_90, 90 and the like for cuda, gfx942 and the like for hip.
	// +kubebuilder:validation:MaxLength=32
	Arch string `json:"arch"`
}

// CacheMount is how claims see a cache.
type CacheMount struct {
	// Path is the directory of the container in which the cache is: absolute and clean, and none that the container's own programs or
	// Fettle rely on, such as /etc. Unset: where the program that wrote it had it,
	// which its files tell. What is in volumes is for pods that mount them there.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^(/([^/.]|[.][^/.]|[.][.][^/])[^/]*)+$') && self.matches('^[\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{P}\\\\p{S} ]*$') && !self.contains('\\uFFFD') && bytes(self).size() <= 256",message="must be absolute, clean and printable: no //, no . or .. and no / at the end, in at most 256 bytes"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(/(run|usr|usr/local|var)|/([.]fettle|bin|dev|etc|lib|lib32|lib64|libx32|proc|run/secrets|sbin|sys|usr/bin|usr/lib|usr/lib32|usr/lib64|usr/libx32|usr/local/fettle|usr/sbin|var/run)(/.*)?)$')",message="must not cover or lie in a directory that containers rely on, such as /etc: use one such as /mnt/cache"
	// +optional
	Path string `json:"path,omitempty"`
	// Access is Overlay, ReadOnly or Seed. Unset: Seed for pods with hostUsers: false, whose users an overlay cannot be mapped to, else
	// Overlay.
	// +optional
	Access CacheAccess `json:"access,omitempty"`
	// WritableLimit bounds what a claim may add in memory: 1Mi to 64Gi. Unset: 1Gi.
	// +kubebuilder:validation:XValidation:rule="self.size() <= 32 && !self.matches('[eE].*[0-9]{3}') && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('64Gi')) <= 0",message="must be 1Mi to 64Gi"
	// +optional
	WritableLimit *resource.Quantity `json:"writableLimit,omitempty"`
	// Env is Set: the variables that lead programs to the cache are set in containers; or None. Unset: Set.
	// +kubebuilder:validation:Enum=Set;None
	// +optional
	Env CacheEnv `json:"env,omitempty"`
}

// CacheAccess is how a claim has a cache.
//
// +kubebuilder:validation:Enum=Overlay;ReadOnly;Seed
type CacheAccess string

// The ways.
const (
	// CacheAccessOverlay lets the claim add to the cache, in memory of its own that goes with it.
	CacheAccessOverlay CacheAccess = "Overlay"
	// CacheAccessReadOnly has all claims share what is there. Many programs end with an error where they miss something.
	CacheAccessReadOnly CacheAccess = "ReadOnly"
	// CacheAccessSeed lets the claim add to the cache as well, by directories of its own with links to what is there. It is for pods in user
	// namespaces, and for programs that an overlay confuses.
	CacheAccessSeed CacheAccess = "Seed"
)

// CacheEnv is Set or None.
type CacheEnv string

// The ways.
const (
	CacheEnvSet  CacheEnv = "Set"
	CacheEnvNone CacheEnv = "None"
)

// CacheDistribution is how a cache comes to the nodes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nodeSelector) || !has(self.type) || self.type != 'ROXVolume'",message="a volume for all nodes has no nodeSelector: use podTemplate.spec.nodeSelector for the Job that fills it"
type CacheDistribution struct {
	// Type is NodeLocal: in the node's own store, for claims; ROXVolume: one volume a namespace, for pods that name its claim; or
	// RWOPerNode: a volume a namespace and node. Volumes come beside the node's store, not in its place. Unset: NodeLocal.
	// +kubebuilder:validation:Enum=NodeLocal;ROXVolume;RWOPerNode
	// +optional
	Type CacheDistributionType `json:"type,omitempty"`
	// Prewarm is which nodes fetch the cache before a claim asks for it: Matching, those with a GPU that it is for; All, those with a
	// GPU; or None. Unset: Matching.
	// +kubebuilder:validation:Enum=Matching;All;None
	// +optional
	Prewarm CachePrewarm `json:"prewarm,omitempty"`
	// NodeSelector are labels of the nodes that get a volume each. Unset: all with a GPU that the cache is for.
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="must be labels: keys of at most 317 characters, values of at most 63"
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// CacheDistributionType is NodeLocal, ROXVolume or RWOPerNode.
type CacheDistributionType string

// The types.
const (
	CacheNodeLocal  CacheDistributionType = "NodeLocal"
	CacheROXVolume  CacheDistributionType = "ROXVolume"
	CacheRWOPerNode CacheDistributionType = "RWOPerNode"
)

// CachePrewarm is Matching, All or None.
type CachePrewarm string

// Which nodes fetch a cache ahead.
const (
	CachePrewarmMatching CachePrewarm = "Matching"
	CachePrewarmAll      CachePrewarm = "All"
	CachePrewarmNone     CachePrewarm = "None"
)

// CachePodTemplate is what is added to the pods of Jobs. What Fettle needs itself, the node of the volume before all, stays.
type CachePodTemplate struct {
	// Metadata are labels and annotations.
	// +optional
	Metadata CachePodMetadata `json:"metadata,omitzero"`
	// Spec is where the pods may run.
	// +optional
	Spec CachePodSpec `json:"spec,omitzero"`
	// LeftOut says that a process did not keep the rest in memory: a template may take as much as the API server holds. No object has it.
	LeftOut bool `json:"-"`
}

// CachePodMetadata are labels and annotations of a pod.
type CachePodMetadata struct {
	// Labels are added.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are added.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// CachePodSpec is where a pod may run.
type CachePodSpec struct {
	// NodeSelector is added to that of the pod.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations are added.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Affinity is the pod's.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// PriorityClassName is the pod's.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}

// CacheRetention is how long nodes keep what no claim uses.
type CacheRetention struct {
	// Policy is LRU: until its room is needed; or Keep: as long as the object is there and means the digest. All that a node keeps so takes at
	// most half of its store; what has no room there is treated as with LRU. Unset: LRU.
	// +kubebuilder:validation:Enum=LRU;Keep
	// +optional
	Policy CacheRetentionPolicy `json:"policy,omitempty"`
	// KeepOldDigests is how many digests that the tag had before are shown. Nodes keep one for as long as claims have it. Unset: 3.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	// +optional
	KeepOldDigests *int32 `json:"keepOldDigests,omitempty"`
}

// CacheRetentionPolicy is LRU or Keep.
type CacheRetentionPolicy string

// The policies.
const (
	CacheRetentionLRU  CacheRetentionPolicy = "LRU"
	CacheRetentionKeep CacheRetentionPolicy = "Keep"
)
