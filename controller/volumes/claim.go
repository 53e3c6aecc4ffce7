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
	// minCapacity is what the smallest claim asks for. File systems take some of it for themselves.
	minCapacity = 16 * mebibyte
	// guessedRatio is how much larger files are than their layers, where the image does not say.
	guessedRatio = 4
)

// Capacity is what a claim of an image asks for: its files, a quarter more for what a file system needs and for ends of blocks, and 16Mi.
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

// modes are the claim's access modes.
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

// claim is a new PersistentVolumeClaim.
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

// room is what a claim has, or at least asks for.
func room(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if has.Cmp(asked) > 0 {
		return has
	}
	return asked
}
