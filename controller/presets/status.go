// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/pkg/message"
)

// The reasons of the conditions. They are stable.
const (
	// ReasonValid: every field can be used as it is.
	ReasonValid = "Valid"
	// ReasonInvalid: a field is wrong, or a condition on devices does not compile. Claims that the preset selects are refused.
	ReasonInvalid = "Invalid"
	// ReasonConfigMapsNotGranted: the nodes may not read the ConfigMaps that it names. Its claims wait.
	ReasonConfigMapsNotGranted = "ConfigMapsNotGranted"
	// ReasonHostPathsNotAllowed: it names files of the nodes that no namespace may have. Its claims wait.
	ReasonHostPathsNotAllowed = "HostPathsNotAllowed"
	// ReasonOverlaps: other presets may be for the same requests and give other values.
	ReasonOverlaps = "Overlaps"
	// ReasonNoConflict: there is no such preset.
	ReasonNoConflict = "NoConflict"
	// ReasonNotValid: an invalid preset is not compared with others.
	ReasonNotValid = "NotValid"
)

// errNotGranted marks ConfigMaps that the nodes may not read.
var errNotGranted = errors.New("the nodes may not read the preset's ConfigMaps")

// Explain adds the next step to the error of a grant that cannot be made. It returns trouble with the API server, which passes, unchanged.
func Explain(o Object, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: the controller may not read ConfigMaps of namespace %s, or not grant that to the nodes; an administrator adds "+
			"it to presets.configMapNamespaces of the chart", errNotGranted, o.ConfigMapNamespace)
	case errors.Is(err, grant.ErrForeign):
		return fmt.Errorf("%w: %w", errNotGranted, err)
	}
	return err
}

// NotGranted says whether an error is about the object, and not about the API server.
func NotGranted(err error) bool { return errors.Is(err, errNotGranted) }

// Findings are the results of the checks of a preset.
type Findings struct {
	Faults field.ErrorList
	// Outside are the faults of paths that a namespace may not name.
	Outside field.ErrorList
	// NotGranted is why the nodes may not read its ConfigMaps.
	NotGranted error
	Conflicts  Conflicts
	// Summary has the texts of columns. It is nil if there are none.
	Summary *v1alpha1.PresetSummary
	// Claims and Nodes are how many have something from it.
	Claims, Nodes int32
}

// Record writes the findings to the status.
func Record(status *v1alpha1.DevicePresetStatus, generation int64, f Findings, now time.Time) {
	status.ObservedGeneration, status.Summary = generation, f.Summary
	status.Claims, status.Nodes = ptr.To(f.Claims), ptr.To(f.Nodes)
	for _, c := range []metav1.Condition{valid(f), conflicting(f)} {
		c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
		c.Message = message.Clip(c.Message, message.ReadableCondition)
		meta.SetStatusCondition(&status.Conditions, c)
	}
}

// summarize returns the texts for the columns of kubectl, nil for a preset that names no classes.
func summarize(rules *v1alpha1.PresetRules) *v1alpha1.PresetSummary {
	if rules.DeviceSelector == nil || len(rules.DeviceSelector.DeviceClassNames) == 0 {
		return nil
	}
	return &v1alpha1.PresetSummary{Classes: v1alpha1.Enumerate(rules.DeviceSelector.DeviceClassNames)}
}

func valid(f Findings) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionValid, Status: metav1.ConditionFalse}
	switch {
	case len(f.Faults) > 0:
		c.Reason, c.Message = ReasonInvalid, f.Faults.ToAggregate().Error()
	case len(f.Outside) > 0:
		c.Reason, c.Message = ReasonHostPathsNotAllowed, f.Outside.ToAggregate().Error()
	case f.NotGranted != nil:
		c.Reason, c.Message = ReasonConfigMapsNotGranted, f.NotGranted.Error()
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonValid, "every field can be used as it is"
	}
	return c
}

func conflicting(f Findings) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionConflicting}
	switch {
	case len(f.Faults) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonNotValid, "a preset that is not valid gives nothing"
	case f.Conflicts.Count > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonOverlaps, f.Conflicts.String()
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonNoConflict, "no other preset says something else of the same requests"
	}
	return c
}

// Count adds up what nodes report of a preset.
func Count(nodes []v1alpha1.AcceleratorNode, namespace, name string) (claims, on int32) {
	for i := range nodes {
		if n, there := nodes[i].Status.PresetClaims(namespace, name); there {
			claims += n
			on++
		}
	}
	return claims, on
}
