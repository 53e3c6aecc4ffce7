// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/budget"
)

// Budget bounds what objects of tenants may make the node hold, for one claim, for the claims of one namespace, and for all.
type Budget struct {
	// MaxWritableLimit is the most that a GPUKernelCache's mount.writableLimit may say, MaxSizeLimit the most for a preset's
	// scratch.sizeLimit. Default 16Gi.
	MaxWritableLimit resource.Quantity `json:"maxWritableLimit,omitempty"`
	MaxSizeLimit     resource.Quantity `json:"maxSizeLimit,omitempty"`
	// MaxSeedEntries is the most files, links and directories that the plugin makes in memory for one cache of a claim. Default 8192.
	MaxSeedEntries int64 `json:"maxSeedEntries,omitempty"`
	// Memory is what containers may write to mounts in memory. A percentage is of the machine's memory. Default 50% and 25%.
	Memory Share `json:"memory,omitempty"`
	// SeedEntries and SeedBytes are what the plugin makes in memory for claims. It counts for the plugin's own memory limit. Default
	// 131072 and 32768 entries of about 1 KiB, 64Mi and 16Mi.
	SeedEntries Count `json:"seedEntries,omitempty"`
	SeedBytes   Share `json:"seedBytes,omitempty"`
	// PinnedBytes and Pins are files that claims keep in the node's store. A percentage is of artifacts.maxSize. Default 100% and 50%, 8192
	// and 1024.
	PinnedBytes Share `json:"pinnedBytes,omitempty"`
	Pins        Count `json:"pins,omitempty"`
	// Unpacking is how many images are fetched and unpacked at once, each of which takes up to 64 MiB. Default 4 and 2.
	Unpacking Count `json:"unpacking,omitempty"`
}

// Share is what all claims of a node and those of one namespace may hold: quantities, or percentages of what there is.
type Share struct {
	Node      string `json:"node,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Count is a share that is counted.
type Count struct {
	Node      int64 `json:"node,omitempty"`
	Namespace int64 `json:"namespace,omitempty"`
}

func (b Budget) withDefaults() Budget {
	for _, q := range []*resource.Quantity{&b.MaxWritableLimit, &b.MaxSizeLimit} {
		if q.IsZero() {
			*q = resource.MustParse("16Gi")
		}
	}
	if b.MaxSeedEntries == 0 {
		b.MaxSeedEntries = 8192
	}
	b.Memory = b.Memory.or("50%", "25%")
	b.SeedBytes = b.SeedBytes.or("64Mi", "16Mi")
	b.PinnedBytes = b.PinnedBytes.or("100%", "50%")
	b.SeedEntries = b.SeedEntries.or(131072, 32768)
	b.Pins = b.Pins.or(8192, 1024)
	b.Unpacking = b.Unpacking.or(4, 2)
	return b
}

func (s Share) or(node, namespace string) Share {
	if s.Node == "" {
		s.Node = node
	}
	if s.Namespace == "" {
		s.Namespace = namespace
	}
	return s
}

func (c Count) or(node, namespace int64) Count {
	if c.Node == 0 {
		c.Node = node
	}
	if c.Namespace == 0 {
		c.Namespace = namespace
	}
	return c
}

func (b *Budget) shares() map[string]Share {
	return map[string]Share{"memory": b.Memory, "seedBytes": b.SeedBytes, "pinnedBytes": b.PinnedBytes}
}

func (b *Budget) counts() map[string]Count {
	return map[string]Count{"seedEntries": b.SeedEntries, "pins": b.Pins, "unpacking": b.Unpacking}
}

func (b *Budget) validate() (errs []error) {
	for name, q := range map[string]resource.Quantity{"maxWritableLimit": b.MaxWritableLimit, "maxSizeLimit": b.MaxSizeLimit} {
		if q.Sign() <= 0 {
			errs = append(errs, fmt.Errorf("budget.%s: must be above 0, is %s", name, q.String()))
		}
	}
	if b.MaxSeedEntries < 0 {
		errs = append(errs, fmt.Errorf("budget.maxSeedEntries: must not be negative, is %d", b.MaxSeedEntries))
	}
	shares, counts := b.shares(), b.counts()
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		for part, text := range map[string]string{"node": shares[name].Node, "namespace": shares[name].Namespace} {
			if _, err := amount(text, 0); err != nil || strings.HasSuffix(text, "%") && name == "seedBytes" {
				errs = append(errs, fmt.Errorf("budget.%s.%s: must be a quantity%s, is %q", name, part, orPercentage(name), text))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if c := counts[name]; c.Node < 0 || c.Namespace < 0 {
			errs = append(errs, fmt.Errorf("budget.%s: must not be negative, is %d and %d", name, c.Node, c.Namespace))
		}
	}
	return errs
}

func orPercentage(name string) string {
	if name == "seedBytes" {
		return ""
	}
	return " or a percentage such as 25%"
}

// amount returns how much a quantity or a percentage of a whole is.
func amount(text string, whole int64) (int64, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseInt(percent, 10, 64)
		if err != nil || n < 1 || n > 100 {
			return 0, fmt.Errorf("%q is no percentage from 1%% to 100%%", text)
		}
		return whole / 100 * n, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	if q.Sign() <= 0 {
		return 0, fmt.Errorf("%s is not above 0", text)
	}
	return q.Value(), nil
}

// By default the kernel has 100,000 mounts for a node (fs.mount-max).
const mountsOfNode, mountsOfNamespace = 40_000, 10_000

// Limits returns the limits for claims on a machine with this much memory and a store of this size. The configuration is valid.
func (b *Budget) Limits(memory, store int64) budget.Limits {
	of := func(s Share, whole int64) (out budget.Limit) {
		out.Node, _ = amount(s.Node, whole)
		out.Namespace, _ = amount(s.Namespace, whole)
		return out
	}
	return budget.Limits{
		budget.Memory: of(b.Memory, memory), budget.SeedBytes: of(b.SeedBytes, 0), budget.PinnedBytes: of(b.PinnedBytes, store),
		budget.SeedEntries: b.SeedEntries.Limit(), budget.Pins: b.Pins.Limit(),
		budget.Mounts: {Node: mountsOfNode, Namespace: mountsOfNamespace},
	}
}

// Limit returns the count as a limit.
func (c Count) Limit() budget.Limit { return budget.Limit{Node: c.Node, Namespace: c.Namespace} }
