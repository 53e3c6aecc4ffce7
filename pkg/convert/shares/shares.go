// SPDX-License-Identifier: Apache-2.0

// Package shares reads how pods ask other projects for shares of GPUs: by the resources of HAMi (its pkg/device/nvidia/device.go) and the
// annotations of KAI-Scheduler (its pkg/common/constants).
package shares

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The resources that HAMi's pods have beside nvidia.com/gpu, for each GPU.
const (
	hamiMemory   = "nvidia.com/gpumem"            // MiB
	hamiPercent  = "nvidia.com/gpumem-percentage" // of the GPU's memory
	hamiCores    = "nvidia.com/gpucores"          // percent of the GPU's time
	hamiPriority = "nvidia.com/priority"          // 0 or 1: which of two programs stops first
)

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
	// Lost are sentences about what a claim cannot ask for.
	Lost []string
}

// IsHAMi reports whether a resource says how large a share is.
func IsHAMi(name string) bool {
	return name == hamiMemory || name == hamiPercent || name == hamiCores || name == hamiPriority
}

// IsKAI reports whether an annotation says how large a share is.
func IsKAI(name string) bool {
	return name == KAIFraction || name == KAIMemory || name == KAIDevices || name == KAIContainer
}

// FromHAMi reads the resources of a container. It fails for a share whose memory cannot be told.
func FromHAMi(asked map[string]string) (Share, error) {
	var s Share
	var errs [2]error
	s.Memory, errs[0] = mebibytes("resource "+hamiMemory, asked[hamiMemory])
	if text := asked[hamiPercent]; text != "" && text != "100" && s.Memory == nil {
		errs[1] = fmt.Errorf("resource %s: %q: a claim asks for an amount of memory: write %s with MiB", hamiPercent, text, hamiMemory)
	}
	if text := asked[hamiCores]; text != "" {
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: %s is left out: a share has no limit of the GPU's time", hamiCores, text))
	}
	if text := asked[hamiPriority]; text != "" {
		s.Lost = append(s.Lost, fmt.Sprintf("resource %s: %s is left out: shares have no priorities among each other", hamiPriority, text))
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

// FromKAI reads the annotations of a pod. A pod that has none of a share has no devices. It fails for one whose memory cannot be told.
func FromKAI(annotations map[string]string) (KAI, error) {
	fraction, memory := annotations[KAIFraction], annotations[KAIMemory]
	if fraction == "" && memory == "" {
		return KAI{}, nil
	}
	if fraction != "" && fraction != "1" && fraction != "1.0" {
		return KAI{}, fmt.Errorf("annotation %s: %q: a claim asks for an amount of memory: write the annotation %s with MiB",
			KAIFraction, fraction, KAIMemory)
	}
	k := KAI{Devices: 1, Container: annotations[KAIContainer]}
	var err error
	if k.Memory, err = mebibytes("annotation "+KAIMemory, memory); err != nil {
		return KAI{}, err
	}
	if text := annotations[KAIDevices]; text != "" {
		if k.Devices, err = strconv.Atoi(text); err != nil || k.Devices < 1 {
			return KAI{}, fmt.Errorf("annotation %s: %q: expected a whole number of GPUs", KAIDevices, text)
		}
	}
	return k, nil
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
