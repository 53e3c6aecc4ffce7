// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// decodePolicy keeps what decides of a PartitionPolicy.
func decodePolicy(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	p := &v1alpha1.PartitionPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, p); err != nil {
		return nil, fmt.Errorf("PartitionPolicy %s: %w", u.GetName(), err)
	}
	p.ManagedFields, p.Status = nil, v1alpha1.PartitionPolicyStatus{}
	return p, nil
}

// surroundings are what Review decides by beside the machine and the policies.
type surroundings struct {
	labels map[string]string
	// counters is the form of slices in which the API server keeps counters, empty if it keeps none.
	counters partition.Form
	// shares says that the API server keeps devices that several claims have.
	shares bool
	// version is the API server's when counters and shares were found out, minor its number within Kubernetes 1, 0 if it is not known.
	version string
	minor   uint64
	// read says that both were read.
	read bool
	// ask is when the API server is asked again for its version, and tried for what it did not keep.
	ask time.Time
}

// policiesNow returns the policies, and false if they are not known yet.
func (f *Feature) policiesNow() ([]v1alpha1.PartitionPolicy, bool) {
	if !f.policies.HasSynced() {
		return nil, false
	}
	var out []v1alpha1.PartitionPolicy
	for _, object := range f.policies.GetStore().List() {
		if p, ok := object.(*v1alpha1.PartitionPolicy); ok {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.PartitionPolicy) int { return strings.Compare(a.Name, b.Name) })
	return out, true
}

const (
	// patience is how long the first Review waits for the API server. Then it decides as the last one before the restart did.
	patience = 30 * time.Second
	retry    = 2 * time.Second
)

// observe keeps the surroundings current.
func (f *Feature) observe(ctx context.Context) {
	giveUp := time.AfterFunc(patience, f.setKnown)
	defer giveUp.Stop()
	for {
		pause := f.Interval
		if err := f.look(ctx); err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot find out how GPUs are to be divided; tried again", "after", retry)
				f.Errors.WithLabelValues("partitions").Inc()
			}
			pause = retry
		} else if f.policies.HasSynced() {
			f.setKnown()
		} else {
			pause = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (f *Feature) setKnown() { f.closeOnce.Do(func() { close(f.known) }) }

// look reads the node's labels and, now and then, what the API server is and keeps.
func (f *Feature) look(ctx context.Context) error {
	node, err := f.ReadNode(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	next := f.surroundings
	f.mu.Unlock()
	if !next.read || !time.Now().Before(next.ask) {
		if err := next.askServer(ctx, &f.Config); err != nil {
			return err
		}
	}
	changed := !next.read || !sameLabels(next.labels, node.Labels)
	next.labels, next.read = node.Labels, true
	f.mu.Lock()
	changed = changed || f.surroundings.kept() != next.kept() || f.surroundings.counters != next.counters
	f.surroundings = next
	f.mu.Unlock()
	if changed {
		f.Recheck.Send()
	}
	return nil
}

// askServer reads the version of the API server, and tries what it keeps if it is another than before or kept nothing. Servers change
// rarely, and all nodes ask.
func (s *surroundings) askServer(ctx context.Context, c *Config) error {
	server, err := c.Kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("read the version of the API server: %w", err)
	}
	if !s.read || s.version != server.String() || s.counters == "" || !s.shares {
		if s.counters, err = c.CounterForm(ctx); err != nil {
			return err
		}
		if s.shares, err = c.KeepsShares(ctx); err != nil {
			return err
		}
	}
	s.version, s.minor = server.String(), 0
	if v, err := version.ParseGeneric(server.String()); err == nil && v.Major() == 1 {
		s.minor = uint64(v.Minor())
	}
	const rarely, spread = 10, 0.2
	s.ask = time.Now().Add(wait.Jitter(rarely*c.Interval, spread))
	return nil
}

// FieldsDropped notes which fields the API server does not keep: counters, or what makes a device one of several claims.
func (f *Feature) FieldsDropped(_ context.Context, dropped *resourceslice.DroppedFieldsError) {
	counters := slices.Contains(dropped.DisabledFeatures(), "DRAPartitionableDevices")
	shares := slices.Contains(dropped.DisabledFeatures(), "DRAConsumableCapacity")
	if !counters && !shares {
		return
	}
	f.mu.Lock()
	if counters {
		f.surroundings.counters = ""
	}
	if shares {
		f.surroundings.shares = false
	}
	f.mu.Unlock()
	f.Recheck.Send()
}

// kept returns what the API server keeps. Schedulers heed counters of shared devices from Kubernetes 1.37 on (kubernetes/kubernetes#139040,
// #140431, #140437, #140518); a scheduler is at most as new as its API server, and as old as the minor version before.
func (s *surroundings) kept() partition.Kept {
	const both = 37
	return partition.Kept{Counters: s.counters != "", Shares: s.shares, Both: s.minor >= both}
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name, value := range a {
		if other, ok := b[name]; !ok || other != value {
			return false
		}
	}
	return true
}

func removeAll(name string) error {
	if err := os.RemoveAll(name); err != nil {
		return fmt.Errorf("remove the files of partitions: %w", err)
	}
	return nil
}
