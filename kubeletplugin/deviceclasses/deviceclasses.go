// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses knows the cluster's DeviceClasses as they are now, so that a claim gets no more than its class allows today,
// whatever its allocation says.
package deviceclasses

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/pkg/claim"
)

// Classes follows the DeviceClasses of the cluster.
type Classes struct {
	client   kubernetes.Interface
	informer *follow.Informer
}

// New returns Classes that ask the API server for each class until they run.
func New(client kubernetes.Interface) (*Classes, error) {
	informer, err := follow.New(client.ResourceV1().DeviceClasses(), follow.Options{
		Client: client, Object: &resourceapi.DeviceClass{}, Keep: keep,
	})
	if err != nil {
		return nil, fmt.Errorf("watch DeviceClasses: %w", err)
	}
	return &Classes{client: client, informer: informer}, nil
}

// keep drops the parts of a class that are not needed.
func keep(object any) (any, error) {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		return claim.Trim(class), nil
	}
	return object, nil
}

// Run follows the classes until ctx ends. stopped waits for the end.
func (c *Classes) Watch(ctx context.Context) (stopped func()) { return follow.Run(ctx, c.informer) }

// Of returns the classes of these names, without those that do not exist. It asks the API server only for a class that it does not know: a
// new or a deleted one, or any class while it does not follow them.
func (c *Classes) Of(ctx context.Context, names []string) (map[string]*resourceapi.DeviceClass, error) {
	found := make(map[string]*resourceapi.DeviceClass, len(names))
	current := c.informer.Current()
	for _, name := range names {
		object, _, _ := c.informer.GetStore().GetByKey(name)
		if class, known := object.(*resourceapi.DeviceClass); known && current {
			found[name] = class
			continue
		}
		class, err := c.client.ResourceV1().DeviceClasses().Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			found[name] = class
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read DeviceClass %s: %w", name, err)
		}
	}
	return found, nil
}
