// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"cmp"
	"fmt"
	"slices"
)

// Variable is one environment variable that the containers of a claim get.
type Variable struct {
	Name, Value string
	// Feature is the one that sets it. It is empty for a variable of a device.
	Feature string
	// Giver names the object or device that the variable is from.
	Giver string
}

// VariableError refuses a claim in which two objects or devices set one variable to different values. The runtime would keep the last one,
// and which that is follows from the names of files.
type VariableError struct {
	Name string
	// First and Second name what sets the variable, sorted.
	First, Second string
}

func (e *VariableError) Error() string {
	return fmt.Sprintf("%s and %s both set the variable %s: take it out of one of them (a kernel cache sets none with mount.env: None), "+
		"or ask for one of them in a claim of its own", e.First, e.Second, e.Name)
}

// Variables returns a VariableError for each two givers that set one variable to different values. As Mounts does, it compares those of
// different features, and of features with those of devices, of all requests of the claim.
func Variables(all []Variable) error {
	slices.SortStableFunc(all, func(a, b Variable) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Giver, b.Giver))
	})
	return eachPair(all, func(a, b Variable) (VariableError, bool) {
		excluded := a.Name == b.Name && a.Feature != b.Feature && a.Value != b.Value
		return VariableError{Name: a.Name, First: a.Giver, Second: b.Giver}, excluded
	}, func(found VariableError) error { return &found })
}
