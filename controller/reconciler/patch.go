// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Named are labels or annotations by their names. Nil stands for none.
type Named map[string]*string

// Set adds a value; an empty one stands for none.
func (n Named) Set(name, value string) Named {
	n[name] = nil
	if value != "" {
		n[name] = &value
	}
	return n
}

// MetadataPatch changes the labels and annotations that it names and no others. The cache keeps only some of an object's, so that a patch
// made by comparing could take all others along. With a resource version it fails if the object has another; empty: whatever it has.
func MetadataPatch(version string, labels, annotations Named) (client.Patch, error) {
	data, err := json.Marshal(map[string]any{"metadata": struct {
		ResourceVersion string `json:"resourceVersion,omitempty"`
		Labels          Named  `json:"labels,omitempty"`
		Annotations     Named  `json:"annotations,omitempty"`
	}{version, labels, annotations}})
	if err != nil {
		return nil, fmt.Errorf("encode labels and annotations: %w", err)
	}
	return client.RawPatch(types.MergePatchType, data), nil
}
