// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
)

const (
	presetSpecClaim = "preset.spec.claim"
	// presetMounts is how many libraries a GPU driver's preset gives.
	presetMounts = 20
)

// measurePresets writes the size of the CDI file of a claim whose presets' libraries are in a file that claims share.
func (b *bench) measurePresets() error {
	b.say("presets")
	own, err := presetSpec()
	if err != nil {
		return err
	}
	return b.report.against(targetClaimSpec, presetSpecClaim, &point{Machine: "presets"}, 1, float64(len(own.Content)))
}

// presetSpec is the file of one claim with a directory of its own, beside the one that claims with the same presets share.
func presetSpec() (cdi.Spec, error) {
	names := cdi.NewNames([cdi.SecretSize]byte{})
	shared, err := names.Common(libraryEdits())
	if err != nil {
		return cdi.Spec{}, err
	}
	directory := container.Edits{Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/scratch"}}}
	own, _, err := names.OfClaim("00000000-0000-4000-8000-000000000000", []cdi.Own{{Edits: directory}})
	if err == nil && len(shared.Content) <= len(own.Content) {
		err = fmt.Errorf("the libraries of a preset are not in the shared file of %d bytes", len(shared.Content))
	}
	return own, err
}

// libraryEdits are of the size that a GPU driver's preset has.
func libraryEdits() container.Edits {
	const dir = "/usr/local/fettle/lib"
	edits := container.Edits{Env: []string{"CUDA_CACHE_MAXSIZE=4294967296"}}
	links := []string{"fettle-hook", "links"}
	for i := range presetMounts {
		name := fmt.Sprintf("libnvidia-part%02d.so", i)
		edits.Mounts = append(edits.Mounts, container.Mount{
			HostPath:      "/usr/lib/x86_64-linux-gnu/" + name + ".550.54.15",
			ContainerPath: dir + "/" + name + ".550.54.15", ReadOnly: true, NonRecursive: true,
		})
		links = append(links, "--link", name+".550.54.15::"+dir+"/"+name+".1")
	}
	for _, args := range [][]string{links, {"fettle-hook", "ldconfig", "--dir", dir}} {
		edits.Hooks = append(edits.Hooks, container.Hook{Path: "/var/lib/fettle/hooks/fettle-hook", Args: args})
	}
	return edits
}
