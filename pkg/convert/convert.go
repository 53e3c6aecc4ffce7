// SPDX-License-Identifier: Apache-2.0

// Package convert rewrites manifests for other drivers and device plugins into ones for Fettle. Pods that name FPGA regions or GPUs in
// resources get a claim instead, and claims for other drivers' GPUs get Fettle's classes, selectors and configurations. PodPresets become
// presets for devices, and caches of kernels that pods mount as volumes caches for claims. It is a function from text to text; no cluster
// and no file is asked.
package convert

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// DefaultClass is the DeviceClass of the requests unless Options say otherwise.
	DefaultClass = "fpga." + v1alpha1.DriverName
	// DefaultGPUClass is that of the GPUs that come with caches of kernels.
	DefaultGPUClass = "gpu." + v1alpha1.DriverName
	// IntelStore is where Intel's plugin looked for bitstreams on the nodes: INTERFACE/ID.gbs, then INTERFACE/ID.aocx.
	IntelStore = "/srv/intel.com/fpga"

	// maxInput is far above what the API server takes in one object.
	maxInput = 16 << 20
)

// Options are what the manifests do not say.
type Options struct {
	// Class is the DeviceClass of the requests; empty: DefaultClass.
	Class string
	// Image is the OCI artifact that all bitstreams are in; empty: they are files in IntelStore.
	Image string
	// Namespace is that of objects that name none; empty: default.
	Namespace string
	// Functions are what mapped resource names mean, the part after the slash.
	Functions map[string]Function
	// Classes are the DeviceClasses that stand for resources of containers and PodPresets, and for other drivers' classes.
	Classes map[string]string
	// ClusterPresets says whether PodPresets become ClusterDevicePresets. Unset: those that mount files of the host do.
	ClusterPresets *bool
	// GPUClass is the DeviceClass of requests for GPUs; empty: DefaultGPUClass, and the vendor's class where a resource says the vendor.
	GPUClass string
	// GPUMemory is what the GPUs have of which pods ask for fractions; nil: nobody said it, and such pods are refused.
	GPUMemory *resource.Quantity
	// KernelCacheVolumes has caches of kernels keep their volumes and pods stay as they are; else pods get claims.
	KernelCacheVolumes bool
}

// Function is what the administrator of Intel's plugin gave a name of its own.
type Function struct {
	// InterfaceID is that of the region.
	InterfaceID string
	// ID is the bitstream that the region is programmed with; empty: the pod's environment says it.
	ID string
}

// ParseFunction reads INTERFACE or INTERFACE/AFU.
func ParseFunction(text string) (Function, error) {
	iface, id, programmed := strings.Cut(text, "/")
	f := Function{}
	var err error
	if f.InterfaceID, err = v1alpha1.CanonicalID(iface); err != nil {
		return Function{}, fmt.Errorf("interface id %.80q: %w", iface, err)
	}
	if !programmed {
		return f, nil
	}
	if f.ID, err = bitstreamID(id); err != nil {
		return Function{}, fmt.Errorf("AFU id %.80q: %w", id, err)
	}
	return f, nil
}

// Result is the converted stream.
type Result struct {
	YAML []byte
	// Notes say what changed its meaning, and what somebody has to do. They are in the order of the input.
	Notes []string
}

// Input is a file. The name is for errors.
type Input struct {
	Name string
	Data []byte
}

// IntelFPGA converts a stream of YAML or JSON documents. Documents that name nothing known come back byte for byte, the others with
// the claim's template before them, and before all the bitstreams that they name. A PodPreset's or an older cache's place has the
// object that it became. The name of the input is for errors; all faults are reported at once, a line each.
func IntelFPGA(in []byte, name string, o Options) (Result, error) {
	return Files([]Input{{name, in}}, name, o)
}

// Files converts the documents of several files like those of one: what one file has counts for the others. The name is that of all.
func Files(files []Input, name string, o Options) (Result, error) {
	c, err := newConversion(o)
	if err != nil {
		return Result{}, err
	}
	documents, err := documentsOf(files)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	for i := range documents {
		c.reserve(documents[i])
	}
	c.caches.place()
	var out [][]byte
	for _, d := range documents {
		converted, err := c.document(d)
		for _, fault := range unjoin(err) {
			c.faults = append(c.faults, fmt.Errorf("%s:%d: %w", d.file, d.line, fault))
		}
		if len(d.before) > 0 && len(converted) > 0 {
			converted[0] = slices.Concat(d.before, converted[0])
		}
		out = append(out, converted...)
	}
	for _, unused := range slices.Sorted(maps.Keys(c.options.Functions)) {
		if !c.used[unused] {
			c.notef("no container asks for the mapped name %s", unused)
		}
	}
	for _, unused := range slices.Sorted(maps.Keys(c.options.Classes)) {
		if !c.used[unused] {
			c.notef("nothing in the input names %s, which --map gives a class", unused)
		}
	}
	bitstreams, err := c.bitstreams.objects()
	if err = errors.Join(errors.Join(c.faults...), err); err != nil {
		return Result{}, err
	}
	c.bitstreams.closingNotes()
	if !c.converted {
		c.notef("%s: nothing to convert", name)
	}
	return Result{YAML: bytes.Join(append(bitstreams, out...), []byte("---\n")), Notes: c.texts}, nil
}

// documentsOf splits files that are not too long.
func documentsOf(files []Input) ([]document, error) {
	var documents []document
	size := 0
	for _, f := range files {
		size += len(f.Data)
		documents = append(documents, split(f)...)
	}
	if size > maxInput {
		return nil, fmt.Errorf("%d bytes, expected at most %d", size, maxInput)
	}
	for i, d := range documents {
		if len(files) > 1 {
			documents[i].place = fmt.Sprintf("%s:%d", d.file, d.line)
		}
	}
	return documents, nil
}

// unjoin gives the errors of an errors.Join, and not those that one further out wraps: what that says would be lost.
func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, one := range several.Unwrap() {
		all = append(all, unjoin(one)...)
	}
	return all
}

// conversion is one run.
type conversion struct {
	*notes
	*meanings
	bitstreams *bitstreams
	caches     *oldCaches
	faults     []error
	// taken are the names of ResourceClaimTemplates, NAMESPACE/NAME.
	taken map[string]bool
	// clusterPresets are the names of ClusterDevicePresets.
	clusterPresets map[string]bool
	// converted says that a document changed.
	converted bool
}

func newConversion(o Options) (*conversion, error) {
	o.Class, o.GPUClass = cmp.Or(o.Class, DefaultClass), cmp.Or(o.GPUClass, DefaultGPUClass)
	o.Namespace = cmp.Or(o.Namespace, "default")
	for _, class := range []string{o.Class, o.GPUClass} {
		if faults := validation.IsDNS1123Subdomain(class); len(faults) > 0 {
			return nil, fmt.Errorf("class %.80q: %s", class, faults[0])
		}
	}
	if faults := validation.IsDNS1123Label(o.Namespace); len(faults) > 0 {
		return nil, fmt.Errorf("namespace %.80q: %s", o.Namespace, faults[0])
	}
	notes := &notes{}
	return &conversion{
		notes: notes, meanings: &meanings{options: o, used: map[string]bool{}, offered: map[string]string{}},
		bitstreams: &bitstreams{notes: notes, options: o, wanted: map[string]*bitstream{}, params: map[string]bool{}},
		caches:     &oldCaches{notes: notes, options: o, byName: map[string]*oldCache{}, claims: map[string]bool{}},
		taken:      map[string]bool{}, clusterPresets: map[string]bool{},
	}, nil
}

// notes say what changed its meaning, and what somebody has to do. Each is there once.
type notes struct{ texts []string }

// notef adds a note.
func (n *notes) notef(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(n.texts, note) {
		n.texts = append(n.texts, note)
	}
}

// notesOf adds sentences about an object or a container.
func (n *notes) notesOf(title string, sentences []string) {
	for _, sentence := range sentences {
		n.notef("%s: %s", title, sentence)
	}
}
