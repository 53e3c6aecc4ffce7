// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
)

// pods finds pods that claims are reserved for.
type pods struct {
	kube kubernetes.Interface
	node string
	// informer watches the node's pods. Nil: they are not watched.
	informer *follow.Informer
}

func newPods(kube kubernetes.Interface, node string, follows bool) (*pods, error) {
	p := &pods{kube: kube, node: node}
	if !follows {
		return p, nil
	}
	var err error
	p.informer, err = follow.New(kube.CoreV1().Pods(metav1.NamespaceAll), follow.Options{
		Client: kube, Object: &corev1.Pod{}, Keep: trimPod, Field: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("watch the node's pods: %w", err)
	}
	return p, nil
}

// watch runs the informer, if there is one, until ctx ends. stopped waits for its end.
func (p *pods) watch(ctx context.Context) (stopped func()) {
	if p.informer == nil {
		return func() {}
	}
	return follow.Run(ctx, p.informer)
}

// trimPod keeps the fields of a pod that find promises.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Spec:       corev1.PodSpec{HostUsers: pod.Spec.HostUsers},
	}, nil
}

// find returns the pod that a claim is reserved for, with UID and spec.hostUsers, which never change. It asks the API server if the
// informer does not have the pod, since kubelet may see a pod first. The result may be another pod of the same name.
func (p *pods) find(ctx context.Context, namespace string, consumer *resourceapi.ResourceClaimConsumerReference) (*corev1.Pod, error) {
	if p.informer != nil {
		key := cache.ObjectName{Namespace: namespace, Name: consumer.Name}.String()
		found, _, err := p.informer.GetStore().GetByKey(key)
		if err != nil {
			return nil, fmt.Errorf("look for pod %s: %w", key, err)
		}
		if pod, ok := found.(*corev1.Pod); ok && pod.UID == consumer.UID {
			return pod, nil
		}
	}
	return p.kube.CoreV1().Pods(namespace).Get(ctx, consumer.Name, metav1.GetOptions{})
}

// access returns the access mode that the claim asks for, else the object's, else Seed or Overlay as the claim's pods need.
func access(
	source v1alpha1.KernelCacheSource, mount *v1alpha1.CacheMount, usesUserNamespace func() (bool, error),
) (cachemount.Access, error) {
	for _, asked := range []v1alpha1.CacheAccess{source.Access, mount.Access} {
		if asked != "" {
			return cachemount.Access(asked), nil
		}
	}
	inUserNamespace, err := usesUserNamespace()
	if inUserNamespace {
		return cachemount.Seed, err
	}
	return cachemount.Overlay, err
}

// usesUserNamespace reports whether a pod that the claim is reserved for has a user namespace, where an overlay cannot be mounted. Deleted
// pods, and new pods of the same name, do not count.
func (f *Feature) usesUserNamespace(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error) {
	for i := range c.Status.ReservedFor {
		consumer := &c.Status.ReservedFor[i]
		if consumer.APIGroup != "" || consumer.Resource != "pods" {
			continue
		}
		pod, err := f.pods.find(ctx, c.Namespace, consumer)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, fmt.Errorf("read spec.hostUsers of pod %s, which decides how its caches are mounted: %w", consumer.Name, err)
		case pod.UID == consumer.UID && userNamespace(pod):
			return true, nil
		}
	}
	return false, nil
}

func userNamespace(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }
