// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/conformance"
	"github.com/fettle-dev/fettle/test/lone"
	"github.com/fettle-dev/fettle/test/objects"
)

const (
	namespace = "gpu"
	nodeName  = "card"
	className = "gpu.fettle.dev"
)

// running is the shipped plugin beside an API server.
type running struct {
	cluster *lone.Cluster
	node    lone.Node
	plugin  *lone.Plugin
	claims  int
}

func (r *running) stop() {
	if r.plugin != nil {
		_ = r.plugin.Stop()
	}
	if r.cluster != nil {
		_ = r.cluster.Stop()
	}
}

// configuration is what the chart gives with nvidia.enabled.
const configuration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
discoveryInterval: 10s
nvml: {driverRoot: %[1]s, hostDriverRoot: %[1]s}
presets: {hostDirectories: [/usr, /opt, /etc], reportMissing: true}
`

// start runs an API server and the plugin, unless they run.
func (s *site) start(ctx context.Context) (*running, error) {
	if s.running != nil {
		return s.running, nil
	}
	r := &running{}
	s.running = r
	var err error
	r.cluster, err = lone.StartCluster(ctx, lone.ClusterConfig{
		Programs: filepath.Join(s.bundle, "bin"), CRDs: filepath.Join(s.bundle, "crds"), Dir: s.work, Namespace: namespace,
	})
	if err != nil {
		return nil, err
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: className}}
	if _, err := r.cluster.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	vendors := []string{"nvidia"}
	if s.simulated() {
		vendors = nil // there is no driver whose files could be given
	}
	for _, preset := range shippedpresets.Presets(vendors) {
		preset.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterDevicePreset}
		if err := r.cluster.Create(ctx, "clusterdevicepresets", "", preset); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(s.work, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, s.driver), 0o600); err != nil {
		return nil, err
	}
	r.node = lone.Node{Name: nodeName, Fast: s.work, Disk: filepath.Join(s.work, "disk"), Host: s.root, Flags: []string{
		"--config=" + config, "--nvml-command=" + s.child, "--hook-command=" + s.program("fettle-hook"), "--v=4",
	}}
	if err := r.node.Make(ctx, r.cluster); err != nil {
		return nil, err
	}
	r.plugin, err = r.node.Start(ctx, r.cluster, s.program("fettle-kubeletplugin"))
	return r, err
}

// devices waits for the GPUs that the plugin publishes.
func (r *running) devices(ctx context.Context) (out []resourceapi.Device, took time.Duration, err error) {
	took, err = lone.Await(ctx, r.plugin.Begin, "GPUs in slices", func() (bool, error) {
		list, err := r.cluster.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		out = nil
		for i := range list.Items {
			if list.Items[i].Spec.Pool.Name == nodeName+"/gpu" {
				out = append(out, list.Items[i].Spec.Devices...)
			}
		}
		return len(out) > 0, r.plugin.Running()
	})
	return out, took, err
}

// claim makes a claim that has a device.
func (r *running) claim(ctx context.Context, device string) (*drapb.Claim, error) {
	r.claims++
	name := fmt.Sprintf("claim-%d", r.claims)
	client := r.cluster.Kube.ResourceV1().ResourceClaims(namespace)
	object, err := client.Create(ctx, objects.Claim(namespace, name, objects.Request("gpu", className)), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	object.Status.Allocation = objects.Allocation(objects.Result("gpu", v1alpha1.DriverName, nodeName+"/gpu", device))
	object.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName}}},
	}}}
	object.Status.ReservedFor = objects.ReservedFor(name, object.UID)
	if _, err := client.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return &drapb.Claim{Namespace: namespace, Name: name, Uid: string(object.UID)}, nil
}

// prepare returns the CDI devices of a claim.
func (r *running) prepare(ctx context.Context, c *drapb.Claim) (ids []string, took time.Duration, err error) {
	response, took, err := r.plugin.Prepare(ctx, []*drapb.Claim{c})
	if err != nil {
		return nil, 0, err
	}
	for _, d := range response.Claims[c.Uid].Devices {
		ids = append(ids, d.CdiDeviceIds...)
	}
	return ids, took, nil
}

// unprepare lets go of a claim and deletes it.
func (r *running) unprepare(ctx context.Context, c *drapb.Claim) (time.Duration, error) {
	took, err := r.plugin.Unprepare(ctx, c)
	if err != nil {
		return 0, err
	}
	return took, r.cluster.Kube.ResourceV1().ResourceClaims(namespace).Delete(ctx, c.Name, metav1.DeleteOptions{})
}

// plugin publishes, prepares and unprepares, and lets the conformance checks do it, too.
func (s *site) plugin(ctx context.Context, f *findings) error {
	if _, err := os.Stat(s.program("kube-apiserver")); err != nil {
		return impossible("%w", err)
	}
	r, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer func() { f.fact("log", tail([]byte(r.plugin.Output.String()))) }()
	devices, took, err := r.devices(ctx)
	if err != nil {
		return err
	}
	f.fact("sockets, s", r.plugin.Sockets.Seconds())
	f.fact("published, s", took.Seconds())
	f.fact("devices", devices)
	f.check("each GPU that is discovered is published", s.published(ctx, devices))
	for i := range devices {
		f.check(devices[i].Name+" has no taint", none(devices[i].Taints))
	}
	f.check("claims are prepared and unprepared", s.prepares(ctx, f, r, devices[0].Name))
	f.check("the conformance checks", s.conforms(ctx, f, r))
	return nil
}

// published wants each GPU that discovery finds in the slices.
func (s *site) published(ctx context.Context, devices []resourceapi.Device) error {
	found, err := lookAt(ctx, s.root, func(ctx context.Context) (nvml.Report, error) { return nvml.Query(ctx, s.command()) })
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, d := range devices {
		names[d.Name] = true
	}
	var missing []string
	for i := range found.Devices {
		if d := &found.Devices[i]; d.Kind == device.KindGPU && !names[d.Name] {
			missing = append(missing, d.Name)
		}
	}
	return none(missing)
}

// prepares measures pairs of Prepare and Unprepare.
func (s *site) prepares(ctx context.Context, f *findings, r *running, device string) error {
	const pairs = 30
	var prepared, unprepared []time.Duration
	for range pairs {
		c, err := r.claim(ctx, device)
		if err != nil {
			return err
		}
		_, took, err := r.prepare(ctx, c)
		if err != nil {
			return err
		}
		prepared = append(prepared, took)
		if took, err = r.unprepare(ctx, c); err != nil {
			return err
		}
		unprepared = append(unprepared, took)
	}
	f.fact("first Prepare, ms", timesOf(prepared[:1:1]).Max)
	f.fact("Prepare, ms", timesOf(prepared[1:]))
	f.fact("Unprepare, ms", timesOf(unprepared[1:]))
	left, err := filepath.Glob(filepath.Join(r.node.CDI(), "fettle.dev-claim*"))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("CDI files of claims are left: %v", left)
	}
	return err
}

// conforms makes the checks of test/conformance that need no restart. A machine with one device has too few for some.
func (s *site) conforms(ctx context.Context, f *findings, r *running) error {
	const patience, stable, parallel = 20 * time.Second, 3 * time.Second, 16
	var failed []error
	counts, told := map[conformance.Status]int{}, map[string]string{}
	err := conformance.Run(ctx, conformance.Config{
		Kube: r.cluster.Kube, Driver: v1alpha1.DriverName, Node: nodeName, Registration: filepath.Join(r.node.Fast, "r", "*-reg.sock"),
		CDIDirs: []string{r.node.CDI()}, Class: className, CallTimeout: patience, Patience: patience, StableFor: stable, Parallel: parallel,
	}, conformance.Checks(), func(result conformance.Result) {
		counts[result.Status]++
		if result.Status != conformance.Passed {
			told[result.Check.Name] = string(result.Status) + ": " + result.Message
		}
		if result.Status == conformance.Failed {
			failed = append(failed, fmt.Errorf("%s: %s", result.Check.Name, result.Message))
		}
	})
	f.fact("conformance", counts)
	f.fact("conformance, what did not pass", told)
	return errors.Join(append(failed, err)...)
}
