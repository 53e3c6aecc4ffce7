// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// The reasons of the state Driver with the engine KMM, beside those of the engine DaemonSet.
const (
	// ReasonKMMMissing: KMM is not installed.
	ReasonKMMMissing = "KMMMissing"
	// ReasonNoKernelMapping: no image is named for the node's kernel.
	ReasonNoKernelMapping = "NoKernelMapping"
)

// KMM is what the operator Kernel Module Management has of a stack's Module on a node.
type KMM struct {
	// Label is the value of the node's label that says which version the node is to have; empty: it has none.
	Label string
	// Wanted and Loaded are what the node's NodeModulesConfig has in its spec and in its status. Nil: nothing.
	Wanted, Loaded *KMMModule
}

// KMMModule is a module in a NodeModulesConfig.
type KMMModule struct {
	Version, KernelVersion, Image string
	// Config is all that says how it is loaded, as JSON. Two that are loaded in the same way have the same.
	Config string
	// BootID is of the boot in which it was loaded. The spec has none.
	BootID string
}

// KMMLabel is the node's label by which KMM knows the version of a Module that a node is to have.
func KMMLabel(namespace, module string) string { return KMMLabelPrefix(namespace) + module }

// ofModule matches the labels by which KMM knows the versions of the Modules of stacks, in any namespace. A group has the Module's name.
var ofModule = regexp.MustCompile(
	`^kmm\.node\.kubernetes\.io/version-module\.[^.]+\.(driver-[0-9a-f]{` + strconv.Itoa(moduleDigits) + `})$`,
)

// moduleName matches the names of the Modules of stacks.
var moduleName = regexp.MustCompile(`^driver-[0-9a-f]{` + strconv.Itoa(moduleDigits) + `}$`)

// LabelledModule returns the name of the stack's Module whose version a label of a node says, whatever namespace of drivers the label was
// written for, and "" for any other label.
func LabelledModule(label string) string {
	if m := ofModule.FindStringSubmatch(label); m != nil {
		return m[1]
	}
	return ""
}

// KMMLabelPrefix begins the labels of all Modules of a namespace.
func KMMLabelPrefix(namespace string) string {
	return "kmm.node.kubernetes.io/version-module." + namespace + "."
}

// kernelOf is a release as KMM has it.
func kernelOf(release string) string { return strings.TrimSuffix(release, "+") }

// KMMImage returns the image for a kernel, with its variables, as KMM finds it.
func KMMImage(d *v1alpha1.KMMDriver, release string) (image string, found bool) {
	release = kernelOf(release)
	for i := range d.KernelMappings {
		m := &d.KernelMappings[i]
		if m.Literal != "" && kernelOf(m.Literal) == release {
			return m.Image, true
		}
		if m.Regexp == "" {
			continue
		}
		if form, err := regexp.Compile(m.Regexp); err == nil && form.MatchString(release) {
			return m.Image, true
		}
	}
	return "", false
}

// KMMVersion returns the version that a node's label is to have. One that is another than the driver's stays while KMM has the module of
// that one loaded: to change it is to unload a driver that pods may use.
func KMMVersion(d *v1alpha1.KMMDriver, k KMM) string {
	if k.Wanted == nil && k.Loaded == nil {
		return d.Version
	}
	return k.Label
}

// KMMGroupVersion is that of KMM's objects.
func KMMGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "kmm.sigs.x-k8s.io", Version: "v1beta1"}
}

// ForModule says what is known of a node's driver, and which version the node's label is to have; empty: none.
func ForModule(d *v1alpha1.KMMDriver, n *Node, k KMM) (v Verdict, label string) {
	if !WantsDriver(n, k.Label != "" || k.Loaded != nil) {
		return NoDriverWanted(n), ""
	}
	if n.Before != "" && k.Label == "" && k.Wanted == nil && k.Loaded == nil {
		return oneDriver(n), ""
	}
	label = KMMVersion(d, k)
	if k.Label == "" {
		k.Label = label
	}
	return ByKMM(d, n, k), label
}

// OtherDrivers are those that other stacks or engines have brought to nodes, by node. A node gets no other before they are gone: of two
// drivers with one module the second to be loaded does nothing, and the first to be unloaded takes it from both.
type OtherDrivers map[string]string

// AddModules notes the Modules of stacks, but for the own one, that KMM has loaded on a node since that started.
func (d OtherDrivers) AddModules(o *unstructured.Unstructured, bootID, ownNamespace, ownName string) {
	items, _, err := unstructured.NestedSlice(o.Object, "status", "modules")
	if err != nil {
		return
	}
	for _, item := range items {
		of, _ := item.(map[string]any)
		namespace, _ := of["namespace"].(string)
		name, _ := of["name"].(string)
		if of["bootId"] == bootID && moduleName.MatchString(name) && (namespace != ownNamespace || name != ownName) {
			d[o.GetName()] = "KMM has Module " + namespace + "/" + name + " loaded on the node"
		}
	}
}

// AddPod notes the pod of a driver.
func (d OtherDrivers) AddPod(p *corev1.Pod) {
	if p.Labels[DriverLabel] != "" && p.Spec.NodeName != "" {
		d[p.Spec.NodeName] = "the driver's pod " + p.Name + " is on the node"
	}
}

// oneDriver is for a node that has a driver of another stack or engine yet.
func oneDriver(n *Node) Verdict {
	return unknown(ReasonDriverPending, "waits until the driver before is gone: %s", n.Before)
}

// KMMReport returns what a node's NodeModulesConfig has of a Module.
func KMMReport(o *unstructured.Unstructured, namespace, module string) KMM {
	return KMM{Wanted: nodeModule(o, "spec", namespace, module), Loaded: nodeModule(o, "status", namespace, module)}
}

// nodeModule returns a module of a NodeModulesConfig. Nothing of another form is a report.
func nodeModule(o *unstructured.Unstructured, part, namespace, module string) *KMMModule {
	items, _, err := unstructured.NestedSlice(o.Object, part, "modules")
	if err != nil {
		return nil
	}
	for _, item := range items {
		of, ok := item.(map[string]any)
		if !ok || of["name"] != module || of["namespace"] != namespace {
			continue
		}
		config, _ := of["config"].(map[string]any)
		text := func(from map[string]any, field string) string { value, _ := from[field].(string); return value }
		encoded, err := json.Marshal(config) // sorts the fields
		if err != nil {
			return nil
		}
		return &KMMModule{
			Version: text(of, "version"), KernelVersion: text(config, "kernelVersion"), Image: text(config, "containerImage"),
			BootID: text(of, "bootId"), Config: string(encoded),
		}
	}
	return nil
}

// ByKMM says what is known of a node's driver by what KMM reports. KMM's label that a module is ready is not asked: it outlives a
// restart of the node.
func ByKMM(d *v1alpha1.KMMDriver, n *Node, k KMM) Verdict {
	if n.KernelVersion == "" {
		return unknown(ReasonDriverPending, "kubelet has not reported the node's kernel yet")
	}
	image, found := KMMImage(d, n.KernelVersion)
	switch {
	case !found:
		return failed(ReasonNoKernelMapping, "spec.driver.kmm.kernelMappings has no image for kernel %s: add one, or start the node with "+
			"another kernel", n.KernelVersion)
	case k.Label == "" && k.Loaded != nil:
		return unknown(ReasonDriverPending, "KMM is unloading version %s", k.Loaded.Version)
	case k.Label != d.Version:
		return unknown(ReasonDriverOutdated, "KMM is to have version %s loaded, and %s is wanted", k.Label, d.Version)
	case k.Wanted == nil || k.Wanted.Version != d.Version || kernelOf(k.Wanted.KernelVersion) != kernelOf(n.KernelVersion):
		return unknown(ReasonDriverPending, "KMM has not yet decided to load %s: look at the events of the Module, and whether the image is "+
			"there", image)
	case k.Loaded == nil:
		return unknown(ReasonDriverPending, "KMM has not loaded %s yet: look at its worker's pod for the node", image)
	}
	return kmmLoaded(d, n, k)
}

// kmmLoaded asks whether what KMM has loaded is what it is to load, in this boot, and what the plugin finds since.
func kmmLoaded(d *v1alpha1.KMMDriver, n *Node, k KMM) Verdict {
	switch {
	case k.Loaded.BootID != n.BootID:
		return unknown(ReasonDriverOtherBoot, "KMM has not loaded the module since the node started: look at its worker's pod for the node")
	case k.Loaded.Version != k.Wanted.Version || k.Loaded.KernelVersion != k.Wanted.KernelVersion || k.Loaded.Config != k.Wanted.Config:
		return unknown(ReasonDriverPending, "KMM has loaded version %s for kernel %s in another way than it is to", k.Loaded.Version,
			k.Loaded.KernelVersion)
	case !current(n):
		return notCurrent()
	case d.ModuleVersion != "" && !loaded(n, d.ModuleVersion):
		return otherVersion(n, d.ModuleVersion)
	}
	return passed("KMM has loaded version %s for kernel %s", d.Version, n.KernelVersion)
}
