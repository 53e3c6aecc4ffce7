// SPDX-License-Identifier: Apache-2.0

package partition

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// Short writes for people what a device takes of a card, or what is left of the card: "slices 4-7, 60 SMs, 39.5 GiB", "3 of 8 partitions",
// "all", "nothing". It knows devices by their counters alone. Counters that end in a number, of which the card has one each, are written as
// ranges. Engines are named only where nothing else is.
func Short(amount, card map[string]resourceapi.Counter) string {
	s := shortForm{runs: map[string][]int{}}
	all := len(card) > 0
	for _, name := range slices.Sorted(maps.Keys(card)) {
		of := card[name].Value
		n := amount[name].Value
		all = all && n.Cmp(of) >= 0
		s.add(name, n.Value(), of.Value())
	}
	if all {
		return "all"
	}
	return s.text()
}

// shortForm collects the parts of a short form.
type shortForm struct {
	// runs are the numbers of the counters that share a name, such as those of memory-slice-0 and memory-slice-1.
	runs map[string][]int
	// cores, sizes, others and engines are written, in this order.
	cores, sizes, others, engines []string
}

func (s *shortForm) add(name string, n, of int64) {
	if n <= 0 {
		return
	}
	at := strings.LastIndexByte(name, '-')
	number, err := strconv.Atoi(name[at+1:])
	switch {
	case at > 0 && err == nil && of == 1:
		s.runs[name[:at]] = append(s.runs[name[:at]], number)
	case name == counterMultiprocessors:
		s.cores = append(s.cores, fmt.Sprintf("%d SMs", n))
	case name == counterMemory:
		s.sizes = append(s.sizes, sizeText(n))
	case isEngine(name):
		s.engines = append(s.engines, share(name, n, of))
	default:
		s.others = append(s.others, share(name, n, of))
	}
}

// isEngine says whether a counter is of the small engines of an NVIDIA GPU, of which each instance has some.
func isEngine(name string) bool {
	return slices.Contains([]string{counterCopyEngines, counterDecoders, counterEncoders, counterJPEGEngines, counterOFAEngines}, name)
}

// share writes "3 of 8 virtual functions".
func share(name string, n, of int64) string {
	return fmt.Sprintf("%d of %d %s", n, of, strings.ReplaceAll(name, "-", " "))
}

func (s *shortForm) text() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.runs)) {
		parts = append(parts, ranges(name, s.runs[name]))
	}
	parts = slices.Concat(parts, s.cores, s.sizes, s.others)
	if len(parts) == 0 {
		parts = s.engines
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}

// ranges writes numbers of memory-slice as "slices 0-2,6".
func ranges(name string, numbers []int) string {
	slices.Sort(numbers)
	var runs []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		run := strconv.Itoa(numbers[i])
		if last > i {
			run += "-" + strconv.Itoa(numbers[last])
		}
		runs, i = append(runs, run), last+1
	}
	noun := name[strings.LastIndexByte(name, '-')+1:]
	if len(numbers) > 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(runs, ",")
}

// sizeText writes bytes in GiB, with one digit after the point where that is not 0, or in MiB.
func sizeText(n int64) string {
	const mib, gib = 1 << 20, 1 << 30
	if n < gib {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/gib, 'f', 1, 64), ".0") + " GiB"
}
