// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The condition types of a cache, beside ConditionResolved, ConditionVerified and ConditionReady: the first two say what ConditionReady
// needs.
const (
	// ConditionCompatible is true if the cache fits a GPU of the cluster, false if it fits none, unknown until nodes told.
	ConditionCompatible = "Compatible"
	// ConditionDistributed is true if the cache is everywhere where it should be: on all nodes that fetch it ahead, in all volumes.
	ConditionDistributed = "Distributed"
	// ConditionDegraded is true while a node or volume could not get the cache, with the reason.
	ConditionDegraded = "Degraded"
	// ConditionNamespaceMissing is true while a namespace of workloadNamespaces is not there.
	ConditionNamespaceMissing = "NamespaceMissing"
)

// CachePhase sums the conditions up in one word. They say more, and only they are for programs.
//
// +kubebuilder:validation:Enum=Pending;Downloading;Extracted;Running;Outdated;Deleting;Error;NoNamespace
type CachePhase string

// The phases.
const (
	// CachePending: what the image is, or who vouches for it, is not known yet.
	CachePending CachePhase = "Pending"
	// CacheDownloading: no node has it yet, and some fetch it.
	CacheDownloading CachePhase = "Downloading"
	// CacheExtracted: it is on nodes or in volumes, and no pod uses it.
	CacheExtracted CachePhase = "Extracted"
	// CacheRunning: pods use it.
	CacheRunning CachePhase = "Running"
	// CacheOutdated: pods use an earlier digest of its tag, and none the newest.
	CacheOutdated CachePhase = "Outdated"
	// CacheDeleting: the object is being deleted.
	CacheDeleting CachePhase = "Deleting"
	// CacheError: it cannot be used; the conditions say why.
	CacheError CachePhase = "Error"
	// CacheNoNamespace: none of its namespaces is there.
	CacheNoNamespace CachePhase = "NoNamespace"
)

// GPUKernelCacheStatus is what became of a cache.
type GPUKernelCacheStatus struct {
	// ObservedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Summary has texts for the columns of kubectl.
	// +optional
	Summary *ObjectSummary `json:"summary,omitempty"`
	// Phase sums the conditions up for people.
	// +optional
	Phase CachePhase `json:"phase,omitempty"`
	// ResolvedDigest is what the image's reference meant when it was last read: an image, or an index with one for each platform.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	ResolvedDigest string `json:"resolvedDigest,omitempty"`
	// ResolvedImage is the reference that was read, spec.image at that time.
	// +kubebuilder:validation:MaxLength=525
	// +optional
	ResolvedImage string `json:"resolvedImage,omitempty"`
	// PreviousDigests are what it meant before, the newest first.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=71
	// +optional
	PreviousDigests []string `json:"previousDigests,omitempty"`
	// Admitted is how many of a thousand nodes may fetch the digest ahead of claims by now. It grows as nodes have it, so that not all read
	// the registry at once. Claims do not wait for it. Unset: all nodes may.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Admitted *int32 `json:"admitted,omitempty"`
	// AdmittedSince is when Admitted became what it is. An hour later nodes wait no longer.
	// +optional
	AdmittedSince *metav1.Time `json:"admittedSince,omitempty"`
	// Image is what the image says of itself.
	// +optional
	Image *CacheImage `json:"image,omitempty"`
	// Verification is who vouches for the digest.
	// +optional
	Verification *ImageVerdict `json:"verification,omitempty"`
	// Counts are of nodes and pods. None are shown as 0.
	// +optional
	Counts CacheCounts `json:"counts"`
	// Volumes are those that were made: the first 256.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Volumes []CacheVolume `json:"volumes,omitempty"`
	// Conditions are Resolved, Verified, Compatible, Distributed, Ready, Degraded and NamespaceMissing. All are kept.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CacheImage is what an image of a cache says of itself. Its files, which the nodes read, decide.
type CacheImage struct {
	// Digest is that of the image: the resolved one, or of an index the one for the controller's platform.
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// CompressedBytes are the bytes of its layers; Bytes are those of the files, 0 where it does not say.
	CompressedBytes int64 `json:"compressedBytes"`
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Type is the program that it is for, as far as labels tell.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Type string `json:"type,omitempty"`
	// Targets are the GPUs that its labels name, such as "cuda sm_90": the first 16.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	Targets []string `json:"targets,omitempty"`
}

// CacheCounts are nodes and pods.
type CacheCounts struct {
	// Nodes is how many nodes have the newest digest, or tried to.
	Nodes int32 `json:"nodes"`
	// NodesInUse is on how many of them a pod uses it, NodesNotInUse on how many none does.
	NodesInUse    int32 `json:"nodesInUse"`
	NodesNotInUse int32 `json:"nodesNotInUse"`
	// NodesError is how many nodes could not get it or have no GPU that it is for.
	NodesError int32 `json:"nodesError"`
	// PodsRunning is how many pods use the cache, PodsOutdated how many of them an earlier digest. A ResourceClaim that pods share counts
	// once, and a pod with a volume that is filled for each one.
	PodsRunning  int32 `json:"podsRunning"`
	PodsOutdated int32 `json:"podsOutdated"`
}

// CacheVolume is a volume with the cache in it.
type CacheVolume struct {
	// Namespace is the claim's.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Node is the one that it is for. Empty: all.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`
	// ClaimName is the PersistentVolumeClaim's, JobName that of the Job that fills it.
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	JobName string `json:"jobName,omitempty"`
	// Digest is what is in it.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// Phase is Pending, Filling, Filled or Failed.
	// +kubebuilder:validation:Enum=Pending;Filling;Filled;Failed
	Phase CacheVolumePhase `json:"phase"`
	// Message says what it waits for, or why it failed.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// CacheVolumePhase is how far a volume is.
type CacheVolumePhase string

// The phases.
const (
	CacheVolumePending CacheVolumePhase = "Pending"
	CacheVolumeFilling CacheVolumePhase = "Filling"
	CacheVolumeFilled  CacheVolumePhase = "Filled"
	CacheVolumeFailed  CacheVolumePhase = "Failed"
)

// NodeCache is a cache on a node, as an object has it.
type NodeCache struct {
	// Namespace is the GPUKernelCache's. Empty: it is a ClusterGPUKernelCache.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name is the object's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Digest is the image's.
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
	// Phase is Downloading, Extracted or Error.
	// +kubebuilder:validation:Enum=Downloading;Extracted;Error
	Phase NodeCachePhase `json:"phase"`
	// Reason and Message say why it is not here, or which GPUs it does not fit.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// CompatibleDevices and IncompatibleDevices are how many of the node's GPUs it fits and does not fit.
	// +kubebuilder:validation:Minimum=0
	CompatibleDevices int32 `json:"compatibleDevices"`
	// +kubebuilder:validation:Minimum=0
	IncompatibleDevices int32 `json:"incompatibleDevices"`
	// Bytes is what it takes on the disk, whoever else has it.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Claims is how many prepared claims have it.
	// +kubebuilder:validation:Minimum=0
	Claims int32 `json:"claims"`
}

// NodeCachePhase is Downloading, Extracted or Error.
type NodeCachePhase string

// The phases.
const (
	NodeCacheDownloading NodeCachePhase = "Downloading"
	NodeCacheExtracted   NodeCachePhase = "Extracted"
	NodeCacheError       NodeCachePhase = "Error"
)
