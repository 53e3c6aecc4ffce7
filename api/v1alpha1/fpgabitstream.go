// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The condition types of an FPGABitstream and a ClusterFPGABitstream.
const (
	// ConditionResolved is true while status.images says what the reference means, as it was last read from the registry.
	ConditionResolved = "Resolved"
	// ConditionVerified is true if the TrustPolicies for the image verified signatures of the digest, and unknown while none is for it.
	ConditionVerified = "Verified"
)

// FPGABitstream is an image for FPGA regions that claims of its own namespace may name. Whether they may load it is the policy's of
// the DeviceClass.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName={bitstream,bitstreams},categories=fettle
// +kubebuilder:printcolumn:name="Resolved",type=string,JSONPath=`.status.conditions[?(@.type=="Resolved")].status`
// +kubebuilder:printcolumn:name="Verified",type=string,JSONPath=`.status.conditions[?(@.type=="Verified")].status`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.status.images[*].interfaceID`
// +kubebuilder:printcolumn:name="AFU",type=string,JSONPath=`.status.images[*].afuID`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.images[*].size`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.digest`
type FPGABitstream struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is where the bitstream is from.
	Spec FPGABitstreamSpec `json:"spec"`
	// Status is what the controller found there.
	// +optional
	Status FPGABitstreamStatus `json:"status,omitzero"`
}

// FPGABitstreamList is a list of FPGABitstreams.
//
// +kubebuilder:object:root=true
type FPGABitstreamList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []FPGABitstream `json:"items"`
}

// FPGABitstreamSpec is where a bitstream is from.
type FPGABitstreamSpec struct {
	// Image is an OCI artifact by tag or digest: registry/repository:TAG or registry/repository@sha256:DIGEST. An index may hold one
	// manifest for each interface id.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+([.-][a-z0-9]+)*(:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[a-z0-9]+((\\\\.|_|__|-+)[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$')",message="must be registry/repository:TAG or registry/repository@sha256:DIGEST, in lower case"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([^/]*[.:][^/]*|localhost)/')",message="must name its registry by a host with a dot or a port, such as docker.io"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^/]+/[^:@]{1,255}([:@]|$)') && !self.matches('@sha256:0{64}$')",message="must have a repository of at most 255 characters, and no digest of zeros"
	Image string `json:"image"`
	// ImagePullSecrets are Secrets of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg in the object's namespace; for a
	// ClusterFPGABitstream in the driver's.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.name != '' && s.name.size() <= 253)",message="name each Secret, in at most 253 characters"
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
}

// ClusterFPGABitstream is an image for FPGA regions that claims of the namespaces in its list may name. It is the administrator's, and
// alone may name a file on the nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName={clusterbitstream,clusterbitstreams},categories=fettle
// +kubebuilder:printcolumn:name="Resolved",type=string,JSONPath=`.status.conditions[?(@.type=="Resolved")].status`
// +kubebuilder:printcolumn:name="Verified",type=string,JSONPath=`.status.conditions[?(@.type=="Verified")].status`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.status.images[*].interfaceID`
// +kubebuilder:printcolumn:name="AFU",type=string,JSONPath=`.status.images[*].afuID`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Blank",type=boolean,JSONPath=`.spec.blank`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name="Namespaces",type=string,priority=1,JSONPath=`.status.summary.namespaces`
type ClusterFPGABitstream struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is where the bitstream is from, and who may load it.
	Spec ClusterFPGABitstreamSpec `json:"spec"`
	// Status is what the controller found there.
	// +optional
	Status FPGABitstreamStatus `json:"status,omitzero"`
}

// ClusterFPGABitstreamList is a list of ClusterFPGABitstreams.
//
// +kubebuilder:object:root=true
type ClusterFPGABitstreamList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []ClusterFPGABitstream `json:"items"`
}

// ClusterFPGABitstreamSpec is where a bitstream is from, and who may load it.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) != has(self.hostFile)",message="set exactly one of image and hostFile"
// +kubebuilder:validation:XValidation:rule="!has(self.imagePullSecrets) || has(self.image)",message="imagePullSecrets are for an image"
// +kubebuilder:validation:XValidation:rule="has(self.blank) && self.blank || has(self.namespaces) && size(self.namespaces) > 0",message="name at least one namespace whose claims may load it (\"*\" for all), unless it is a blank image"
// +kubebuilder:validation:XValidation:rule="!has(self.memoryClearTime) || has(self.blank) && self.blank",message="memoryClearTime is for a blank image"
type ClusterFPGABitstreamSpec struct {
	// Image is as in an FPGABitstream.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+([.-][a-z0-9]+)*(:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[a-z0-9]+((\\\\.|_|__|-+)[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$')",message="must be registry/repository:TAG or registry/repository@sha256:DIGEST, in lower case"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([^/]*[.:][^/]*|localhost)/')",message="must name its registry by a host with a dot or a port, such as docker.io"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^/]+/[^:@]{1,255}([:@]|$)') && !self.matches('@sha256:0{64}$')",message="must have a repository of at most 255 characters, and no digest of zeros"
	// +optional
	Image string `json:"image,omitempty"`
	// ImagePullSecrets are Secrets of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg in the driver's namespace.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.name != '' && s.name.size() <= 253)",message="name each Secret, in at most 253 characters"
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// HostFile is a file that the administrator staged on the nodes.
	// +optional
	HostFile *HostBitstream `json:"hostFile,omitempty"`
	// Namespaces are those whose claims may load it, or "*" for all.
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// Blank says that the image holds no logic: it wipes regions between tenants, for every interface id that it is for.
	// +optional
	Blank bool `json:"blank,omitempty"`
	// MemoryClearTime says that the blank image clears all memory of the card, and how long it takes for that once it is loaded. Unset: it
	// clears none, and a region that one namespace used is not given to another, unless the class has policy.allowUnclearedMemory.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1ms') && duration(self) <= duration('10m')",message="must be 1ms to 10m"
	// +optional
	MemoryClearTime *metav1.Duration `json:"memoryClearTime,omitempty"`
}

// HostBitstream is a file on the nodes: one path, or a store in the layout DIRECTORY/INTERFACE/ID.gbs (or .aocx) that Intel's device
// plugin used, in which the region's interface id finds the file.
//
// +kubebuilder:validation:XValidation:rule="has(self.path) != has(self.store)",message="set exactly one of path and store"
// +kubebuilder:validation:XValidation:rule="has(self.store) == has(self.id)",message="id goes with store: the file is STORE/INTERFACE/ID.gbs"
// +kubebuilder:validation:XValidation:rule="!has(self.path) || has(self.digest)",message="a path needs the digest of its file"
type HostBitstream struct {
	// Path is absolute and clean.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_+=@-][A-Za-z0-9._+=@-]{0,254})+$`
	// +optional
	Path string `json:"path,omitempty"`
	// Store is a directory, absolute and clean, such as /srv/intel.com/fpga.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_+=@-][A-Za-z0-9._+=@-]{0,254})+$`
	// +optional
	Store string `json:"store,omitempty"`
	// ID is the file's name in the store, the AFU id or the 40 digits of an OpenCL image, in lower-case hexadecimal.
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{32}|[0-9a-f]{40})$`
	// +optional
	ID string `json:"id,omitempty"`
	// Digest is the file's: sha256: and 64 hexadecimal digits. A store's files may do without: what root put there is then taken as it
	// is, and its digest is recorded.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^sha256:0{64}$')",message="must be the digest of a file, not zeros"
	// +optional
	Digest string `json:"digest,omitempty"`
}

// FPGABitstreamStatus is what the controller found at a bitstream's reference.
type FPGABitstreamStatus struct {
	// ObservedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Summary has texts for the columns of kubectl.
	// +optional
	Summary *ObjectSummary `json:"summary,omitempty"`
	// Digest is what the reference meant when it was last read.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// Images are the bitstreams at that digest: one, or one for each interface id.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Images []BitstreamImage `json:"images,omitempty"`
	// Verification is who vouches for the digest. It is unset while no TrustPolicy is for the image.
	// +optional
	Verification *ImageVerdict `json:"verification,omitempty"`
	// Nodes is how many nodes hold a file of an image. It is not counted while there is none, nor for files that are on the nodes anyway.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Nodes *int32 `json:"nodes,omitempty"`
	// Conditions are Resolved and Verified.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BitstreamImage is one bitstream of an artifact, as its bytes say.
type BitstreamImage struct {
	// Manifest is the digest of the OCI manifest, Layer that of the file itself: the programmed bytes are in it.
	// +kubebuilder:validation:MaxLength=71
	Manifest string `json:"manifest"`
	// +kubebuilder:validation:MaxLength=71
	Layer string `json:"layer"`
	// Size is the file's, in bytes.
	Size int64 `json:"size"`
	// Format is gbs, aocx, xclbin, rbf or bin.
	// +kubebuilder:validation:MaxLength=16
	Format string `json:"format"`
	// ID tells the image from others of its format.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ID string `json:"id,omitempty"`
	// AFUID is what a port shows once the image is loaded.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	AFUID string `json:"afuID,omitempty"`
	// InterfaceID is that of the regions that can take the image.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	InterfaceID string `json:"interfaceID,omitempty"`
	// Name is the image's own.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Name string `json:"name,omitempty"`
	// CardSigned says that the file has a signature for the card. It says nothing of its worth.
	// +optional
	CardSigned bool `json:"cardSigned,omitempty"`
}
