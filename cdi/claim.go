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
	var made map[string][]string
	for i, own := range all {
		device, err := n.ownDevice(uid, own)
		if err != nil {
			return Spec{}, nil, err
		}
		names[i] = ClaimKind + "=" + device.Name
		if seen[device.Name] {
			continue
		}
		seen[device.Name] = true
		raw.Devices = append(raw.Devices, device)
		if len(own.Edits.Made) > 0 {
			if made == nil {
				made = map[string][]string{}
			}
			made[device.Name] = own.Edits.Made
		}
	}
	spec, err := render(raw)
	spec.File, spec.Made = claimFilePrefix+uid+fileSuffix, made
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
	// The name says what the edits mean, before anybody knows the numbers of what is made.
	for _, name := range own.Edits.Made {
		content = append(append(content, 0), name...)
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
	// Made are the names of parts that earlier steps of the claim make, by the name of the CDI device which needs them.
	Made map[string][]string `json:"made,omitempty"`
}

// Step is the step that writes a claim's own file.
func Step(spec Spec) (step.Step, error) {
	return step.New(StepKind, spec.File, stepParams{File: spec.File, Content: string(spec.Content), Made: spec.Made})
}

// Made returns what a container needs of a part that a step made, by the part's name.
type Made func(name string) (container.Edits, error)

// Kind does and undoes the step. It asks made whenever it writes a file: a part that was made again has other numbers.
func (d *Dir) Kind(made Made) step.Kind {
	return step.Kind{
		Apply: step.Do(func(_ context.Context, p *stepParams) error {
			spec, err := p.spec()
			if err == nil && len(p.Made) > 0 {
				spec, err = p.complete(spec, made)
			}
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

// complete adds what containers need of the parts that were made.
func (p *stepParams) complete(spec Spec, made Made) (Spec, error) {
	raw := &specs.Spec{}
	if err := json.Unmarshal(spec.Content, raw); err != nil {
		return Spec{}, fmt.Errorf("decode the CDI spec %s of the step: %w", p.File, err)
	}
	for i := range raw.Devices {
		device := &raw.Devices[i]
		for _, name := range p.Made[device.Name] {
			edits, err := made(name)
			if err == nil {
				err = validate(edits)
			}
			if err != nil {
				return Spec{}, fmt.Errorf("what a container needs of %s: %w", name, err)
			}
			more := translate(edits)
			device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes, more.DeviceNodes...)
			device.ContainerEdits.Mounts = append(device.ContainerEdits.Mounts, more.Mounts...)
			device.ContainerEdits.Env = append(device.ContainerEdits.Env, more.Env...)
			device.ContainerEdits.Hooks = append(device.ContainerEdits.Hooks, more.Hooks...)
		}
	}
	out, err := render(raw)
	out.Device, out.File = spec.Device, spec.File
	return out, err
}
