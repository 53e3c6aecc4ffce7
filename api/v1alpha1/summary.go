// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"
)

// ObjectSummary has texts for the columns of kubectl, which print lists as JSON.
type ObjectSummary struct {
	// Namespaces are the first of the namespaces whose claims may use the object.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Namespaces string `json:"namespaces,omitempty"`
}

// maxEnumerated is how many names a column lists.
const maxEnumerated = 3

// SummaryOf returns the summary of an object for the cluster, nil for one that names no namespaces.
func SummaryOf(namespaces []string) *ObjectSummary {
	if len(namespaces) == 0 {
		return nil
	}
	return &ObjectSummary{Namespaces: Enumerate(namespaces)}
}

// Enumerate lists the first three of some names for a column of kubectl, and counts the others: "a, b, c and 2 more".
func Enumerate(names []string) string {
	text := strings.Join(names[:min(len(names), maxEnumerated)], ", ")
	if more := len(names) - maxEnumerated; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
