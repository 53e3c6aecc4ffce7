// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"testing"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

func class(parameters string) *resourceapi.DeviceClass {
	out := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	out.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		},
	}}}
	return out
}

// TestClosedClass: a class that an administrator closes while the plugin does not follow the classes is closed at once.
func TestClosedClass(t *testing.T) {
	client := fake.NewClientset(class(`"open"`))
	watches := make(chan *watch.FakeWatcher, 1)
	first := true
	client.PrependWatchReactor("deviceclasses", func(clienttesting.Action) (bool, watch.Interface, error) {
		if !first {
			return true, nil, unix.ECONNREFUSED
		}
		first = false
		w := watch.NewFake()
		watches <- w
		return true, w, nil
	})
	c, err := New(client)
	check.Must(t, err)
	t.Cleanup(c.Watch(t.Context()))
	check.Eventually(t, "the classes are followed", c.informer.Current)
	(<-watches).Stop()
	check.Eventually(t, "the watch ended", func() bool { return !c.informer.Current() })
	_, err = client.ResourceV1().DeviceClasses().Update(t.Context(), class(`"closed"`), metav1.UpdateOptions{})
	check.Must(t, err)
	found, err := c.Of(t.Context(), []string{"gpu"})
	check.Must(t, err)
	if got := string(found["gpu"].Spec.Config[0].Opaque.Parameters.Raw); got != `"closed"` {
		t.Errorf("the class says %s", got)
	}
}
