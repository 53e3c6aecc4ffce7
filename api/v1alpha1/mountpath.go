// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/util/validation/field"

// CheckMountPath says what is wrong with a directory of a container that no object names: one that the content of an image asks for. It has
// to be what the mounts of a HostConfig have to be.
func CheckMountPath(dir string) error {
	return validateMountPath(dir, field.NewPath("path")).ToAggregate()
}
