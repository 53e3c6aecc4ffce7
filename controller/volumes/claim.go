// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
