// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of extra states, as the CRD has them.
const (
	maxExtraStates            = 16
	maxStateName, maxStateKey = 63, 253
	maxConditionName          = 316
)

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	stateNameForm     = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	stateKeyForm      = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)
	conditionTypeForm = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$`)
)

// ExtraState is a state of an administrator's own. Its objects are made in the namespace of drivers once a node has passed every state
// before it, and stay there whatever becomes of these.
type ExtraState struct {
	// Name is the state's, in the status and in messages. It is none of Fettle's states.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['Facts', 'Driver', 'DriverChecked', 'Published', 'ClaimChecked', 'Monitored'])",message="is the name of a state of Fettle's"
	Name StackState `json:"name"`
	// After is the state of Fettle's that it follows. States that follow the same one are in the order of the list. Unset: Monitored,
	// the last one. No claim is checked before a state is passed that follows Published or an earlier one.
	// +kubebuilder:validation:Enum=Facts;Driver;DriverChecked;Published;ClaimChecked;Monitored
	// +optional
	After StackState `json:"after,omitempty"`
	// Manifests is where the objects are.
	Manifests StateManifests `json:"manifests"`
	// Check says when a node has passed the state.
	Check StateCheck `json:"check"`
}

// StateManifests is a ConfigMap with manifests, in the namespace of drivers: whoever may write there decides what runs.
type StateManifests struct {
	// ConfigMap is its name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	ConfigMap string `json:"configMap"`
	// Key is the one file of it that is read. Unset: all of them.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +optional
	Key string `json:"key,omitempty"`
}

// StateCheck says when a node has passed a state. One of its fields is set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.pods), has(self.job), has(self.condition)].exists_one(set, set)",message="set exactly one of pods, job and condition"
type StateCheck struct {
	// Pods selects pods of the state's DaemonSets: on the node one has to be there, and all of them have to be ready and started since
	// the node was. An empty selector selects all.
	// +optional
	Pods *metav1.LabelSelector `json:"pods,omitempty"`
	// Job is the name of a Job of the manifests, which has to complete. It counts for all nodes that it was made for.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Job string `json:"job,omitempty"`
	// Condition is one that an object has to have. It counts for all nodes.
	// +optional
	Condition *StateCondition `json:"condition,omitempty"`
}

// StateCondition is a condition of an object in the namespace of drivers, or of one without a namespace.
type StateCondition struct {
	// APIVersion and Kind are the object's: apps/v1, Deployment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`
	Kind string `json:"kind"`
	// Name is the object's. One of the manifests has the name that it has there.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
	// Type is the condition's: Available.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$`
	Type string `json:"type"`
	// Status is what it has to be. Unset: True.
	// +kubebuilder:validation:Enum=True;False;Unknown
	// +optional
	Status metav1.ConditionStatus `json:"status,omitempty"`
}

// Follows returns the state of Fettle's that the extra state follows.
func (e *ExtraState) Follows() StackState { return cmp.Or(e.After, StateMonitored) }

// OrderedStates returns the extra states in the order in which nodes pass them.
func (s *AcceleratorStackSpec) OrderedStates() []ExtraState {
	out := slices.Clone(s.States)
	slices.SortStableFunc(out, func(a, b ExtraState) int {
		return cmp.Compare(slices.Index(StackStates(), a.Follows()), slices.Index(StackStates(), b.Follows()))
	})
	return out
}

// StateNames returns all states of the stack in their order.
func (s *AcceleratorStackSpec) StateNames() []StackState {
	var out []StackState
	extra := s.OrderedStates()
	for _, name := range StackStates() {
		out = append(out, name)
		for i := range extra {
			if extra[i].Follows() == name {
				out = append(out, extra[i].Name)
			}
		}
	}
	return out
}

func validateStates(states []ExtraState, path *field.Path) field.ErrorList {
	faults := atMost(len(states), maxExtraStates, path)
	for i := range states {
		e, at := &states[i], path.Index(i)
		if slices.Contains(StackStates(), e.Name) {
			faults = append(faults, field.Invalid(at.Child("name"), e.Name, "is the name of a state of Fettle's"))
		} else {
			faults = append(faults, textFaults(string(e.Name), maxStateName, stateNameForm, "letters, digits and dashes", at.Child("name"))...)
		}
		if slices.ContainsFunc(states[:i], func(other ExtraState) bool { return other.Name == e.Name }) {
			faults = append(faults, field.Duplicate(at.Child("name"), e.Name))
		}
		if e.After != "" && !slices.Contains(StackStates(), e.After) {
			faults = append(faults, field.NotSupported(at.Child("after"), e.After, StackStates()))
		}
		faults = append(faults, objectNameFaults(e.Manifests.ConfigMap, at.Child("manifests", "configMap"))...)
		if e.Manifests.Key != "" {
			faults = append(faults, textFaults(e.Manifests.Key, maxStateKey, stateKeyForm, "a key of a ConfigMap", at.Child("manifests", "key"))...)
		}
		faults = append(faults, e.Check.validate(at.Child("check"))...)
	}
	return faults
}

func (c *StateCheck) validate(path *field.Path) field.ErrorList {
	set := 0
	for _, is := range []bool{c.Pods != nil, c.Job != "", c.Condition != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return field.ErrorList{field.Required(path, "set exactly one of pods, job and condition")}
	}
	switch {
	case c.Pods != nil:
		return validateSelector(c.Pods, path.Child("pods"))
	case c.Job != "":
		return labelFaults(c.Job, path.Child("job"))
	}
	return c.Condition.validate(path.Child("condition"))
}

func (c *StateCondition) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if _, err := schema.ParseGroupVersion(c.APIVersion); err != nil || c.APIVersion == "" {
		faults = append(faults, field.Invalid(path.Child("apiVersion"), c.APIVersion, "must be GROUP/VERSION, or VERSION"))
	}
	faults = append(faults, noLonger(c.APIVersion, maxConditionName, path.Child("apiVersion"))...)
	faults = append(faults, textFaults(c.Kind, maxStateName, stateNameForm, "a kind", path.Child("kind"))...)
	faults = append(faults, objectNameFaults(c.Name, path.Child("name"))...)
	faults = append(faults, textFaults(c.Type, maxConditionName, conditionTypeForm, "the type of a condition", path.Child("type"))...)
	known := []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown}
	if c.Status != "" && !slices.Contains(known, c.Status) {
		faults = append(faults, field.NotSupported(path.Child("status"), c.Status, known))
	}
	return faults
}
