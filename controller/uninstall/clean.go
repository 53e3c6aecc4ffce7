// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller"
	"github.com/fettle-dev/fettle/controller/bitstream"
	"github.com/fettle-dev/fettle/controller/cache"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/controller/presets"
)

// clean deletes what the controller and the plugins made, sorted by how much it would hurt to find it left: what pods can be
// scheduled by first. A class without our label is an admin's and stays.
func (u Uninstall) clean(ctx context.Context) error {
	return errors.Join(u.classes(ctx), u.slices(ctx), u.accelerators(ctx), u.grants(ctx), u.presets(ctx), u.secret(ctx), u.definitions(ctx))
}

// grants deletes the Roles for the pull secrets of bitstreams and kernel caches and the ConfigMaps of presets. The objects themselves are
// their authors' and stay, unless their definition goes.
func (u Uninstall) grants(ctx context.Context) error {
	var (
		bitstreamsOwn     v1alpha1.FPGABitstreamList
		bitstreamsCluster v1alpha1.ClusterFPGABitstreamList
		cachesOwn         v1alpha1.GPUKernelCacheList
		cachesCluster     v1alpha1.ClusterGPUKernelCacheList
		presetsOwn        v1alpha1.DevicePresetList
		presetsCluster    v1alpha1.ClusterDevicePresetList
	)
	for _, list := range []client.ObjectList{
		&bitstreamsOwn, &bitstreamsCluster, &cachesOwn, &cachesCluster, &presetsOwn, &presetsCluster,
	} {
		err := u.Client.List(ctx, list)
		if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) { // without its definition there are none
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	var requests []grant.Request
	for i := range bitstreamsOwn.Items {
		requests = append(requests, bitstream.Of(bitstreamsOwn.Items[i].Common(), u.Namespace).Grant())
	}
	for i := range bitstreamsCluster.Items {
		requests = append(requests, bitstream.Of(bitstreamsCluster.Items[i].Common(), u.Namespace).Grant())
	}
	for i := range cachesOwn.Items {
		requests = append(requests, cache.Of(cachesOwn.Items[i].Common(), u.Namespace).Grant())
	}
	for i := range cachesCluster.Items {
		requests = append(requests, cache.Of(cachesCluster.Items[i].Common(), u.Namespace).Grant())
	}
	for i := range presetsOwn.Items {
		requests = append(requests, presets.Of(presetsOwn.Items[i].Common(), u.Namespace).Grant())
	}
	for i := range presetsCluster.Items {
		requests = append(requests, presets.Of(presetsCluster.Items[i].Common(), u.Namespace).Grant())
	}
	writer := controller.Grants(u.Client, u.Client, u.Namespace)
	var faults []error
	for _, r := range requests {
		if len(r.Names) > 0 {
			faults = append(faults, writer.Revoke(ctx, r))
		}
	}
	return errors.Join(faults...)
}

// presets deletes those that the controller made. One that was changed since is its administrator's.
func (u Uninstall) presets(ctx context.Context) error {
	var list v1alpha1.ClusterDevicePresetList
	err := u.Client.List(ctx, &list, client.MatchingLabels{controller.ManagedByLabel: controller.Name})
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // without its definition there are none
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ClusterDevicePresets: %w", err)
	}
	var faults []error
	for i := range list.Items {
		if controller.AsShipped(&list.Items[i]) {
			faults = append(faults, u.delete(ctx, &list.Items[i], "ClusterDevicePreset"))
		}
	}
	return errors.Join(faults...)
}

// classes deletes the DeviceClasses that carry our label.
func (u Uninstall) classes(ctx context.Context) error {
	var list resourceapi.DeviceClassList
	err := u.Client.List(ctx, &list, client.MatchingLabels{controller.ManagedByLabel: controller.Name})
	if err != nil {
		return fmt.Errorf("list DeviceClasses: %w", err)
	}
	var faults []error
	for i := range list.Items {
		faults = append(faults, u.delete(ctx, &list.Items[i], "DeviceClass"))
	}
	return errors.Join(faults...)
}

// slices deletes the ResourceSlices of this driver that a node left behind, such as one that is not Ready.
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

// accelerators deletes the AcceleratorNodes; a plugin that has retired does not write its own again.
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

// secret deletes the webhook's certificate; the next controller makes its own.
func (u Uninstall) secret(ctx context.Context) error {
	return u.delete(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: controller.TLSSecret},
	}, "Secret")
}

// definitions deletes the CRDs that were asked for.
func (u Uninstall) definitions(ctx context.Context) error {
	var faults []error
	for _, d := range u.CRDs {
		faults = append(faults, u.delete(ctx, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: d.Name},
		}, "CustomResourceDefinition"))
	}
	return errors.Join(faults...)
}

// delete deletes one object; one that is gone already is fine.
func (u Uninstall) delete(ctx context.Context, object client.Object, kind string) error {
	if err := u.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", kind, object.GetName(), err)
	}
	return nil
}
