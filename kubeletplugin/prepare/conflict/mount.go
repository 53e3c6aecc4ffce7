// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/pkg/container"
)

// Mount is one mount that the containers of a claim get.
type Mount struct {
	container.Mount
	// Feature is the one that mounts it. It is empty for a mount of a device.
	Feature string
	// Giver names the object or device that the mount is from.
	Giver string
}

// MountError refuses a claim in which two objects or devices mount something at one path of a container, or at paths of which one lies
// below the other. The runtime would hide one of them, or fail to make the place for the inner one in the outer one.
type MountError struct {
	// Outer and Inner name what mounts at OuterPath and at InnerPath. InnerPath is OuterPath or lies below it.
	Outer, OuterPath, Inner, InnerPath string
}

func (e *MountError) Error() string {
	const remedy = "give one of them another path in the container, or ask for it in a claim of its own"
	if e.OuterPath == e.InnerPath {
		return fmt.Sprintf("%s and %s both mount at %s: %s", e.Outer, e.Inner, e.InnerPath, remedy)
	}
	return fmt.Sprintf("%s mounts at %s, below %s, where %s mounts: %s", e.Inner, e.InnerPath, e.OuterPath, e.Outer, remedy)
}

// Mounts returns a MountError for each two mounts that exclude each other. It compares those of different features, and of features
// with those of devices. It does not know which requests a container uses, so it compares all of the claim. Each feature decides between
// its own mounts. Two devices may be at one path: a class may give it to each request, and each container may use one request.
func Mounts(all []Mount) error {
	slices.SortStableFunc(all, func(a, b Mount) int {
		return cmp.Or(cmp.Compare(a.ContainerPath, b.ContainerPath), cmp.Compare(a.Giver, b.Giver))
	})
	return eachPair(all, func(outer, inner Mount) (found MountError, excluded bool) { // an outer path sorts before those below it
		if outer.Feature == inner.Feature || outer.Mount == inner.Mount || !mountpath.Overlap(outer.ContainerPath, inner.ContainerPath) {
			return found, false
		}
		return MountError{Outer: outer.Giver, OuterPath: outer.ContainerPath, Inner: inner.Giver, InnerPath: inner.ContainerPath}, true
	}, func(found MountError) error { return &found })
}

// eachPair asks for each element and those before it whether they exclude each other, and joins the errors of what was found, each once.
func eachPair[T any, F comparable](all []T, exclude func(before, after T) (F, bool), asError func(F) error) error {
	var errs []error
	seen := map[F]bool{}
	for i, after := range all {
		for _, before := range all[:i] {
			if found, excluded := exclude(before, after); excluded && !seen[found] {
				seen[found] = true
				errs = append(errs, asError(found))
			}
		}
	}
	return errors.Join(errs...)
}
