// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Artifacts bounds the node's store of files from registries.
type Artifacts struct {
	// MaxSize is how much files that nothing needs any more may take together with those that are needed. Default 20Gi.
	MaxSize resource.Quantity `json:"maxSize,omitempty"`
	// KeepFree is how much of the disk is left to others. Default 1Gi.
	KeepFree resource.Quantity `json:"keepFree,omitempty"`
}

func (c Artifacts) validate() (errs []error) {
	for name, size := range map[string]resource.Quantity{"maxSize": c.MaxSize, "keepFree": c.KeepFree} {
		if size.Sign() < 0 {
			errs = append(errs, fmt.Errorf("artifacts.%s: must not be negative, is %s", name, size.String()))
		}
	}
	return errs
}

func (c Artifacts) StoreConfig() artifact.StoreConfig {
	return artifact.StoreConfig{MaxBytes: c.MaxSize.Value(), Margin: c.KeepFree.Value()}
}

// KernelCaches is whether claims get caches of compiled kernels.
type KernelCaches struct {
	// Enabled gives claims the caches that they name. StateDir must be mounted with Bidirectional propagation.
	Enabled bool `json:"enabled,omitempty"`
	// FetchAhead brings caches that are for the node's GPUs before a claim asks.
	FetchAhead bool `json:"fetchAhead,omitempty"`
	// BindingConditions has the scheduler wait, before it binds a pod with a GPU to this node, until the caches are here that its claim wants
	// to wait for.
	BindingConditions bool `json:"bindingConditions,omitempty"`
}

func (c KernelCaches) validate() []error {
	if c.BindingConditions && !c.Enabled {
		return []error{errors.New("kernelCaches.bindingConditions: needs kernelCaches.enabled: true")}
	}
	return nil
}
