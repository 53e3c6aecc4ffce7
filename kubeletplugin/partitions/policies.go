// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/kubeletplugin/retry"
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

// wanted is what the cluster wants of the node's GPUs.
type wanted struct {
	surroundings
	// policies are sorted by name.
	policies []v1alpha1.PartitionPolicy
	// known says that all of this was read. Otherwise it says nothing.
	known bool
}

// cluster follows what the API server has that decides how GPUs are divided: the policies, the node's labels, and what it keeps of slices.
type cluster struct {
	config   *Config
	policies *follow.Informer
	// known closes once the policies and what the API server keeps were read, or could not be for too long.
	known     chan struct{}
	closeOnce sync.Once

	mu sync.Mutex
	// surroundings are what follow read last.
	surroundings surroundings
}

func newCluster(c *Config) (*cluster, error) {
	policies, err := follow.Own(c.Dynamic, "partitionpolicies", decodePolicy, c.Recheck.Send)
	return &cluster{config: c, policies: policies, known: make(chan struct{})}, err
}

// wait waits until what the cluster wants was read, or could not be for too long. It reports false if ctx ended before.
func (c *cluster) wait(ctx context.Context) bool {
	select {
	case <-c.known:
		return true
	case <-ctx.Done():
		return false
	}
}

// wanted returns what the cluster wants now.
func (c *cluster) wanted() wanted {
	if !c.policies.HasSynced() {
		return wanted{}
	}
	var out []v1alpha1.PartitionPolicy
	for _, object := range c.policies.GetStore().List() {
		if p, ok := object.(*v1alpha1.PartitionPolicy); ok {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.PartitionPolicy) int { return strings.Compare(a.Name, b.Name) })
	c.mu.Lock()
	defer c.mu.Unlock()
	return wanted{surroundings: c.surroundings, policies: out, known: c.surroundings.read}
}

const (
	// patience is how long the first Review waits for the API server. Then it decides as the last one before the restart did.
	patience = 30 * time.Second
	// longestRetry is how long a try waits at most after others that failed.
	longestRetry = 30 * time.Second
)

// follow keeps the surroundings current.
func (c *cluster) follow(ctx context.Context) {
	giveUp := time.AfterFunc(patience, c.setKnown)
	defer giveUp.Stop()
	failing := retry.New(longestRetry)
	for {
		pause := c.config.Interval
		if err := c.look(ctx); err != nil {
			pause = failing.Next()
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot find out how GPUs are to be divided; tried again", "after", pause)
				c.config.Errors.WithLabelValues("partitions").Inc()
			}
		} else if failing.Reset(); c.policies.HasSynced() {
			c.setKnown()
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

func (c *cluster) setKnown() { c.closeOnce.Do(func() { close(c.known) }) }

// look reads the node's labels and, now and then, what the API server is and keeps.
func (c *cluster) look(ctx context.Context) error {
	node, err := c.config.ReadNode(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	next := c.surroundings
	c.mu.Unlock()
	if !next.read || !time.Now().Before(next.ask) {
		if err := next.askServer(ctx, c.config); err != nil {
			return err
		}
	}
	changed := !next.read || !sameLabels(next.labels, node.Labels)
	next.labels, next.read = node.Labels, true
	c.mu.Lock()
	changed = changed || c.surroundings.kept() != next.kept() || c.surroundings.counters != next.counters
	c.surroundings = next
	c.mu.Unlock()
	if changed {
		c.config.Recheck.Send()
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

// fieldsDropped notes which fields the API server does not keep: counters, or what makes a device one of several claims.
func (c *cluster) fieldsDropped(dropped *resourceslice.DroppedFieldsError) {
	counters := slices.Contains(dropped.DisabledFeatures(), "DRAPartitionableDevices")
	shares := slices.Contains(dropped.DisabledFeatures(), "DRAConsumableCapacity")
	if !counters && !shares {
		return
	}
	c.mu.Lock()
	if counters {
		c.surroundings.counters = ""
	}
	if shares {
		c.surroundings.shares = false
	}
	c.mu.Unlock()
	c.config.Recheck.Send()
}

// kept returns what the API server keeps. A scheduler is at most as new as its API server, and as old as the minor version before.
func (s *surroundings) kept() partition.Kept {
	return partition.Kept{Counters: s.counters != "", Shares: s.shares, Both: s.minor >= partition.MinorForBoth}
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
