// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The sources.
const (
	// SourceXid are critical errors that NVIDIA's driver reports.
	SourceXid = "xid"
	// SourceNVML is the state that NVIDIA's library tells.
	SourceNVML = "nvml"
	// SourceRAS are the error counters of AMD's driver.
	SourceRAS = "ras"
	// SourceAER are the error counters of PCI Express.
	SourceAER = "aer"
	// SourceFPGA is what an FPGA's management says of itself.
	SourceFPGA = "fpga"
	// SourceMPS is the supervisor of NVIDIA's MPS.
	SourceMPS = "mps"
	// SourceRival is who else on the node hands out the device.
	SourceRival = "rival"
)

// Sources are all that a rule may name.
func Sources() []string {
	return []string{SourceAER, GoneSource, SourceFPGA, SourceMPS, SourceNVML, SourceRAS, SourceRival, SourceXid}
}

// Rule says what the faults of a source with some codes mean.
type Rule struct {
	Source string `json:"source"`
	// Code is one code or a pattern as of path.Match: "79", "nonfatal.*". Empty matches all.
	Code     string   `json:"code,omitempty"`
	Severity Severity `json:"severity"`
	// RecoverAfter forgets an event or an increase that did not come again for this long. 0: never.
	RecoverAfter metav1.Duration `json:"recoverAfter,omitzero"`
	// Message is what people read: what it means, and what to do.
	Message string `json:"message,omitempty"`
}

func (r Rule) matches(source, code string) bool {
	if r.Source != source {
		return false
	}
	if r.Code == "" {
		return true
	}
	ok, err := path.Match(r.Code, code)
	return ok && err == nil
}

// Validate checks a rule that someone wrote.
func (r Rule) Validate() error {
	var faults []error
	if !slices.Contains(Sources(), r.Source) {
		faults = append(faults, fmt.Errorf("source: %q, want one of %s", r.Source, strings.Join(Sources(), ", ")))
	}
	if _, err := path.Match(r.Code, ""); err != nil {
		faults = append(faults, fmt.Errorf("code: %q: %w", r.Code, err))
	}
	if !slices.Contains([]Severity{Ignored, Degraded, Fatal}, r.Severity) {
		faults = append(faults, fmt.Errorf("severity: %q, want %s, %s or %s", r.Severity, Fatal, Degraded, Ignored))
	}
	if r.RecoverAfter.Duration < 0 {
		faults = append(faults, fmt.Errorf("recoverAfter: %s is negative", r.RecoverAfter.Duration))
	}
	return errors.Join(faults...)
}

// Table is a list of rules, of which the first that matches counts.
type Table []Rule

// Find returns the rule for a fault. What no rule names is degraded: nobody knows that it is harmless.
func (t Table) Find(source, code string) Rule {
	for _, r := range t {
		if r.matches(source, code) {
			return r
		}
	}
	return Rule{Source: source, Code: code, Severity: Degraded}
}
