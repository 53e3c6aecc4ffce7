// SPDX-License-Identifier: Apache-2.0

// Package quiesce has the plugin let go of a vendor's devices while it runs on, so that their kernel driver can be changed: none of the
// plugin's programs uses them, none of them is published, and no new claim gets one. Claims are released as ever.
package quiesce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/vendors"
)

// ErrQuiesced refuses claims with devices whose driver is about to be changed.
var ErrQuiesced = errors.New("is not given to claims while its driver is changed (annotation " + v1alpha1.QuiesceAnnotation +
	" on the node's AcceleratorNode): retried until that is over, or delete the pod so that it is scheduled elsewhere")

// Reason returns the stable reason of an error of this package, and "" for any other.
func (s *State) Reason(err error) (reason string, permanent bool) {
	if errors.Is(err, ErrQuiesced) {
		return "DriverQuiesced", false
	}
	return "", false
}

const (
	// fileName is the file in the state directory with the last value of the annotation: a plugin that starts during the change of a driver
	// must not open its devices before it has read the annotation.
	fileName = "quiesced"
	// upgradeFile is the file with the last value of v1alpha1.UpgradeAnnotation: a plugin that starts during an upgrade must not publish
	// devices without the taint before it has read the annotation.
	upgradeFile = "upgrade"
	// maxValue is the longest value that is kept.
	maxValue = 256
	all      = "*"
	// drainWord is which word of v1alpha1.UpgradeAnnotation is v1alpha1.UpgradeDrain or v1alpha1.UpgradeForce.
	drainWord = 2
)

// Config has the settings and signals of a State.
type Config struct {
	// Dir is the plugin's state directory, NVMLCommand the path of the fettle-nvml binary.
	Dir, NVMLCommand string
	// Review has the devices reviewed. Requery has NVIDIA's library asked again, since another driver may answer.
	Review, Requery notify.Signal
	// Retired reports whether the node was asked to retire. Nil: it never is.
	Retired func() bool
	// HostRoot is the directory of the host's tree. SeesProcesses says that the plugin may look at the open files of all processes there.
	HostRoot      string
	SeesProcesses bool
	// Proc is /proc of this process. Empty: "/proc".
	Proc string
	// FS writes the files. Nil: the operating system's.
	FS disk.FS
}

// State says whose devices the plugin lets go of. The methods that only read may be called on nil, which lets go of nothing.
type State struct {
	config Config

	mu      sync.Mutex
	value   string
	upgrade string
	// unsaved are the files that could not be written yet.
	unsaved map[string]bool
	// removed says that the files were removed, and the node does not serve again yet.
	removed bool
	changed chan struct{}
}

// Open returns the state that an earlier process left.
func Open(c Config) (*State, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.FS == nil {
		c.FS = disk.OS{}
	}
	if c.Retired == nil {
		c.Retired = func() bool { return false }
	}
	s := &State{config: c, unsaved: map[string]bool{}, changed: make(chan struct{})}
	for name, value := range map[string]*string{fileName: &s.value, upgradeFile: &s.upgrade} {
		data, err := os.ReadFile(s.path(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read whether drivers are quiesced: %w", err)
		}
		*value = tidy(string(data))
	}
	return s, nil
}

func (s *State) path(name string) string { return filepath.Join(s.config.Dir, name) }

func tidy(value string) string {
	return strings.TrimSpace(value[:min(len(value), maxValue)])
}

// Set follows the annotation. The value names vendors, separated by commas, or "*"; empty ends it.
func (s *State) Set(ctx context.Context, value string) {
	value = tidy(value)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.save(ctx, fileName, value, value != s.value)
	if value == s.value {
		return
	}
	klog.FromContext(ctx).Info("Drivers to quiesce changed", "vendors", value, "before", s.value)
	was, _ := named(s.value)
	now, _ := named(value)
	s.value = value
	close(s.changed)
	s.changed = make(chan struct{})
	if slices.Contains(was, "nvidia") && !slices.Contains(now, "nvidia") {
		s.config.Requery.Send() // what is known is of the driver before; the scan reviews, too
		return
	}
	s.config.Review.Send()
}

// keep writes a value to disk before it counts, or removes it. A disk that cannot be written holds up neither, and has the value before
// until the annotation is seen again.
func (s *State) keep(ctx context.Context, name, value string) {
	var err error
	if value == "" {
		err = disk.RemoveIfThere(s.config.FS, s.path(name))
	} else {
		err = disk.ReplaceDurably(s.config.FS, s.path(name), []byte(value), 0o600)
	}
	s.unsaved[name] = err != nil
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot keep on disk which drivers are quiesced or upgraded")
	}
}

// save has a value on disk that changed, that could not be written when it came, or that was removed. On a node that was emptied it writes
// nothing before the node serves again.
func (s *State) save(ctx context.Context, name, value string, changed bool) {
	s.removed = s.removed && s.config.Retired()
	s.unsaved[name] = s.unsaved[name] || changed
	if s.unsaved[name] && !s.removed {
		s.keep(ctx, name, value)
	}
}

// SetUpgrade follows v1alpha1.UpgradeAnnotation: while it has a value, every device has a taint.
func (s *State) SetUpgrade(ctx context.Context, value string) {
	value = tidy(value)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.save(ctx, upgradeFile, value, value != s.upgrade)
	if value == s.upgrade {
		return
	}
	klog.FromContext(ctx).Info("The upgrade of a driver changed", "upgrade", value, "before", s.upgrade)
	s.upgrade = value
	s.config.Review.Send()
}

// Annotations returns the annotations that the state follows and that have a value.
func (s *State) Annotations() map[string]string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for name, value := range map[string]string{v1alpha1.QuiesceAnnotation: s.value, v1alpha1.UpgradeAnnotation: s.upgrade} {
		if value != "" {
			out[name] = value
		}
	}
	return out
}

// upgradeEffect returns that of the taint of all devices while a driver is upgraded, and whether pods are to go. Empty: there is none.
func (s *State) upgradeEffect() (effect resourceapi.DeviceTaintEffect, drains bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	words := strings.Fields(s.upgrade)
	if len(words) == 0 {
		return "", false
	}
	word := ""
	if len(words) > drainWord {
		word = words[drainWord]
	}
	if word == v1alpha1.UpgradeForce {
		return resourceapi.DeviceTaintEffectNoExecute, true
	}
	return resourceapi.DeviceTaintEffectNoSchedule, word == v1alpha1.UpgradeDrain
}

// Destroy removes the files. It is called when the node has no claim any more and is retired. What they say holds on in this process.
func (s *State) Destroy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed, s.unsaved[fileName], s.unsaved[upgradeFile] = true, true, true
	return errors.Join(disk.RemoveIfThere(s.config.FS, s.path(fileName)), disk.RemoveIfThere(s.config.FS, s.path(upgradeFile)))
}

// Changed returns a channel that closes at the next change.
func (s *State) Changed() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Idle reports whether the plugin was not asked to let go of anything.
func (s *State) Idle() bool {
	known, unknown := s.vendors()
	return len(known)+len(unknown) == 0
}

// Holds reports whether the plugin lets go of a vendor's devices.
func (s *State) Holds(vendor string) bool {
	known, _ := s.vendors()
	return slices.Contains(known, vendor)
}

// vendors returns the vendors that the annotation names, sorted, and names in it that are no vendor's.
func (s *State) vendors() (known, unknown []string) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return named(s.value)
}

// named returns the vendors that a value names, sorted, and names in it that are no vendor's.
func named(value string) (known, unknown []string) {
	names := vendors.Names(vendors.WithNodes())
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == all:
			known = append(known, names...)
		case slices.Contains(names, name):
			known = append(known, name)
		case name != "":
			unknown = append(unknown, name)
		}
	}
	slices.Sort(known)
	return slices.Compact(known), unknown
}

// Review withholds the devices that the plugin lets go of, whole ones and parts, and has all others tainted during an upgrade.
func (s *State) Review(_ context.Context, v *inventory.Snapshot) {
	v.Upgrade, v.Draining = s.upgradeEffect()
	known, _ := s.vendors()
	for i := range v.Devices {
		if d := &v.Devices[i]; slices.Contains(known, device.StringOf(d.Attributes[device.AttributeVendor])) {
			v.Withheld[d.Name] = "is withheld while its driver is changed (annotation " + v1alpha1.QuiesceAnnotation + ")"
		}
	}
}

// Check refuses a device that the plugin lets go of, also for admin access, which opens it as well.
func (s *State) Check(v *inventory.Snapshot, r *claim.Result) error {
	if s.Holds(vendorOf(v, r.Kind, r.Device)) {
		return fmt.Errorf("device %s/%s %w", r.Pool, r.Device, ErrQuiesced)
	}
	return nil
}

// vendorOf returns the vendor of a device, by its name if the last scan did not find it: without a driver some devices are not found, and
// names of PCI devices begin with the vendor.
func vendorOf(v *inventory.Snapshot, kind device.Kind, name string) string {
	if v != nil {
		if d, ok := v.Find(kind, name); ok {
			return device.StringOf(d.Attributes[device.AttributeVendor])
		}
	}
	vendor, _, _ := strings.Cut(name, "-")
	return vendor
}
