// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cmd/fettle/internal/overview"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
)

const statusHelp = `
Says in one screen how Fettle does on a cluster: what is installed, which nodes have which devices, what is wrong, and the command to go on
with. It is the first command on a cluster that you do not know, and at night.

Nodes with problems come first. Pods count that have waited or not started for a minute. --all tells of all nodes, and of all that is wrong,
at full length. What you may not read is named.

The exit status is 3 if something is wrong.`

const statusExamples = `
fettle status
fettle status --all
fettle status -o json`

// statusWrong is the exit status if something is wrong.
const statusWrong = 3

func status(flags *arguments) action {
	c := flags.connection()
	all := flags.Bool("all", false, "tell of all nodes and of all that is wrong")
	format := flags.format()
	return func(ctx context.Context, _ []string, stdout, _ io.Writer) error {
		client, _, err := c.client()
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		read, err := clusterOverview(ctx, client)
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		report := overview.Of(read)
		err = show(*format, report, stdout, func(stdout io.Writer) error { return report.WriteText(stdout, *all) })
		if err == nil && len(report.Wrong) > 0 {
			err = statusError{fmt.Errorf("status: something is wrong in %s", counted(len(report.Wrong), "place")), statusWrong}
		}
		return err
	}
}

// overviewKinds are the kinds of Fettle whose conditions count, by their resources.
func overviewKinds() map[string]string {
	return map[string]string{
		"acceleratorstacks": "AcceleratorStack", "partitionpolicies": "PartitionPolicy", "clusterdevicepresets": "ClusterDevicePreset",
		"devicepresets": "DevicePreset", "clusterfpgabitstreams": "ClusterFPGABitstream", "fpgabitstreams": "FPGABitstream",
		"clustergpukernelcaches": "ClusterGPUKernelCache", "gpukernelcaches": "GPUKernelCache",
	}
}

// conditioned is an object as far as its conditions go.
type conditioned struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// clusterOverview reads what an overview is made of. What may not be read is said.
func clusterOverview(ctx context.Context, r *reader) (c overview.Cluster, err error) {
	var failed []error
	c.Now = time.Now()
	read := func(what string, list func() error) {
		switch err := list(); {
		case apierrors.IsForbidden(err):
			c.Unread = append(c.Unread, fmt.Sprintf("%s are not known: %v", what, err))
		case err != nil && !apierrors.IsNotFound(err): // without Fettle, its kinds are not there
			failed = append(failed, fmt.Errorf("list the %s: %w", what, err))
		}
	}
	apps, own := appsv1.SchemeGroupVersion.WithResource, v1alpha1.GroupVersion.WithResource
	const label = "app.kubernetes.io/name=fettle"
	read("daemonsets", func() (err error) {
		c.DaemonSets, err = listOf(ctx, r, apps("daemonsets"), choice[appsv1.DaemonSet]{labels: label})
		return err
	})
	read("deployments", func() (err error) {
		c.Deployments, err = listOf(ctx, r, apps("deployments"), choice[appsv1.Deployment]{labels: label})
		return err
	})
	read("acceleratornodes", func() (err error) {
		c.Nodes, err = listOf(ctx, r, own("acceleratornodes"), choice[v1alpha1.AcceleratorNode]{})
		return err
	})
	for _, resource := range slices.Sorted(maps.Keys(overviewKinds())) {
		kind := overviewKinds()[resource]
		read(resource, func() error {
			all, err := listOf(ctx, r, own(resource), choice[conditioned]{})
			for _, o := range all {
				c.Objects = append(c.Objects, overview.Object{Kind: kind, ObjectMeta: o.ObjectMeta, Conditions: o.Status.Conditions})
			}
			return err
		})
	}
	var classes []*resourceapi.DeviceClass
	read("deviceclasses", func() (err error) {
		classes, err = listOf(ctx, r, resourceapi.SchemeGroupVersion.WithResource("deviceclasses"), choice[resourceapi.DeviceClass]{})
		return err
	})
	read("pods", func() (err error) {
		c.Pods, err = waitingPods(ctx, r, classes)
		return err
	})
	return c, errors.Join(failed...)
}

// waitingPods reads the pods that do not run, and that ask for devices: by claims, or by resources that classes stand for.
func waitingPods(ctx context.Context, r *reader, classes []*resourceapi.DeviceClass) ([]*corev1.Pod, error) {
	set, _, err := gates.For("", nil)
	if err != nil {
		return nil, err
	}
	extended := plan.ExtendedClasses(set, classes)
	return listOf(ctx, r, corev1.SchemeGroupVersion.WithResource("pods"), choice[corev1.Pod]{
		fields: fields.Set{"status.phase": string(corev1.PodPending)},
		keep: func(p *corev1.Pod) bool {
			return len(p.Spec.ResourceClaims) > 0 || len(plan.PodCharge(p, extended)) > 0
		},
	})
}
