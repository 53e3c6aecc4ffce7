// SPDX-License-Identifier: Apache-2.0

// Package record keeps what this node has promised to each claim: one small file a claim, written before any effect and
// removed after the last effect is undone. All truth is on disk, since during a rolling update two plugins serve the same
// claims; a Store only remembers where the files are.
//
// The types are the package's own and never embed a Kubernetes type, so that a library upgrade cannot change what an old file
// means.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/step"
)

// FormatVersion is the version that this package writes. A file of another version is refused, never guessed at.
const FormatVersion = 1

// Record is what one claim holds on this node.
type Record struct {
	// Version is the file's format, FormatVersion when written by this package.
	Version int `json:"version"`
	// Namespace, Name and UID identify the ResourceClaim. The UID alone names the file.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// BootID is /proc/sys/kernel/random/boot_id at Prepare. Effects and device numbers do not outlive it.
	BootID string `json:"bootID"`
	// Devices are the allocated devices in the order of the allocation.
	Devices []Device `json:"devices"`
	// Steps are the effects on the machine, in the order they are applied. They are undone in reverse.
	Steps []step.Step `json:"steps,omitempty"`
}

// Device is one allocated device and the edits its container was promised.
type Device struct {
	// Request is the allocation's request name, "main/sub" for an alternative of firstAvailable.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	// AdminAccess marks a look: it holds nothing and has no effect (KEP-5018).
	AdminAccess bool `json:"adminAccess,omitempty"`
	// CDIDevice is the qualified CDI device name that kubelet was told. What it means must not change while the record lives.
	CDIDevice string       `json:"cdiDevice"`
	Edits     device.Edits `json:"edits"`
}

// errForeignVersion is returned for a file written by a version of Fettle that this one does not know.
var errForeignVersion = errors.New("unknown format version")

// encode is the file's content.
func encode(r *Record) ([]byte, error) {
	r.Version = FormatVersion
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	return append(data, '\n'), nil
}

// decode refuses what encode cannot have written for the claim uid. A field that it does not know is of a newer build, and may be
// an effect that only that build can undo.
func decode(data []byte, uid string) (*Record, error) {
	var format struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &format); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if format.Version != FormatVersion {
		return nil, fmt.Errorf("%w %d, this build writes %d", errForeignVersion, format.Version, FormatVersion)
	}
	var r Record
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&r); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if r.UID != uid {
		return nil, fmt.Errorf("holds claim %q, its name says %q", r.UID, uid)
	}
	return &r, nil
}
