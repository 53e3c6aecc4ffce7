// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	driver    = "fettle.dev"
	nodeName  = "chaos"
	namespace = "chaos"
	className = "any"
)

// api is what the control plane does: it makes, allocates and deletes claims.
type api struct {
	kube       kubernetes.Interface
	kubeconfig string
}

// newAPI makes the objects that must be there, and credentials for the plugin in dir.
func newAPI(ctx context.Context, config *rest.Config, dir string) (*api, error) {
	a := &api{kubeconfig: filepath.Join(dir, "kubeconfig")}
	if err := apitest.WriteKubeconfig(a.kubeconfig, config); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(config)
	own.QPS, own.Burst = -1, -1
	own.ContentType = "application/vnd.kubernetes.protobuf"
	own.AcceptContentTypes = own.ContentType + ",application/json"
	var err error
	if a.kube, err = kubernetes.NewForConfig(own); err != nil {
		return nil, err
	}
	_, err = a.kube.ResourceV1().DeviceClasses().Create(ctx,
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: className}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	labels := map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}
	_, err = a.kube.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	_, err = a.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	return a, err
}

// again calls f until it succeeds: an API server that was stopped for a while answers with errors for a moment.
func again(ctx context.Context, f func() error) error {
	const limit, pause = 30 * time.Second, 20 * time.Millisecond
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		if !wait(ctx, pause) {
			return ctx.Err()
		}
	}
}

// wait returns false when ctx ended before the time was over.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// create makes a claim that asks for what is wanted, and returns its UID.
func (a *api) create(ctx context.Context, name string, w want) (uid string, err error) {
	claims := a.kube.ResourceV1().ResourceClaims(namespace)
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	request := func(name string, count int) {
		exactly := &resourceapi.ExactDeviceRequest{
			DeviceClassName: className, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count),
		}
		if w.look {
			exactly.AdminAccess = ptr.To(true)
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: name, Exactly: exactly})
	}
	if w.gpus > 0 {
		request("gpus", w.gpus)
	}
	for i := range w.dirs {
		name := fmt.Sprintf("dir-%d", i)
		request(name, 1)
		if w.mountPath != "" {
			c.Spec.Devices.Config = append(c.Spec.Devices.Config, resourceapi.DeviceClaimConfiguration{
				Requests: []string{name}, DeviceConfiguration: mountAt(w.mountPath),
			})
		}
	}
	err = again(ctx, func() error {
		made, err := claims.Create(ctx, c, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			made, err = claims.Get(ctx, name, metav1.GetOptions{})
		}
		if err == nil {
			uid = string(made.UID)
		}
		return err
	})
	return uid, err
}

// allocate writes what the scheduler decided; no grants take the allocation back. The driver may have written to the status since.
func (a *api) allocate(ctx context.Context, name string, grants []grant) error {
	claims := a.kube.ResourceV1().ResourceClaims(namespace)
	return again(ctx, func() error {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.Status = resourceapi.ResourceClaimStatus{Allocation: allocation(grants)}
		_, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
		return err
	})
}

func allocation(grants []grant) *resourceapi.AllocationResult {
	if len(grants) == 0 {
		return nil
	}
	var out resourceapi.DeviceAllocationResult
	for _, g := range grants {
		result := resourceapi.DeviceRequestAllocationResult{Request: g.request, Driver: driver, Pool: g.id.pool, Device: g.id.name}
		if g.look {
			result.AdminAccess = ptr.To(true)
		}
		out.Results = append(out.Results, result)
		if g.mountPath == "" {
			continue
		}
		out.Config = append(out.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{g.request}, DeviceConfiguration: mountAt(g.mountPath),
		})
	}
	return &resourceapi.AllocationResult{Devices: out}
}

func mountAt(path string) resourceapi.DeviceConfiguration {
	parameters := fmt.Sprintf(`{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":%q}`, path)
	return objects.Opaque(driver, parameters)
}

func (a *api) remove(ctx context.Context, name string) error {
	return again(ctx, func() error {
		err := a.kube.ResourceV1().ResourceClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// own selects the node's slices.
func own() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + nodeName}
}

// published are the node's devices by pool and name, and of each what it is.
func (a *api) published(ctx context.Context) (map[deviceID]resourceapi.Device, error) {
	list, err := a.kube.ResourceV1().ResourceSlices().List(ctx, own())
	if err != nil {
		return nil, err
	}
	out := map[deviceID]resourceapi.Device{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			out[deviceID{s.Spec.Pool.Name, d.Name}] = d
		}
	}
	return out, nil
}

// withdraw deletes the node's slices, as kubelet does when it starts.
func (a *api) withdraw(ctx context.Context) error {
	return again(ctx, func() error {
		return a.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, own())
	})
}

// keyOf finds out which of the machine's devices a published one is, by what it says of itself.
func keyOf(d resourceapi.Device) string {
	for _, name := range []resourceapi.QualifiedName{"resource.kubernetes.io/pciBusID", "productName", driver + "/productName"} {
		if v, ok := d.Attributes[name]; ok && v.StringValue != nil {
			return *v.StringValue
		}
	}
	return ""
}

// texts are the published devices as JSON.
func texts(devices map[deviceID]resourceapi.Device) (map[string]string, error) {
	out := map[string]string{}
	for id, d := range devices {
		data, err := json.Marshal(d)
		if err != nil {
			return nil, err
		}
		out[id.String()] = string(data)
	}
	return out, nil
}

// altered finds live claims of which the API says something else than was allocated.
func (a *api) altered(ctx context.Context, holders []holder) ([]violation, error) {
	list, err := a.kube.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	now := map[string]string{}
	for _, c := range list.Items {
		if c.Status.Allocation != nil {
			for _, r := range c.Status.Allocation.Devices.Results {
				now[c.Name] += r.Request + "=" + r.Pool + "/" + r.Device + " "
			}
		}
	}
	var found []violation
	for _, h := range holders {
		want := ""
		for _, g := range h.grants {
			want += g.request + "=" + g.id.String() + " "
		}
		name, _, _ := strings.Cut(h.name, "#")
		got, ok := now[name]
		if h.live && ok && got != want {
			found = append(found, violation{lost, h.name, fmt.Sprintf("was allocated %s, and the API says %s", want, got)})
		}
	}
	return found, nil
}
