// SPDX-License-Identifier: Apache-2.0

// Package shares reads how pods ask other projects for shares of GPUs: by the resources and annotations of HAMi (its
// pkg/device/nvidia/device.go), by the resources of Volcano's vGPU plugin, and by the annotations of KAI-Scheduler (its
// pkg/common/constants).
package shares

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Resources are those with which a project's pods ask for shares. All but the count are for each GPU.
type Resources struct {
	// Count is the number of GPUs.
	Count string
	// memory is in MiB, percent of the GPU's memory, cores percent of its time, and priority 0 or 1: which of two programs stops first.
	memory, percent, cores, priority string
}

// Projects returns the resources of HAMi and of Volcano, with their default names.
func Projects() []Resources {
	return []Resources{
		{"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"},
		{"volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores", ""},
	}
}

// The annotations of pods for KAI-Scheduler.
const (
	KAIFraction  = "gpu-fraction"
	KAIMemory    = "gpu-memory" // MiB
	KAIDevices   = "gpu-fraction-num-devices"
	KAIContainer = "gpu-fraction-container-name"
)

// Share is what a container asks of each of its GPUs.
type Share struct {
	// Memory is that of the share. Nil: all of it.
	Memory *resource.Quantity
	// From is the resource or annotation that says the memory.
	From string
	// Lost are sentences about what a claim cannot ask for.
	Lost []string
}

// Has reports whether a resource says how large a share is.
func (r Resources) Has(name string) bool {
	return name != "" && slices.Contains([]string{r.memory, r.percent, r.cores, r.priority}, name)
}

// Names lists the resources.
func (r Resources) Names() []string {
	return slices.DeleteFunc([]string{r.Count, r.memory, r.percent, r.cores, r.priority}, func(name string) bool { return name == "" })
}

// IsSize reports whether a resource of any project says how large a share is.
func IsSize(name string) bool {
	return slices.ContainsFunc(Projects(), func(r Resources) bool { return r.Has(name) })
}

// IsKAI reports whether an annotation says how large a share is.
func IsKAI(name string) bool {
	return name == KAIFraction || name == KAIMemory || name == KAIDevices || name == KAIContainer
}

// Read reads the sizes that a container asks for. It fails for a share whose memory cannot be told: a percentage needs the memory that the
// GPUs have, which is nil if nobody said it.
func (r Resources) Read(asked map[string]string, total *resource.Quantity) (Share, error) {
	s := Share{From: r.memory}
	var errs [2]error
	s.Memory, errs[0] = mebibytes("resource "+r.memory, asked[r.memory])
	switch text := asked[r.percent]; {
	case text == "":
	case s.Memory != nil:
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: %s is left out: %s says the memory", r.percent, text, r.memory))
	case text == "100":
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: 100 is left out: it is the whole GPU", r.percent))
	default:
		s.From = r.percent
		s.Memory, errs[1] = part("resource "+r.percent, text, 100, total, r.memory)
	}
	if text := asked[r.memory]; text != "" && s.Memory == nil {
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: %s is left out: it is the whole GPU", r.memory, text))
	}
	if text := asked[r.cores]; text != "" {
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: %s is left out: a share has no limit of the GPU's time", r.cores, text))
	}
	if text := asked[r.priority]; text != "" {
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: %s is left out: shares have no priorities among each other", r.priority, text))
	}
	return s, errors.Join(errs[:]...)
}

// KAI is what a pod asks for by annotations.
type KAI struct {
	Share
	Devices int
	// Container is the name of the one that has the share. Empty: the first.
	Container string
}

// FromKAI reads the annotations of a pod. A pod that has none of a share has no devices. It fails for one whose memory cannot be told: a
// fraction needs the memory that the GPUs have, which is nil if nobody said it.
func FromKAI(annotations map[string]string, total *resource.Quantity) (KAI, error) {
	fraction, memory := annotations[KAIFraction], annotations[KAIMemory]
	if fraction == "" && memory == "" {
		return KAI{}, nil
	}
	k := KAI{Share: Share{From: KAIMemory}, Devices: 1, Container: annotations[KAIContainer]}
	if strings.Trim(memory, "0123456789") != "" {
		return KAI{}, fmt.Errorf("annotation %s: %q: expected a whole number of MiB", KAIMemory, memory)
	}
	var err error
	if k.Memory, err = mebibytes("annotation "+KAIMemory, memory); err != nil {
		return KAI{}, err
	}
	switch {
	case fraction == "":
	case k.Memory != nil:
		k.Lost = append(k.Lost, fmt.Sprintf("annotation %s: %s is left out: %s says the memory", KAIFraction, fraction, KAIMemory))
	case fraction == "1" || fraction == "1.0":
		k.Lost = append(k.Lost, fmt.Sprintf("annotation %s: %s is the whole GPU", KAIFraction, fraction))
	default:
		k.From = KAIFraction
		if k.Memory, err = part("annotation "+KAIFraction, fraction, 1, total, "the annotation "+KAIMemory); err != nil {
			return KAI{}, err
		}
	}
	if text := annotations[KAIDevices]; text != "" {
		if k.Devices, err = strconv.Atoi(text); err != nil || k.Devices < 1 {
			return KAI{}, fmt.Errorf("annotation %s: %q: expected a whole number of GPUs", KAIDevices, text)
		}
	}
	return k, nil
}

// part is the memory of a part of a GPU, rounded up to MiB. whole is what all of it is written as.
func part(what, text string, whole int64, total *resource.Quantity, instead string) (*resource.Quantity, error) {
	if total == nil {
		return nil, fmt.Errorf("%s: %q: a claim asks for an amount of memory: write %s with MiB, or give --gpu-memory, what the GPUs have",
			what, text, instead)
	}
	share, ok := new(big.Rat).SetString(text)
	if !ok || share.Sign() <= 0 || share.Cmp(big.NewRat(whole, 1)) > 0 {
		return nil, fmt.Errorf("%s: %q: expected a part of %d", what, text, whole)
	}
	const mebibyte = 1 << 20
	share.Mul(share, big.NewRat(total.Value(), whole*mebibyte))
	n := new(big.Int).Div(new(big.Int).Add(share.Num(), new(big.Int).Sub(share.Denom(), big.NewInt(1))), share.Denom())
	return resource.NewQuantity(n.Int64()*mebibyte, resource.BinarySI), nil
}

// mebibytes reads an amount of memory. It is nil where nothing or 0 is asked for.
func mebibytes(what, text string) (*resource.Quantity, error) {
	const most = 1 << 30 // a pebibyte
	q, err := resource.ParseQuantity(cmp.Or(text, "0"))
	n, whole := q.AsInt64()
	if err != nil || !whole || n < 0 || n > most {
		return nil, fmt.Errorf("%s: %q: expected a whole number of MiB", what, text)
	}
	var amount *resource.Quantity
	if n > 0 {
		amount = resource.NewQuantity(n<<20, resource.BinarySI)
	}
	return amount, nil
}
