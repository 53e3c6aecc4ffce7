// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	mebibyte = 1 << 20
	// minCapacity is the request of the smallest claim. File systems use a part of it for themselves.
	minCapacity = 16 * mebibyte
	// guessedRatio is the assumed ratio of files to compressed layers, if the image does not say how large its files are.
	guessedRatio = 4
)

// Capacity returns the request of a claim for an image: its files, a quarter more for the file system and partly used blocks, and 16Mi.
func Capacity(image *v1alpha1.CacheImage) resource.Quantity {
	var bytes int64
	if image != nil {
		if bytes = image.Bytes; bytes <= 0 {
			bytes = image.CompressedBytes * guessedRatio
		}
	}
	bytes = max(bytes, 0)
	bytes += bytes/4 + minCapacity
	return *resource.NewQuantity((bytes+mebibyte-1)/mebibyte*mebibyte, resource.BinarySI)
}

// modes returns the claim's access modes.
func (o Object) modes() []corev1.PersistentVolumeAccessMode {
	switch {
	case len(o.Spec.AccessModes) > 0:
		return o.Spec.AccessModes
	case o.Type() == v1alpha1.CacheROXVolume:
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	default:
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
}

// claim returns a new PersistentVolumeClaim.
func (o Object) claim(v v1alpha1.CacheVolume) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: o.meta(v.Namespace, v.ClaimName),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: o.modes(), StorageClassName: o.Spec.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: Capacity(o.Status.Image)},
			},
		},
	}
}

// capacityOf returns the capacity of a claim, or its request if it has none yet.
func capacityOf(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if has.Cmp(asked) > 0 {
		return has
	}
	return asked
}

const (
	// hashDigits is how many digits of a hash are in names.
	hashDigits = 12
	// maxJobName is the longest name of a Job, which is also a label of its pods.
	maxJobName = validation.LabelValueMaxLength
)

// ClaimName returns the name of a cache's claim: the cache's own name, or CACHE-NODE for the claim of a node. It is simple because pods
// name it and the admission policy of the chart builds it too. Two caches can have one name, and then only the first has the claim. A
// name longer than 253 characters ends in a hash of both parts.
func ClaimName(cache, node string) string {
	if node == "" {
		return cache
	}
	return shorten(cache+"-"+node, cache+"\x00"+node, validation.DNS1123SubdomainMaxLength)
}

// JobName returns the name of the Job that writes a digest into a claim, for a path if there is one. It ends in the first digits of the
// digest, or of a hash of digest and path, so that a Job is not mistaken for one of another digest or path.
func JobName(claim, digest, path string) string {
	_, digits, _ := strings.Cut(digest, ":")
	if path != "" {
		sum := sha256.Sum256([]byte(digest + "\x00" + path))
		digits = hex.EncodeToString(sum[:])
	}
	digits = digits[:min(len(digits), hashDigits)]
	return shorten(claim, claim, maxJobName-1-len(digits)) + "-" + digits
}

// shorten returns the name, or its start and a hash of its parts if it is too long.
func shorten(name, from string, longest int) string {
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(from))
	return strings.TrimRight(name[:longest-hashDigits-1], "-.") + "-" + hex.EncodeToString(sum[:])[:hashDigits]
}
