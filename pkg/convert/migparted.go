// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// PolicyOptions are what files of mig-parted and of NVIDIA's device plugin do not say.
type PolicyOptions struct {
	// Config is the configuration that holds; empty: the only one.
	Config string
	// Name is the policy's; empty: mig- or shares- and the configuration's.
	Name string
	// NodeSelector are labels of the nodes, KEY=VALUE; none: all nodes.
	NodeSelector []string
	// Priority is the policy's.
	Priority int32
}

// migPartedKey is the key of the file in a ConfigMap of NVIDIA's GPU operator.
const migPartedKey = "config.yaml"

// MigParted makes a PartitionPolicy of a configuration file of NVIDIA's mig-parted, or of a ConfigMap that has one. The policy has the file
// as it is. The name of the input is for errors.
func MigParted(in []byte, name string, o PolicyOptions) (Result, error) {
	text, err := migPartedText(in)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	document, err := migparted.Parse([]byte(text))
	if err != nil {
		var faults []error
		for _, fault := range unjoin(err) {
			faults = append(faults, fmt.Errorf("%s: %w", name, fault))
		}
		return Result{}, errors.Join(faults...)
	}
	if o.Config == "" {
		if len(document.Configs) > 1 {
			return Result{}, fmt.Errorf("%s: say which configuration holds: %s", name, strings.Join(document.Names(), ", "))
		}
		o.Config = document.Names()[0]
	}
	p, err := migPartedPolicy(text, o)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	yaml, err := renderObject(p)
	if err != nil {
		return Result{}, err
	}
	return Result{YAML: yaml, Notes: migPartedNotes(document.Configs[o.Config], o)}, nil
}

// migPartedText is the file itself.
func migPartedText(in []byte) (string, error) {
	if len(in) > maxInput {
		return "", fmt.Errorf("%d bytes, expected at most %d", len(in), maxInput)
	}
	n, err := parse(in)
	if err != nil {
		return "", fmt.Errorf("expected YAML: %s", oneLine(err))
	}
	if value(n, "kind") != "ConfigMap" {
		return string(in), nil
	}
	data := child(n, "data")
	text := value(data, migPartedKey)
	if text == "" {
		return "", fmt.Errorf("ConfigMap %s: expected data.%q with a configuration of mig-parted", value(child(n, "metadata"), "name"),
			migPartedKey)
	}
	return text, nil
}

func migPartedPolicy(text string, o PolicyOptions) (*v1alpha1.PartitionPolicy, error) {
	return newPolicy(legalName("mig-"+strings.TrimPrefix(o.Config, "mig-")), o, v1alpha1.PartitionDevices{
		NVIDIA: &v1alpha1.NVIDIAPartition{MIG: v1alpha1.MIGPartition{
			Mode: v1alpha1.MIGParted, MigParted: &v1alpha1.MigPartedConfig{Config: o.Config, Document: text},
		}},
	})
}

// newPolicy makes a policy for devices, and checks it. The options may have another name.
func newPolicy(name string, o PolicyOptions, devices v1alpha1.PartitionDevices) (*v1alpha1.PartitionPolicy, error) {
	p := &v1alpha1.PartitionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPartitionPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(o.Name, name)},
		Spec:       v1alpha1.PartitionPolicySpec{Priority: o.Priority, Devices: devices},
	}
	if faults := validation.IsDNS1123Subdomain(p.Name); len(faults) > 0 {
		return nil, fmt.Errorf("name %.80q of the policy: %s: give another with --name", p.Name, faults[0])
	}
	for _, label := range o.NodeSelector {
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("label %.80q of nodes: expected KEY=VALUE", label)
		}
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{}}
		}
		p.Spec.NodeSelector.MatchLabels[key] = value
	}
	var r policy.Resolver
	return p, r.Check(&p.Spec, field.NewPath("spec")).ToAggregate()
}

// forAllNodes is the note about a policy without labels of nodes.
const forAllNodes = "the policy is for all nodes: --node-selector KEY=VALUE says for which"

// migPartedNotes say what the other program must leave alone.
func migPartedNotes(entries []migparted.Entry, o PolicyOptions) []string {
	notes := []string{fmt.Sprintf("the policy leaves nodes alone that have the label %s: stop mig-manager there and remove the label",
		policy.LabelMIGManager)}
	if len(o.NodeSelector) == 0 {
		notes = append(notes, forAllNodes)
	}
	if slices.ContainsFunc(entries, func(e migparted.Entry) bool { return !e.All }) {
		notes = append(notes, "the configuration names GPUs by number: a node's NVIDIA GPUs are counted in the order of their PCI addresses")
	}
	return notes
}
