// SPDX-License-Identifier: Apache-2.0

// Package foreign finds the devices of a node that its configuration leaves to another driver or device plugin.
package foreign

import (
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/selector"
)

// FieldName is the key of the plugin's configuration file that has the entries.
const FieldName = "foreignDevices"

// Entry leaves devices to another driver. It names them by any of the three ways, and has the devices of all three together. Parts of a GPU
// and regions of an FPGA's card belong to whoever has the rest.
type Entry struct {
	// Owner is who gives the devices to pods, such as "NVIDIA device plugin". People read it, programs do not.
	Owner string `json:"owner"`
	// NodeSelector selects the nodes on which the entry counts. Nil: on all.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// PCIAddresses are as the kernel writes them: 0000:1b:00.0.
	PCIAddresses []string `json:"pciAddresses,omitempty"`
	// UUIDs are values of the attribute uuid, of whole GPUs.
	UUIDs []string `json:"uuids,omitempty"`
	// Selector is CEL on the attributes that Fettle publishes, as in a DeviceClass.
	Selector string `json:"selector,omitempty"`
}

// The limits of a list of entries.
const (
	maxEntries  = 64
	maxNames    = 64
	maxOwner    = 128
	maxSelector = 10 << 10
)

var (
	ownerForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9 ._/:()-]*[A-Za-z0-9.)])?$`)
	uuidForm  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)
)

// Validate returns what is wrong with the entries, each fault with its field.
func Validate(entries []Entry) (errs []error) {
	if len(entries) > maxEntries {
		errs = append(errs, fmt.Errorf("%s: has %d entries, at most %d", FieldName, len(entries), maxEntries))
	}
	var checker selector.Checker
	for i := range entries {
		for _, fault := range entries[i].faults(&checker) {
			errs = append(errs, fmt.Errorf("%s.%s", field(i), fault))
		}
	}
	return errs
}

// field is how messages name an entry.
func field(i int) string { return fmt.Sprintf("%s[%d]", FieldName, i) }

func (e *Entry) faults(checker *selector.Checker) (faults []string) {
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if !ownerForm.MatchString(e.Owner) || len(e.Owner) > maxOwner {
		add(`owner: is %q, want who gives the devices to pods, such as "NVIDIA device plugin": up to %d letters, digits, blanks and ._/:()-`,
			e.Owner, maxOwner)
	}
	if _, err := metav1.LabelSelectorAsSelector(e.NodeSelector); err != nil {
		add("nodeSelector: %v", err)
	}
	if len(e.PCIAddresses)+len(e.UUIDs) == 0 && e.Selector == "" {
		add("selector: the entry names no device: want pciAddresses, uuids or selector")
	}
	if len(e.PCIAddresses) > maxNames || len(e.UUIDs) > maxNames {
		add("pciAddresses, uuids: at most %d of each", maxNames)
	}
	for i, address := range e.PCIAddresses {
		if _, err := pci.Parse(address); err != nil {
			add("pciAddresses[%d]: %v", i, err)
		}
	}
	for i, uuid := range e.UUIDs {
		if !uuidForm.MatchString(uuid) {
			add("uuids[%d]: is %q, want the UUID of a GPU as fettle devices -o yaml shows it, such as "+
				"GPU-5a1f0c2e-7d43-4b8e-9c11-0f2d6a7b8c90", i, uuid)
		}
	}
	if len(e.Selector) > maxSelector {
		add("selector: has %d bytes, at most %d", len(e.Selector), maxSelector)
	} else if e.Selector != "" {
		for _, fault := range checker.Check(e.Selector, v1alpha1.DriverName) {
			add("selector: %s", fault)
		}
	}
	return faults
}

// onNode says whether an entry counts on a node with these labels, which are nil while they are not known: then it does.
func (e *Entry) onNode(set map[string]string) bool {
	if e.NodeSelector == nil || set == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(e.NodeSelector)
	return err != nil || s.Matches(labels.Set(set))
}

// NeedsLabels says whether what the entries select depends on the node's labels.
func NeedsLabels(entries []Entry) bool {
	for i := range entries {
		if entries[i].NodeSelector != nil {
			return true
		}
	}
	return false
}

// nodesOf is for which nodes an entry is, as a message says it. Empty: for all.
func (e *Entry) nodesOf() string {
	if e.NodeSelector == nil {
		return ""
	}
	return strings.TrimSpace(metav1.FormatLabelSelector(e.NodeSelector))
}
