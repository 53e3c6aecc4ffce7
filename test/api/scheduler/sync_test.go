// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// syncName is the name of everything that sync keeps.
const syncName = "sync"

// nudgeInterval is after how long the scheduler is told again of the slice. It may look at the pod between two of the changes, and not
// again when the last of them arrives: then the pod would wait for the scheduler's own look at all pods, after five minutes.
const nudgeInterval = 10 * time.Second

// sync returns once the scheduler knows all that was written before. Each kind has a watch of its own, which brings changes in their order,
// so sync changes one object of each kind and waits for a pod that fits only when all of these changes have arrived.
func (c *cluster) sync(t *testing.T) {
	t.Helper()
	c.round++
	round := strconv.Itoa(c.round)
	c.write(t, syncClass(round))
	c.write(t, syncSlice(c.round))
	c.write(t, syncNode(round))
	if c.version == "" {
		c.write(t, syncTaintRule(round))
	}
	name := syncName + "-" + round
	wants := tolerating("sync.example.com/round", of(syncName, exactly("device", 1)))
	wants.Exactly.Tolerations[0].Operator, wants.Exactly.Tolerations[0].Value = resourceapi.DeviceTolerationOpEqual, round
	c.write(t, withNamespace(claim(name, wants), syncName))
	pod := withNamespace(pod(name, named("device", name)), syncName)
	pod.Spec.NodeSelector = map[string]string{"round": round}
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	c.write(t, pod)
	nudged := time.Now()
	poll(t, 2*time.Minute, func() string {
		if time.Since(nudged) > nudgeInterval {
			slice := syncSlice(c.round)
			nudged = time.Now()
			slice.Labels = map[string]string{"nudged": strconv.FormatInt(nudged.UnixNano(), 10)}
			c.write(t, slice)
		}
		got := &corev1.Pod{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), got); err != nil {
			return err.Error()
		}
		if got.Spec.NodeName == "" {
			return fmt.Sprintf("pod %s of sync has no node: %+v", name, got.Status.Conditions)
		}
		return ""
	})
}

func syncClass(round string) *resourceapi.DeviceClass {
	return class(syncName, fmt.Sprintf(`device.driver == "sync.example.com" && device.attributes["sync.example.com"].round == %s`, round))
}

func syncSlice(round int) *resourceapi.ResourceSlice {
	s := slice(syncName, gpu(fmt.Sprintf("device-%d", round), "round", round))
	s.Spec.Driver = "sync.example.com"
	s.Spec.Pool.Generation = int64(round)
	return s
}

// syncNode is a node that no other pod tolerates.
func syncNode(round string) *corev1.Node {
	n := node(syncName, "round", round)
	// A pod of sync must find room in every round.
	n.Spec.Taints = []corev1.Taint{{Key: "sync", Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// syncTaintRule taints the device so that only the claim of this round tolerates it.
func syncTaintRule(round string) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: syncName},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To("sync.example.com")},
			Taint:          resourceapi.DeviceTaint{Key: "sync.example.com/round", Value: round, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
}
