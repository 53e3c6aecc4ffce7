// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/bitstreams"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/kernelcaches"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/nodetaints"
	"github.com/fettle-dev/fettle/controller/presets"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/pkg/stack"
)

// nodeDefinition is the name of the CRD whose deletion deletes all AcceleratorNodes.
const nodeDefinition = "acceleratornodes." + v1alpha1.GroupName

// clean deletes the objects that the controller and the plugins made. DeviceClasses and ResourceSlices go first, since pods can be
// scheduled by them. A class without our label belongs to an administrator and stays.
//
// AcceleratorNodes go last, and only after everything else is gone. A retired node serves again when the controller removes an annotation
// of its AcceleratorNode, so an uninstall that fails before needs the objects. The definitions go shortly before them, since with a
// definition goes what users wrote.
func (u Uninstall) clean(ctx context.Context) error {
	err := errors.Join(
		u.classes(ctx), u.slices(ctx), u.taints(ctx), u.priorities(ctx), u.grants(ctx), u.presets(ctx), u.secret(ctx),
	)
	if err != nil {
		return err
	}
	if err := u.labels(ctx); err != nil {
		return err
	}
	if err := u.definitions(ctx, func(name string) bool { return name != nodeDefinition }); err != nil {
		return err
	}
	if err := u.accelerators(ctx); err != nil {
		return err
	}
	return u.definitions(ctx, func(name string) bool { return name == nodeDefinition })
}

// taints takes off the taints that PartitionPolicies had put on nodes. The policies stay, unless their definition goes.
func (u Uninstall) taints(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := u.Client.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	var faults []error
	for i := range nodes.Items {
		faults = append(faults, u.untaint(ctx, &nodes.Items[i]))
	}
	return errors.Join(faults...)
}

// labels takes off the labels by which KMM knows the drivers of AcceleratorStacks. Their Modules go with the chart's namespace of drivers.
func (u Uninstall) labels(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := u.Client.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	var faults []error
	for i := range nodes.Items {
		faults = append(faults, u.unlabel(ctx, &nodes.Items[i]))
	}
	return errors.Join(faults...)
}

func (u Uninstall) unlabel(ctx context.Context, node *corev1.Node) error {
	gone := reconciler.Named{}
	for label := range node.Labels {
		if stack.LabelledModule(label) != "" {
			gone.Set(label, "")
		}
	}
	if len(gone) == 0 {
		return nil
	}
	patch, err := reconciler.MetadataPatch("", gone, nil)
	if err != nil {
		return err
	}
	if err := u.Client.Patch(ctx, node, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("take the labels of drivers off Node %s: %w", node.Name, err)
	}
	return nil
}

// priorities deletes the PriorityClasses of PartitionPolicies. Pods keep the priority that they were made with.
func (u Uninstall) priorities(ctx context.Context) error {
	var list schedulingv1.PriorityClassList
	err := u.Client.List(ctx, &list, client.MatchingLabels{names.ManagedByLabel: names.Controller})
	if err != nil {
		return fmt.Errorf("list PriorityClasses: %w", err)
	}
	var faults []error
	for i := range list.Items {
		faults = append(faults, u.delete(ctx, &list.Items[i], "PriorityClass"))
	}
	return errors.Join(faults...)
}

// untaint reads a node again that changed meanwhile.
func (u Uninstall) untaint(ctx context.Context, node *corev1.Node) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := nodetaints.Write(ctx, u.Client, node, nil)
		if apierrors.IsConflict(err) {
			if gone := u.Client.Get(ctx, client.ObjectKeyFromObject(node), node); gone != nil {
				return client.IgnoreNotFound(gone)
			}
		}
		return err
	})
}

// grants deletes the Roles for the pull secrets of bitstreams and kernel caches and the ConfigMaps of presets. The objects themselves are
// their authors' and stay, unless their definition goes.
func (u Uninstall) grants(ctx context.Context) error {
	requests, err := u.granted(ctx)
	if err != nil {
		return err
	}
	writer := grant.NewWriter(u.Client, u.Client, u.Namespace)
	var errs []error
	for _, r := range requests {
		errs = append(errs, writer.Revoke(ctx, r))
	}
	return errors.Join(errs...)
}

// granted lists what the controller may have granted for objects.
func (u Uninstall) granted(ctx context.Context) (requests []grant.Request, err error) {
	for _, list := range []client.ObjectList{
		&v1alpha1.FPGABitstreamList{}, &v1alpha1.ClusterFPGABitstreamList{}, &v1alpha1.GPUKernelCacheList{},
		&v1alpha1.ClusterGPUKernelCacheList{}, &v1alpha1.DevicePresetList{}, &v1alpha1.ClusterDevicePresetList{},
	} {
		var of []grant.Request
		begin := func() { of = nil }
		listing := reconciler.Listing{Reader: u.Client, List: list}
		err := listing.Read(ctx, begin, func(o runtime.Object) error {
			if r, granted := u.grantOf(o); granted {
				of = append(of, r)
			}
			return nil
		})
		if ignoreUndefined(err) != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
		requests = append(requests, of...)
	}
	return requests, nil
}

// grantOf returns what the controller may have granted for an object, as far as it is needed to take it back: the object may have a
// megabyte and a half.
func (u Uninstall) grantOf(o runtime.Object) (r grant.Request, granted bool) {
	switch o := o.(type) {
	case interface {
		Common() v1alpha1.CommonFPGABitstream
	}:
		r = bitstreams.Head(o.Common(), u.Namespace).Grant()
	case interface {
		Common() v1alpha1.CommonGPUKernelCache
	}:
		r = kernelcaches.Head(o.Common(), u.Namespace).Grant()
	case interface {
		Common() v1alpha1.CommonDevicePreset
	}:
		r = presets.Of(o.Common(), u.Namespace).Grant()
	}
	if len(r.Names) == 0 {
		return grant.Request{}, false
	}
	r.Names, r.Owner = nil, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: r.Owner.GetName(), UID: r.Owner.GetUID()}}
	return r, true
}

// ignoreUndefined drops the error of a list whose kind has no definition: there are no such objects.
func ignoreUndefined(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// presets deletes the presets that the controller made. A preset that was changed since belongs to its administrator and stays.
func (u Uninstall) presets(ctx context.Context) error {
	var list v1alpha1.ClusterDevicePresetList
	err := u.Client.List(ctx, &list, client.MatchingLabels{names.ManagedByLabel: names.Controller})
	if err := ignoreUndefined(err); err != nil {
		return fmt.Errorf("list ClusterDevicePresets: %w", err)
	}
	var faults []error
	for i := range list.Items {
		if shippedpresets.AsShipped(&list.Items[i]) {
			faults = append(faults, u.delete(ctx, &list.Items[i], "ClusterDevicePreset"))
		}
	}
	return errors.Join(faults...)
}

// classes deletes the DeviceClasses that carry our label.
func (u Uninstall) classes(ctx context.Context) error {
	var list resourceapi.DeviceClassList
	err := u.Client.List(ctx, &list, client.MatchingLabels{names.ManagedByLabel: names.Controller})
	if err != nil {
		return fmt.Errorf("list DeviceClasses: %w", err)
	}
	var faults []error
	for i := range list.Items {
		faults = append(faults, u.delete(ctx, &list.Items[i], "DeviceClass"))
	}
	return errors.Join(faults...)
}

// slices deletes the ResourceSlices of this driver that a node left behind, such as a node that is not Ready.
func (u Uninstall) slices(ctx context.Context) error {
	var list resourceapi.ResourceSliceList
	err := u.Client.List(ctx, &list, client.MatchingFields{resourceapi.ResourceSliceSelectorDriver: v1alpha1.DriverName})
	if err != nil {
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	var faults []error
	for i := range list.Items {
		faults = append(faults, u.delete(ctx, &list.Items[i], "ResourceSlice"))
	}
	return errors.Join(faults...)
}

// accelerators deletes the AcceleratorNodes. A plugin that has retired makes its own again only if it still runs some time later.
func (u Uninstall) accelerators(ctx context.Context) error {
	f, err := u.nodes(ctx)
	if err != nil {
		return err
	}
	var faults []error
	for i := range f.all {
		faults = append(faults, u.delete(ctx, &f.all[i], "AcceleratorNode"))
	}
	return errors.Join(faults...)
}

// secret deletes the webhook's certificate of a controller of an earlier version; the chart deletes its own.
func (u Uninstall) secret(ctx context.Context) error {
	return u.delete(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: names.TLSSecret},
	}, "Secret")
}

// definitions deletes the CRDs that were asked for, of those that the function selects.
func (u Uninstall) definitions(ctx context.Context, selected func(name string) bool) error {
	var faults []error
	for _, d := range u.CRDs {
		if !selected(d.Name) {
			continue
		}
		faults = append(faults, u.delete(ctx, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: d.Name},
		}, "CustomResourceDefinition"))
	}
	return errors.Join(faults...)
}

// delete deletes one object. It is no error if the object is gone already.
func (u Uninstall) delete(ctx context.Context, object client.Object, kind string) error {
	if err := u.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", kind, object.GetName(), err)
	}
	return nil
}
