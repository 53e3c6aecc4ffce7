// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/elffile"
	"github.com/fettle-dev/fettle/test/lone"
)

// The series of claims that pods own, with the shipped preset of NVIDIA's driver and without it.
const (
	driverPrepare   = "driver.prepare"
	driverAgain     = "driver.again"
	driverUnprepare = "driver.unprepare"
	// The processor's time that the plugin takes for such calls.
	driverPrepareCPU = "driver.prepare.cpu"
	driverAgainCPU   = "driver.again.cpu"
	// driverCost is what the preset makes of a Prepare at the median.
	driverCost = "driver.prepare.over_plain"
	// driverRecord is the size of a claim's record, driverIdle the processor's time of a plugin for driverIdleTime in which nothing happens.
	driverRecord = "driver.record"
	driverIdle   = "driver.idle.cpu"
)

const (
	// caseDriver is with the preset, casePlain without any.
	caseDriver = "driver"

	targetDriver       = 1.15
	targetDriverAgain  = 2.0  // ms
	targetDriverRecord = 2000 // bytes
	targetDriverIdle   = 20   // ms in 30 s
	driverIdleTime     = 30 * time.Second
	// driverLibraries is how many libraries the driver has, driverVersion which version the kernel of the machine runs.
	driverLibraries = 36
	driverVersion   = "580.95.05"
	driverPreset    = "nvidia.fettle.dev"
)

// driverConfiguration has the plugin ask for the driver's files alone: the simulator of NVIDIA's library writes to the driver's root.
const driverConfiguration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
nvml: {disabled: true}
`

func driverSeries() []string {
	return []string{driverPrepare, driverAgain, driverUnprepare, driverPrepareCPU, driverAgainCPU}
}

// driverNode is a node with the driver, and a claim for each GPU and one for all.
type driverNode struct {
	plugin       *plugin
	single, wide claim
	// record is the size of a record by case.
	record map[string]int
}

// measureDriver measures claims with the shipped preset in turn with the same claims without any preset.
func measureDriver(ctx context.Context, b *bench) (err error) {
	b.say("%s: building fettle-nvml and fettle-hook", migMachine)
	command, hook := filepath.Join(b.disk, "driver-nvml"), filepath.Join(b.disk, "driver-hook")
	if err := buildWith(ctx, b.root, command, "./cmd/fettle-nvml", "CGO_ENABLED=1"); err != nil {
		return err
	}
	if err := build(ctx, b.root, hook, "./cmd/fettle-hook"); err != nil {
		return err
	}
	n, err := newDriverNode(ctx, b, command, hook)
	if n != nil {
		defer func() { err = errors.Join(err, n.plugin.Stop()) }()
	}
	if err != nil {
		return err
	}
	b.say("%s: preparing with and without the driver's preset", migMachine)
	measured := map[string]map[int]samples{casePlain: {1: {}, gpusPerNode: {}}, caseDriver: {1: {}, gpusPerNode: {}}}
	begin := time.Now()
	for i := -1; i < 0 || b.form.more(i, begin, 4*b.form.limit); i++ {
		for _, what := range []string{caseDriver, casePlain} {
			if err := n.switchPreset(ctx, b, what); err != nil {
				return err
			}
			for _, c := range []claim{n.single, n.wide} {
				s := measured[what][c.devices]
				if i < 0 {
					s = samples{} // nothing is known to the plugin yet
				}
				if err := n.rounds(ctx, s, what, c); err != nil {
					return err
				}
			}
		}
	}
	if err := b.report.driver(n, measured); err != nil {
		return err
	}
	return n.measureIdle(ctx, b)
}

// rounds prepares a claim some times.
func (n *driverNode) rounds(ctx context.Context, s samples, what string, c claim) error {
	const times = 4
	for range times {
		if err := n.timeBoth(ctx, s, driverPrepare, driverPrepareCPU, c); err != nil {
			return err
		}
		if c.devices == 1 {
			content, err := os.ReadFile(filepath.Join(n.plugin.node.Disk, "state", "claims", c.Uid+".json"))
			if err != nil {
				return fmt.Errorf("read a record: %w", err)
			}
			n.record[what] = len(bytes.Trim(content, "\x00"))
		}
		if err := n.timeBoth(ctx, s, driverAgain, driverAgainCPU, c); err != nil {
			return err
		}
		if err := s.time(ctx, driverUnprepare, c, n.plugin.unprepare); err != nil {
			return err
		}
	}
	return nil
}

// timeBoth prepares a claim, and adds what that took and the processor's time of the plugin meanwhile.
func (n *driverNode) timeBoth(ctx context.Context, s samples, wall, processor string, c claim) error {
	before, err := processorTime(n.plugin.PID())
	if err != nil {
		return err
	}
	if err := s.time(ctx, wall, c, n.plugin.prepare); err != nil {
		return err
	}
	after, err := processorTime(n.plugin.PID())
	s.add(processor, after-before)
	return err
}

// newDriverNode starts a plugin on a machine with the driver.
func newDriverNode(ctx context.Context, b *bench, command, hook string) (*driverNode, error) {
	object, err := b.newNode(ctx, "driver", unlimited()...)
	if err != nil {
		return nil, err
	}
	if err := expandFile(b.root, migMachine, object.Host); err != nil {
		return nil, err
	}
	if err := installDriver(object.Host); err != nil {
		return nil, fmt.Errorf("install a driver: %w", err)
	}
	file := filepath.Join(object.Disk, "config.yaml")
	if err := os.WriteFile(file, []byte(driverConfiguration), 0o600); err != nil {
		return nil, fmt.Errorf("write the plugin's configuration: %w", err)
	}
	object.Flags = append(object.Flags, "--config="+file, "--nvml-command="+command, "--hook-command="+hook)
	n := &driverNode{record: map[string]int{}}
	if n.plugin, err = b.start(ctx, object); err != nil {
		return nil, err
	}
	found, err := b.cluster.published(ctx, n.plugin, gpusPerNode)
	if err != nil {
		return n, err
	}
	gpus := found.of("gpu")
	shapes := []shape{{name: "driver-one", devices: gpus[:1]}, {name: "driver-all", devices: gpus, together: true}}
	for i := range shapes {
		s := &shapes[i]
		s.node, s.pool, s.what, s.owned = object.Name, "gpu", casePlain, true
		if s.pod, err = b.cluster.makePod(ctx, s.name, s.node, corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &s.name}); err != nil {
			return n, err
		}
	}
	claims, err := b.cluster.createClaims(ctx, shapes)
	if err != nil {
		return n, err
	}
	n.single, n.wide = claims[0], claims[1]
	return n, nil
}

// installDriver leaves libraries, programs, firmware and a configuration as NVIDIA's installer does.
func installDriver(root string) error {
	const dir = "usr/lib/x86_64-linux-gnu/"
	files := map[string][]byte{
		"usr/bin/nvidia-smi": elffile.File{}.Bytes(),
		"usr/lib/firmware/nvidia/" + driverVersion + "/gsp.bin": []byte("firmware"),
		"usr/share/glvnd/egl_vendor.d/10_nvidia.json":           []byte("{}"),
	}
	names := []string{"libcuda", "libnvidia-ml"}
	for i := len(names); i < driverLibraries; i++ {
		names = append(names, fmt.Sprintf("libnvidia-part%02d", i))
	}
	var errs []error
	for _, name := range names {
		files[dir+name+".so."+driverVersion] = elffile.File{Soname: name + ".so.1"}.Bytes()
	}
	for name, content := range files {
		at := filepath.Join(root, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, content, 0o755))
	}
	for _, name := range names {
		errs = append(errs, os.Symlink(name+".so."+driverVersion, filepath.Join(root, dir, name+".so.1")))
	}
	return errors.Join(errs...)
}

// switchPreset has the preset be there or not, and waits until the plugin knows.
func (n *driverNode) switchPreset(ctx context.Context, b *bench, what string) error {
	client := b.cluster.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterdevicepresets"))
	if what == caseDriver {
		object, err := shippedPreset(b.root)
		if err != nil {
			return err
		}
		if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make the driver's preset: %w", err)
		}
	} else if err := client.Delete(ctx, driverPreset, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the driver's preset: %w", err)
	}
	_, err := lone.Await(ctx, time.Now(), "the plugin to know the preset", func() (bool, error) {
		response, _, err := n.plugin.Prepare(ctx, wire([]claim{n.single}))
		if err != nil {
			return false, err
		}
		if _, err := n.plugin.unprepare(ctx, n.single); err != nil {
			return false, err
		}
		names := len(response.Claims[n.single.Uid].Devices[0].CdiDeviceIds)
		const shown, device, driver = 1, 1, 1
		return names == shown+device+driver == (what == caseDriver), nil
	})
	return err
}

// shippedPreset is the preset as the controller makes it.
func shippedPreset(root string) (*unstructured.Unstructured, error) {
	content, err := os.ReadFile(filepath.Join(root, "deployments", "helm", "fettle", "files", "presets.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the shipped presets: %w", err)
	}
	var specs map[string]map[string]any
	if err := yaml.Unmarshal(content, &specs); err != nil {
		return nil, fmt.Errorf("read the shipped presets: %w", err)
	}
	if specs[driverPreset] == nil {
		return nil, fmt.Errorf("no preset %s is shipped", driverPreset)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": specs[driverPreset]}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterDevicePreset"))
	object.SetName(driverPreset)
	return object, nil
}

// measureIdle measures what a plugin takes of a processor while nothing happens.
func (n *driverNode) measureIdle(ctx context.Context, b *bench) error {
	b.say("%s: idle", migMachine)
	if err := lone.Pause(ctx, b.form.idle/4); err != nil { // what calls left to do is done
		return err
	}
	before, err := processorTime(n.plugin.PID())
	if err != nil {
		return err
	}
	if err := lone.Pause(ctx, b.form.idle); err != nil {
		return err
	}
	after, err := processorTime(n.plugin.PID())
	if err != nil {
		return err
	}
	at := point{Machine: migMachine}
	used := milliseconds(after-before) * float64(driverIdleTime) / float64(b.form.idle)
	return b.report.against(targetIf(b.form.idle >= driverIdleTime, targetDriverIdle), driverIdle, &at, 1, used)
}

// driver writes what claims cost with the driver's preset and without it.
func (r *report) driver(n *driverNode, measured map[string]map[int]samples) error {
	var errs []error
	for _, devices := range []int{1, gpusPerNode} {
		for _, what := range []string{casePlain, caseDriver} {
			at := point{Machine: migMachine, Devices: devices, Parallel: 1, Case: what}
			s := measured[what][devices]
			errs = append(errs, r.series(at, s))
		}
		at := point{Machine: migMachine, Devices: devices, Parallel: 1}
		plain, with := measured[casePlain][devices], measured[caseDriver][devices]
		ratio := with.median(driverPrepare) / plain.median(driverPrepare)
		errs = append(errs, r.against(targetDriver, driverCost, &at, len(with.of(driverPrepare)), ratio))
	}
	for _, what := range []string{casePlain, caseDriver} {
		at := point{Machine: migMachine, Devices: 1, Parallel: 1, Case: what}
		errs = append(errs, r.against(targetIf(what == caseDriver, targetDriverRecord), driverRecord, &at, 1, float64(n.record[what])))
	}
	return errors.Join(errs...)
}

// processorTime is what all threads of a process have run.
func processorTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		text, _, _ := strings.Cut(string(content), " ")
		ran, err := time.ParseDuration(text + "ns")
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum += ran
	}
	return sum, nil
}
