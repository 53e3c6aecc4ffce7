// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition/nodepolicy"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

const slicesHelp = `
Prints the Node and the ResourceSlices that a machine would have in a cluster, without the machine: for the template of an autoscaler, and
for fettle plan.

The machine is a file that fettle machine record wrote on one like it. The devices are those that the plugin would publish there with the
configuration of --config and the PartitionPolicies of --policy, while no claim has any of them and all are well. Of NVIDIA's GPUs the
plugin publishes more where it asks NVIDIA's library: --nvml-report is a file with the answer, which fettle-nvml prints.

The Node is that of --node-template with the taints that the policies want. Its labels decide which policies and entries of the
configuration are for it. Without a template it has the name of the machine's file, and no resources.

The API server makes up the names of slices: those that are printed are others. What is not published, and why, is on stderr.`

const slicesExamples = `
fettle slices --machine 8xh100.txtar
fettle slices --machine 8xh100.txtar --policy policies.yaml --node-template node.yaml -o json
fettle slices --machine 8xh100.txtar --node-template node.yaml | fettle plan -f - -f classes.yaml -f pod.yaml`

// slicesFlags are those of slices.
type slicesFlags struct {
	gateFlags
	machine, template, config, report string
	policies, noExecute               list
}

func slicesOfMachine(flags *arguments) action {
	f := slicesFlags{}
	flags.StringVar(&f.machine, "machine", "", "machine `file`, as fettle machine record writes it")
	flags.Var(&f.policies, "policy", "`file` or directory with PartitionPolicies; may be repeated")
	flags.StringVar(&f.template, "node-template", "", "`file` with the Node as it is without Fettle")
	flags.StringVar(&f.config, "config", "", "the driver's configuration `file`, for its host devices, FPGA regions and foreign devices")
	flags.StringVar(&f.report, "nvml-report", "",
		"`file` with what fettle-nvml prints on such a machine (default: NVIDIA's library is not asked)")
	flags.Var(&f.noExecute, "no-execute-key", "`key` of a taint with the effect NoExecute that Fettle may put on nodes; may be repeated")
	flags.where("no-execute-key", unless(isLabelKey))
	f.declare(flags)
	format := flags.formatOf("yaml", "json")
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		if f.machine == "" {
			return flags.misused(errors.New("want --machine FILE"))
		}
		if _, err := f.givenGates(); err != nil {
			return flags.misused(err)
		}
		list, problems, err := f.make(ctx)
		if err != nil {
			return fmt.Errorf("slices: %w", err)
		}
		for _, p := range problems {
			if _, err := fmt.Fprintln(stderr, p); err != nil {
				return err
			}
		}
		return show(*format, list, stdout, nil)
	}
}

// make returns the Node and the slices as a List, and what people should know of them.
func (f *slicesFlags) make(ctx context.Context) (list *metav1.List, problems []string, err error) {
	set, problems, err := f.set()
	if err != nil {
		return nil, nil, err
	}
	node, err := f.node()
	if err != nil {
		return nil, nil, err
	}
	policies, err := f.readPolicies()
	if err != nil {
		return nil, nil, err
	}
	found, err := f.find(ctx, set, node, policies)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range found.Problems {
		problems = append(problems, fmt.Sprintf("%s: %s: %s", p.Subject, p.Reason, p.Message))
	}
	if err := f.taint(node, policies, found.Accelerators); err != nil {
		return nil, nil, err
	}
	list = &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	list.Items = []runtime.RawExtension{{Object: &node.object}}
	for _, slice := range publication.Objects(node.Name, found.Pools(node.Name)) {
		problems = append(problems, set.DropSlice(slice)...)
		list.Items = append(list.Items, runtime.RawExtension{Object: slice})
	}
	return list, problems, nil
}

// find looks at the machine, which it writes into a directory for that.
func (f *slicesFlags) find(
	ctx context.Context, set gates.Set, node *templateNode, policies []v1alpha1.PartitionPolicy,
) (found publication.Found, err error) {
	file, err := nodeconfig.Load(f.config)
	if err != nil {
		return found, err
	}
	dir, err := os.MkdirTemp("", "fettle-machine-")
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree, err := machineTree(f.machine, dir)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	m := publication.Machine{
		Tree: tree, File: &file, Capacity: unknownCapacity, Usable: cdi.Check, Labels: node.Labels, Policies: policies,
	}
	if m.NVML, err = f.nvml(); err != nil {
		return found, err
	}
	m.Counters, m.Kept = set.Kept()
	return m.Find(ctx), nil
}

// machineTree writes a machine into a directory, with plain files for device nodes, which any user may make.
func machineTree(file, dir string) (*sysfs.Tree, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the machine: %w", err)
	}
	machine, err := sim.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", file, err)
	}
	if _, err := machine.Expand(dir, sim.Options{PlainNodes: true}); err != nil {
		return nil, fmt.Errorf("machine %s: %w", file, err)
	}
	nodes := map[string]sysfs.Number{}
	for name, n := range machine.Nodes() {
		nodes[name] = sysfs.Number{Major: int64(n.Major), Minor: int64(n.Minor)}
	}
	return sysfs.OpenWithNodes(dir, nodes)
}

// errNoCapacity is why a directory of a machine file has no capacity.
var errNoCapacity = errors.New("a machine file does not say how large a file system is: the device is printed without its capacity")

func unknownCapacity(string) (int64, error) { return 0, errNoCapacity }

// nvml returns what answers in the place of NVIDIA's library. Nil: nothing does.
func (f *slicesFlags) nvml() (func(context.Context) (nvml.Report, error), error) {
	if f.report == "" {
		return nil, nil //nolint:nilnil // nothing answers
	}
	file, err := os.Open(f.report)
	if err != nil {
		return nil, err
	}
	report, err := nvml.Decode(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", f.report, err)
	}
	return func(context.Context) (nvml.Report, error) { return report, nil }, nil
}

// templateNode is a Node, as it is read and as the file has it.
type templateNode struct {
	corev1.Node

	object unstructured.Unstructured
}

// node reads the template, or makes a Node with the name of the machine's file.
func (f *slicesFlags) node() (*templateNode, error) {
	if f.template == "" {
		node := &templateNode{}
		node.Name = strings.TrimSuffix(filepath.Base(f.machine), filepath.Ext(f.machine))
		if err := isName(node.Name); err != nil {
			return nil, fmt.Errorf("the Node cannot be called %q as the machine's file: %w; give it a name with --node-template", node.Name, err)
		}
		node.object.SetAPIVersion("v1")
		node.object.SetKind("Node")
		node.object.SetName(node.Name)
		return node, nil
	}
	var nodes []*templateNode
	r := manifestReader{seen: map[string]string{}, takers: map[string]func(raw []byte) error{"v1 Node": func(raw []byte) error {
		node := &templateNode{}
		nodes = append(nodes, node)
		return errors.Join(json.Unmarshal(raw, &node.Node), node.object.UnmarshalJSON(raw))
	}}}
	if err := r.files(f.template); err != nil {
		return nil, fmt.Errorf("--node-template: %w", err)
	}
	if len(nodes) != 1 {
		return nil, fmt.Errorf("--node-template %s: got %s, want one", f.template, counted(len(nodes), "Node"))
	}
	if err := isName(nodes[0].Name); err != nil {
		return nil, fmt.Errorf("--node-template %s: Node %q: %w", f.template, nodes[0].Name, err)
	}
	return nodes[0], nil
}

// readPolicies reads the PartitionPolicies, and wants at least one of each file.
func (f *slicesFlags) readPolicies() (policies []v1alpha1.PartitionPolicy, err error) {
	r := manifestReader{seen: map[string]string{}}
	r.takers = map[string]func(raw []byte) error{
		v1alpha1.GroupVersion.String() + " " + v1alpha1.KindPartitionPolicy: func(raw []byte) error {
			var p v1alpha1.PartitionPolicy
			err := errors.Join(strict(raw, &p), p.Spec.Validate(field.NewPath("spec")).ToAggregate())
			policies = append(policies, p)
			return err
		},
	}
	for _, name := range f.policies {
		before := len(policies)
		if err := r.files(name); err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		if len(policies) == before {
			return nil, fmt.Errorf("--policy %s: has no PartitionPolicy", name)
		}
	}
	return policies, nil
}

// taint puts the taints of policies on the Node, as the controller does.
func (f *slicesFlags) taint(node *templateNode, policies []v1alpha1.PartitionPolicy, accelerators bool) error {
	of := nodepolicy.Node{
		Labels: node.Labels, Taints: node.Spec.Taints, Noted: node.Annotations[v1alpha1.TaintsAnnotation], HasDevices: accelerators,
	}
	taints, noted := nodepolicy.Decide(of, nodepolicy.Wanted(of, policies, nodepolicy.NoExecuteKeys(f.noExecute)))
	if noted == of.Noted && equality.Semantic.DeepEqual(taints, of.Taints) {
		return nil
	}
	annotations := node.object.GetAnnotations()
	delete(annotations, v1alpha1.TaintsAnnotation)
	if noted != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1alpha1.TaintsAnnotation] = noted
	}
	node.object.SetAnnotations(annotations)
	var listed []any
	for i := range taints {
		taint, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&taints[i])
		if err != nil {
			return err
		}
		listed = append(listed, taint)
	}
	return unstructured.SetNestedSlice(node.object.Object, listed, "spec", "taints")
}
