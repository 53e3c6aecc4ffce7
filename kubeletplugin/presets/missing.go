// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// reportMissing makes an Event on each pod of a claim if a request holds a device that needs something beside its nodes, and no preset
// gives the request any file of the node. It does nothing for a pod that opted out of presets. pod may be nil.
func (f *Feature) reportMissing(c *resourceapi.ResourceClaim, pod *corev1.Pod, given []preset.Request) {
	if !f.ReportMissing || pod != nil && pod.Annotations[v1alpha1.ExcludePresetsAnnotation] == "true" {
		return
	}
	v, _ := f.Holder.Get()
	held := preset.OfClaim(c, v1alpha1.DriverName, pod != nil, publishedDevices(v))
	eventType, notes := missing(held.Devices, given)
	if len(notes) == 0 {
		return
	}
	note := joinNotes(notes, fmt.Sprintf("fettle preset explain -n %s claim/%s", c.Namespace, c.Name), message.MaxEventNote)
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			f.PodEvent(&corev1.ObjectReference{
				APIVersion: "v1", Kind: "Pod", Namespace: c.Namespace, Name: user.Name, UID: user.UID,
			}, c, eventType, reasonMissing, note)
		}
	}
}

// reportWithoutPresets is reportMissing for a claim whose pod was not read, since no preset may match it. A pod that cannot be read may
// have opted out and is not told.
func (f *Feature) reportWithoutPresets(ctx context.Context, c *resourceapi.ResourceClaim) {
	if !f.ReportMissing {
		return
	}
	pod, err := f.ownerPod(ctx, c)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A pod is not told of missing presets", "claim", klog.KObj(c), "reason", err)
		return
	}
	f.reportMissing(c, pod, nil)
}

// missing returns what to tell of devices that need more than presets give. It is a warning if no image can bring it.
func missing(devices []preset.Device, given []preset.Request) (eventType string, notes []string) {
	eventType = corev1.EventTypeNormal
	for i := range devices {
		d := &devices[i]
		need, needed := preset.NeedOf(d)
		met := slices.ContainsFunc(given, func(r preset.Request) bool { return r.Request == d.Request && r.GivesFiles() })
		if !needed || met {
			continue
		}
		note := fmt.Sprintf("request %s: no preset gives %s: the pod's images must bring them, or an administrator makes a ClusterDevicePreset "+
			"with libraries or mounts, such as %s (value presets.vendors of the chart)", d.Request, need.What, need.Shipped)
		if need.FromNode {
			eventType = corev1.EventTypeWarning
			note = fmt.Sprintf("request %s: no preset gives %s, which no image can bring: an administrator makes a ClusterDevicePreset with "+
				"driver, libraries or mounts, such as %s (value presets.vendors of the chart)", d.Request, need.What, need.Shipped)
		}
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return eventType, notes
}
