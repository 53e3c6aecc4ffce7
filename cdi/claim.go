// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
)

// ClaimKind is the CDI kind of edits that one claim alone has.
const ClaimKind = "fettle.dev/claim"

// Own are edits that one claim alone has.
type Own struct {
	Edits container.Edits
	// Name is the qualified name that the claim's record already has for these edits. It is empty for edits without a name.
	Name string
}

// OfClaim makes the one file of a claim whose devices need edits that no device has of itself, and the qualified name for each set
// of edits. A name says what it means: another claim, or the same claim with other edits, has another.
func (n *Names) OfClaim(uid string, all []Own) (Spec, []string, error) {
	if uid == "" || strings.ContainsAny(uid, "/\x00") {
		return Spec{}, nil, fmt.Errorf("claim UID %q cannot name a CDI spec: expected the UID of a ResourceClaim", uid)
	}
	if len(all) == 0 {
		return Spec{}, nil, errors.New("no container edits: the runtime refuses a CDI spec without devices")
	}
	raw := &specs.Spec{Kind: ClaimKind}
	names := make([]string, len(all))
	seen := map[string]bool{}
	for i, own := range all {
		device, err := n.ownDevice(uid, own)
		if err != nil {
			return Spec{}, nil, err
		}
		names[i] = ClaimKind + "=" + device.Name
		if !seen[device.Name] {
			raw.Devices = append(raw.Devices, device)
		}
		seen[device.Name] = true
	}
	spec, err := render(raw)
	spec.File = claimFilePrefix + uid + fileSuffix
	return spec, names, err
}

// ownDevice makes the device of one set of edits of a claim.
func (n *Names) ownDevice(uid string, own Own) (specs.Device, error) {
	device, err := deviceOf(own.Edits)
	if err != nil {
		return specs.Device{}, err
	}
	if name, ok := strings.CutPrefix(own.Name, ClaimKind+"="); ok {
		device.Name = name
		return device, nil
	}
	content, err := json.Marshal(device.ContainerEdits)
	if err != nil {
		return specs.Device{}, fmt.Errorf("encode container edits: %w", err)
	}
	device.Name = n.name(ClaimKind, uid, content)
	return device, nil
}

// StepKind is the step that writes a claim's own specs.
const StepKind = "cdi.write"

// stepParams are the step's parameters. The content is kept as it was, so that a later version of Fettle restores it to the byte.
type stepParams struct {
	File    string `json:"file"`
	Content string `json:"content"`
}

// Step is the step that writes a claim's own file.
func Step(spec Spec) (step.Step, error) {
	return step.New(StepKind, spec.File, stepParams{File: spec.File, Content: string(spec.Content)})
}

// Kind does and undoes the step.
func (d *Dir) Kind() step.Kind {
	return step.Kind{
		Apply: step.Do(func(_ context.Context, p *stepParams) error {
			spec, err := p.spec()
			if err != nil {
				return err
			}
			return d.Ensure(spec)
		}),
		Undo: step.Do(func(_ context.Context, p *stepParams) error {
			spec, err := p.spec()
			if err != nil {
				return err
			}
			return disk.RemoveIfThere(d.fs, filepath.Join(d.path, spec.File))
		}),
	}
}

// spec refuses parameters that name any file but a claim's.
func (p *stepParams) spec() (Spec, error) {
	if _, ok := ClaimOf(p.File); !ok || strings.ContainsAny(p.File, "/\x00") {
		return Spec{}, fmt.Errorf("file %q is not the CDI spec of a claim", p.File)
	}
	return Spec{Device: p.File, File: p.File, Content: []byte(p.Content)}, nil
}
