// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/convert/sources"
	"github.com/fettle-dev/fettle/pkg/partition/amdprofiles"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// PolicyOptions are what files of mig-parted, of NVIDIA's device plugin and of AMD's config manager do not say.
type PolicyOptions struct {
	// Config is the configuration that holds; empty: the only one.
	Config string
	// Name is the policy's; empty: mig-, shares- or amd- and the configuration's.
	Name string
	// GPUs are the PCI addresses of a node's AMD GPUs, in the order of their numbers.
	GPUs []string
	// NodeSelector are labels of the nodes, KEY=VALUE; none: all nodes.
	NodeSelector []string
	// Priority is the policy's.
	Priority int32
}

// MigParted makes a PartitionPolicy of a configuration file of NVIDIA's mig-parted, or of a ConfigMap that has one. The policy has the file
// as it is. The name of the input is for errors.
func MigParted(in []byte, name string, o PolicyOptions) (Result, error) {
	file, notes, err := o.file(in, sources.MigParted, func(text string) ([]string, error) {
		document, err := migparted.Parse([]byte(text))
		if err != nil {
			return nil, err
		}
		return slices.Sorted(maps.Keys(document.Configs)), nil
	})
	if err != nil {
		return Result{}, inFile(name, err)
	}
	text := file.Text
	document, err := migparted.Parse([]byte(text))
	if err != nil {
		return Result{}, inFile(name, err)
	}
	if err := o.choose(document.Names()); err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	p, err := migPartedPolicy(text, o)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	yaml, err := renderObject(p)
	if err != nil {
		return Result{}, err
	}
	return Result{YAML: yaml, Notes: slices.Concat(migPartedNotes(document.Configs[o.Config], o), notes)}, nil
}

// inFile puts the name of the input before each fault.
func inFile(name string, err error) error {
	var faults []error
	for _, fault := range unjoin(err) {
		faults = append(faults, fmt.Errorf("%s: %w", name, fault))
	}
	return errors.Join(faults...)
}

// choose sets the configuration that holds, if the file has one alone.
func (o *PolicyOptions) choose(names []string) error {
	if o.Config == "" && len(names) > 1 {
		return fmt.Errorf("say which configuration holds: %s", strings.Join(names, ", "))
	}
	if o.Config == "" {
		o.Config = names[0]
	}
	return nil
}

// file finds the file of a kind in the input. names are those of the configurations in a file: of several files, the one is meant that has
// the configuration which holds. Notes say what the input has beside the file.
func (o *PolicyOptions) file(in []byte, kind sources.Kind, names func(text string) ([]string, error)) (sources.File, []string, error) {
	found, err := findSources(in)
	if err != nil {
		return sources.File{}, nil, err
	}
	files := found.Of(kind)
	if len(files) == 0 {
		return sources.File{}, nil, found.None(kind)
	}
	chosen, of := files, []string{}
	if len(files) > 1 {
		chosen = nil
	}
	for _, file := range files {
		if len(files) == 1 {
			break
		}
		configs, err := names(file.Text)
		if err != nil {
			return sources.File{}, nil, fmt.Errorf("%s: %w", file.At, err)
		}
		of = append(of, fmt.Sprintf("%s has %s", file.At, strings.Join(configs, ", ")))
		if slices.Contains(configs, o.Config) {
			chosen = append(chosen, file)
		}
	}
	switch {
	case len(chosen) == 1:
	case o.Config == "":
		return sources.File{}, nil, fmt.Errorf("say which configuration holds: %s", strings.Join(of, "; "))
	default:
		return sources.File{}, nil, fmt.Errorf("configuration %q: %d of the files have it, expected one: %s", o.Config, len(chosen),
			strings.Join(of, "; "))
	}
	return chosen[0], besides(found, chosen[0]), nil
}

// findSources looks through an input that is not too long.
func findSources(in []byte) (*sources.Found, error) {
	if len(in) > maxInput {
		return nil, fmt.Errorf("%d bytes, expected at most %d", len(in), maxInput)
	}
	return sources.Find(in)
}

// besides says what the input has beside the file that is converted.
func besides(found *sources.Found, chosen sources.File) (notes []string) {
	if chosen.Name != "" {
		notes = append(notes, "the configuration is that of "+chosen.At)
	}
	for _, file := range found.Files {
		if file.Kind == chosen.Kind && file.At != chosen.At {
			notes = append(notes, fmt.Sprintf("not converted: %s: --config says which configuration holds", file.At))
		}
	}
	notes = append(notes, found.Others(chosen.Kind)...)
	for _, rest := range found.Rest {
		notes = append(notes, "not converted: "+rest)
	}
	return notes
}

// policyFiles says for which kinds of input an object is that has files about GPUs, or names them.
func policyFiles(n *node) []string {
	text, err := render(n)
	if err != nil {
		return nil
	}
	found, err := sources.Find(text)
	if err != nil {
		return nil
	}
	return found.Others("")
}

// AMDProfiles makes PartitionPolicies of a configuration file of AMD's device config manager, or of a ConfigMap that has one: one for each
// compute mode of the profile that holds. The name of the input is for errors.
func AMDProfiles(in []byte, name string, o PolicyOptions) (Result, error) {
	file, notes, err := o.file(in, sources.AMDProfiles, func(text string) ([]string, error) {
		document, err := amdprofiles.Parse([]byte(text))
		if err != nil {
			return nil, err
		}
		return document.Names(), nil
	})
	if err != nil {
		return Result{}, inFile(name, err)
	}
	document, err := amdprofiles.Parse([]byte(file.Text))
	if err != nil {
		return Result{}, inFile(name, err)
	}
	if err := o.choose(document.Names()); err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	profile, ok := document.Profiles[o.Config]
	if !ok {
		return Result{}, fmt.Errorf("%s: profile %q: the file has %s", name, o.Config, strings.Join(document.Names(), ", "))
	}
	if err := o.checkGPUs(&profile); err != nil {
		return Result{}, fmt.Errorf("%s: profile %s: %w", name, o.Config, err)
	}
	result := Result{Notes: slices.Concat(amdNotes(document, &profile, o), notes)}
	for i, part := range profile.Parts {
		p, err := newPolicy(legalName(numbered("amd-"+o.Config, i, len(profile.Parts))), o, v1alpha1.PartitionDevices{
			DeviceSelector: selectedAddresses(part.GPUs, &profile, o),
			AMD:            &v1alpha1.AMDPartition{Compute: part.Compute, Memory: profile.Memory},
		})
		if err != nil {
			return Result{}, fmt.Errorf("%s: profile %s: profiles[%d]: %w", name, o.Config, i, err)
		}
		yaml, err := renderObject(p)
		if err != nil {
			return Result{}, err
		}
		result.add(yaml)
	}
	return result, nil
}

// numbered is the name of one of several policies that a configuration becomes, or of the only one.
func numbered(name string, i, of int) string {
	if of > 1 {
		return fmt.Sprintf("%s-%d", name, i+1)
	}
	return name
}

// add adds a document.
func (r *Result) add(yaml []byte) {
	if len(r.YAML) > 0 {
		r.YAML = append(r.YAML, "---\n"...)
	}
	r.YAML = append(r.YAML, yaml...)
}

// checkGPUs wants the addresses of all GPUs of a node where a profile does not treat all of them alike.
func (o *PolicyOptions) checkGPUs(p *amdprofiles.Profile) error {
	total := p.Total()
	switch {
	case len(o.GPUs) == 0 && (len(p.Parts) > 1 || len(p.Skipped) > 0):
		return fmt.Errorf("it treats the %d GPUs of a node by their numbers, and a policy selects them by address: give --gpu ADDRESS for "+
			"each, in the order in which amd-smi list numbers them", total)
	case len(o.GPUs) > 0 && len(o.GPUs) != total:
		return fmt.Errorf("%d addresses of GPUs: want those of all %d that the profile is for", len(o.GPUs), total)
	case len(o.Name) > 0 && len(p.Parts) > 1:
		return fmt.Errorf("name %.80q: it becomes %d policies: leave --name out", o.Name, len(p.Parts))
	}
	return nil
}

// selectedAddresses selects GPUs by their numbers, nil for a profile of all GPUs of a node.
func selectedAddresses(gpus []int, p *amdprofiles.Profile, o PolicyOptions) *v1alpha1.PartitionDeviceSelector {
	if len(gpus) == p.Total() {
		return nil
	}
	var quoted []string
	for _, i := range gpus {
		quoted = append(quoted, strconv.Quote(o.GPUs[i]))
	}
	return &v1alpha1.PartitionDeviceSelector{
		CEL: fmt.Sprintf(`device.attributes["fettle.dev"].pciAddress in [%s]`, strings.Join(quoted, ", ")),
	}
}

// amdNotes say what is another way here, and what the other program must leave alone.
func amdNotes(d *amdprofiles.Document, p *amdprofiles.Profile, o PolicyOptions) []string {
	notes := []string{
		fmt.Sprintf("the memory mode %s is one setting for all GPUs of a node, and Fettle does not change it: while no pod uses one, set it on "+
			"each node with amd-smi set --memory-partition %[1]s", p.Memory),
		"the whole GPU is published beside its partitions, and the compute mode follows the claims",
		"stop AMD's config manager on these nodes and remove their label dcm.amd.com/gpu-config-profile",
	}
	if len(p.Skipped) > 0 {
		notes[0] += fmt.Sprintf("; the GPUs that the profile skips (skippedGPUs %s) get it too", strings.Trim(fmt.Sprint(p.Skipped), "[]"))
	}
	for _, part := range p.Parts {
		if len(part.GPUs) == p.Total() {
			notes = append(notes, fmt.Sprintf("numGPUsAssigned %d is left out: the policy is for all GPUs of its nodes, however many these have",
				len(part.GPUs)))
		}
	}
	for _, other := range d.Names() {
		if other != o.Config {
			notes = append(notes, fmt.Sprintf("not converted: profile %s: --config says which holds", other))
		}
	}
	if len(d.Services) > 0 {
		notes = append(notes, fmt.Sprintf("Fettle stops no units of systemd (%s): a program that has a GPU open keeps its mode from changing",
			strings.Join(d.Services, ", ")))
	}
	if len(o.NodeSelector) == 0 {
		notes = append(notes, forAllNodes)
	}
	return notes
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
