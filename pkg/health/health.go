// SPDX-License-Identifier: Apache-2.0

// Package health keeps what is known against the devices of a node: one ledger, on disk, that every source of bad news writes into
// and everything that shows health reads from.
//
// A source says one of three things of a device. An event happened (an Xid). A level is on or off for as long as the source says so
// (a failed row remapping). A counter stands somewhere; only its increase since the ledger's baseline counts, and a counter that
// went back begins a new baseline. A table says what each of them means: fatal, degraded, or ignored. Beside them there is
// quarantine, which no table softens: the engine's own verdict about a device that a failed step left in an unknown state.
//
// What a device recovers by: a level by its source; counters and events by a reset that a source noticed, by the driver being bound
// anew, by a reboot, or after the time that the table gives them; quarantine by Clear or EndStale; all of it by Recover.
package health

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Severity is what a fault means for its device.
type Severity string

// The severities, from harmless to grave.
const (
	// Ignored: the fault says something about a program, or nothing that anyone must act on.
	Ignored Severity = "ignored"
	// Degraded: the device still serves whoever has it, and nobody else should get it.
	Degraded Severity = "degraded"
	// Fatal: the device does not work.
	Fatal Severity = "fatal"
)

// State is a device's health in one word.
type State string

// The states, from good to bad.
const (
	Healthy     State = "Healthy"
	Worn        State = "Degraded"
	Unhealthy   State = "Unhealthy"
	Quarantined State = "Quarantined"
)

// WorseThan says whether a device in this state is worse off than one in the other. No state is none that is known against a device.
func (s State) WorseThan(other State) bool {
	states := []State{"", Healthy, Worn, Unhealthy, Quarantined}
	return slices.Index(states, s) > slices.Index(states, other)
}

// Status is what the ledger says of one device that is not healthy.
type Status struct {
	Kind  device.Kind
	State State
	// Reason is the gravest fault in CamelCase, fit for a label value.
	Reason string
	// Message says what is wrong and what to do next. Tenants read it.
	Message string
	// Claim is the claim that the message is about, empty if it is about none. It is for administrators.
	Claim string
	Since time.Time
	// Gone: the device is not on the node any more, and a claim holds it.
	Gone bool
}

// Detail is the message with the claim that it is about, for administrators.
func (s *Status) Detail() string {
	if s.Claim == "" {
		return s.Message
	}
	return s.Message + " (" + s.Claim + ")"
}

// Cause is why a device is in quarantine. Claim names the claim of the owner: only administrators may read it.
type Cause struct {
	Reason string
	// Owner is the UID of the claim that Reason is about. Several claims may share a device, and the end of one says nothing of the others.
	Owner   string
	Message string
	Claim   string
}

// The kinds of readings.
const (
	Counter ReadingKind = iota
	Level
)

// ReadingKind tells how a reading's value is understood.
type ReadingKind int

// Reading is one thing that a source read of a device.
type Reading struct {
	Code string
	Kind ReadingKind
	// Value is where a counter stands; a level is on unless it is 0.
	Value uint64
	// Message adds to what the table says of the code. It must not change while the fault lasts.
	Message string
}

// Report is what one source read of one device at one time. What it does not mention stays as it was.
type Report struct {
	Device, Source string
	Readings       []Reading
	// Covers are sources of events that end when this source's counters go back, or its demand for a recovery does.
	Covers []string
}

// Event is something that happened to a device.
type Event struct {
	Device, Source, Code string
	Message              string
}

// RecoveryPrefix begins the codes of levels by which a source demands a recovery. When the demand ends, the recovery was done.
const RecoveryPrefix = "recovery-"

// GoneSource and GoneCode are the level of a device that left the node while a claim holds it.
const (
	GoneSource = "discovery"
	GoneCode   = "gone"
)

// RivalPlugin and RivalDriver are the levels of a device that somebody else on the node hands out, too.
const (
	RivalPlugin = "device-plugin"
	RivalDriver = "dra-driver"
)

// MPSDaemon is the level of a device whose claim's MPS daemon ended or hangs.
const MPSDaemon = "daemon"

// maxReason is the most that a label value holds.
const maxReason = 63

// Reason is the name of a fault in CamelCase: "xid", "79" is "Xid79"; "nvml", "remap-failure" is "NvmlRemapFailure".
func Reason(source, code string) string {
	var b strings.Builder
	upper := true
	for _, r := range source + "-" + code {
		switch {
		case r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r):
			upper = true
			continue
		case upper:
			r, upper = unicode.ToUpper(r), false
		}
		if b.Len() < maxReason {
			b.WriteRune(r)
		}
	}
	return b.String()
}
