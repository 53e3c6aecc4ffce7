// SPDX-License-Identifier: Apache-2.0

// Package cdi turns container edits into Container Device Interface specs and keeps the runtime's spec directory.
//
// kubelet hands the same CDI device names to every restart of a container, so what a name means must not change while a claim
// holds it; and each change of a file makes the runtime read the whole directory again. Hence the files here are immutable and
// few: one for each distinct set of edits, its device named by a keyed hash of the content, and kept while a record names it. A
// claim that needs nothing of its own is answered with such names and writes no file. The key is a secret of the node, see Names.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/fettle-dev/fettle/pkg/container"
)

// CommonKind is the CDI kind of edits that any claim may share.
const CommonKind = "fettle.dev/common"

// Spec is one immutable spec file.
type Spec struct {
	// Device is the qualified name to hand to kubelet: fettle.dev/common=nHASH. A claim's own spec has several, see OfClaim.
	Device string
	// File is the file's base name.
	File string
	// Content is the JSON to write.
	Content []byte
	// Made are the names of parts that steps of the claim make, by the name of the device that needs them. They are not in Content yet.
	Made map[string][]string
}

// Common makes the shared spec for a set of edits. On one node, equal edits give equal bytes and so the same name.
func (n *Names) Common(edits container.Edits) (Spec, error) {
	device, err := deviceOf(edits)
	if err != nil {
		return Spec{}, err
	}
	content, err := json.Marshal(device.ContainerEdits)
	if err != nil {
		return Spec{}, fmt.Errorf("encode container edits: %w", err)
	}
	device.Name = n.name(CommonKind, "", content)
	return common(device)
}

// CommonAs makes the shared spec for a set of edits under a name that a record has. Another version of Fettle made that name, or another
// secret of this node.
func CommonAs(qualified string, edits container.Edits) (Spec, error) {
	device, err := deviceOf(edits)
	if err != nil {
		return Spec{}, err
	}
	name, ok := strings.CutPrefix(qualified, CommonKind+"=")
	if !ok {
		return Spec{}, fmt.Errorf("the record's CDI device is not of kind %s", CommonKind)
	}
	device.Name = name
	return common(device)
}

// Check refuses edits of which no spec can be made.
func Check(edits container.Edits) error {
	_, err := CommonAs(CommonKind+"="+secretPrefix, edits)
	return err
}

func common(device specs.Device) (Spec, error) {
	spec, err := render(&specs.Spec{Kind: CommonKind, Devices: []specs.Device{device}})
	spec.Device, spec.File = CommonKind+"="+device.Name, fileName(CommonKind, device.Name)
	return spec, err
}

// deviceOf makes the device of a spec, without its name.
func deviceOf(edits container.Edits) (specs.Device, error) {
	if err := validate(edits); err != nil {
		return specs.Device{}, err
	}
	return specs.Device{ContainerEdits: translate(edits)}, nil
}

// validate refuses what the runtime's library accepts while a spec is made and not when it is read, or understands otherwise: it
// reads JSON as YAML, which has no control characters, and encoding/json replaces bytes that are not UTF-8.
func validate(edits container.Edits) error {
	if edits.Empty() {
		return errors.New("no container edits: a CDI spec cannot give a container nothing")
	}
	var faults []error
	check := func(what, path string) {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, container.Unprintable) {
			faults = append(faults, fmt.Errorf("%s %q: want an absolute path of printable characters", what, path))
		}
	}
	for _, n := range edits.Nodes {
		check("device node", n.Path)
	}
	for _, m := range edits.Mounts {
		check("host directory", m.HostPath)
		check("mount path", m.ContainerPath)
	}
	for _, h := range edits.Hooks {
		check("hook", h.Path)
		if i := slices.IndexFunc(h.Args, func(arg string) bool { return strings.ContainsFunc(arg, container.Unprintable) }); i >= 0 {
			faults = append(faults, fmt.Errorf("argument %d of hook %s, %q: want printable characters", i, h.Path, h.Args[i]))
		}
	}
	for _, e := range edits.Env {
		if err := container.CheckVariable(e); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// render validates a spec with the runtime's own library and writes it at the lowest version that its fields need, since an older
// runtime refuses a newer version whatever the content.
func render(raw *specs.Spec) (Spec, error) {
	version, err := specs.MinimumRequiredVersion(raw)
	if err != nil {
		return Spec{}, fmt.Errorf("version of a CDI spec of kind %s: %w", raw.Kind, err)
	}
	raw.Version = version
	for i := range raw.Devices {
		d := &raw.Devices[i]
		edits := cdiapi.ContainerEdits{ContainerEdits: &d.ContainerEdits}
		if err := edits.Validate(); err != nil {
			return Spec{}, fmt.Errorf("CDI spec of kind %s: %w", raw.Kind, err)
		}
		if _, _, _, err := parser.ParseQualifiedName(raw.Kind + "=" + d.Name); err != nil {
			return Spec{}, fmt.Errorf("CDI device name: %w", err)
		}
	}
	content, err := json.Marshal(raw)
	if err != nil {
		return Spec{}, fmt.Errorf("encode a CDI spec of kind %s: %w", raw.Kind, err)
	}
	return Spec{Content: append(content, '\n')}, nil
}

func fileName(kind, name string) string {
	return strings.ReplaceAll(kind, "/", "-") + "-" + name + fileSuffix
}

// translate keeps the order of the edits, which discovery sorts.
func translate(edits container.Edits) specs.ContainerEdits {
	var out specs.ContainerEdits
	for _, n := range edits.Nodes {
		out.DeviceNodes = append(out.DeviceNodes, &specs.DeviceNode{
			Path: n.Path, Type: "c", Major: n.Major, Minor: n.Minor, Permissions: n.Permissions, FileMode: mode(n.Permissions),
		})
	}
	for _, m := range edits.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		bind, propagation := "rbind", "rprivate"
		if m.NonRecursive {
			bind = "bind"
		}
		if m.HostToContainer {
			propagation = "rslave"
		}
		out.Mounts = append(out.Mounts, &specs.Mount{
			HostPath: m.HostPath, ContainerPath: m.ContainerPath, Options: []string{access, "nosuid", "nodev", bind, propagation},
		})
	}
	out.Env = append(out.Env, edits.Env...)
	for _, h := range edits.Hooks {
		out.Hooks = append(out.Hooks, &specs.Hook{HookName: cdiapi.CreateContainerHook, Path: h.Path, Args: h.Args})
	}
	return out
}

// mode lets any user of the container open the node: what guards a device is that only its claim's containers have the node and
// the device cgroup's leave, and a pod that does not run as root must be able to use what it was given.
func mode(permissions string) *os.FileMode {
	m := os.FileMode(0o666)
	if !strings.Contains(permissions, "w") {
		m = 0o444
	}
	return &m
}
