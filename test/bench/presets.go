// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/preset"
)

const (
	presetResolve = "preset.resolve"
	presetRescan  = "preset.rescan"
	// The cases of a rescan: what presets give in one file that claims share, or in each claim's own.
	caseShared = "shared"
	caseInline = "inline"

	presetCount  = 200
	presetClaims = 50
	// rescanClaims have a file each, beside presetMounts libraries.
	rescanClaims = 500
	presetMounts = 20
)

// measurePresets needs no cluster: deciding is pure, and a runtime's rescan is its library's.
func (b *bench) measurePresets(ctx context.Context) error {
	b.say("presets")
	s := samples{}
	for _, in := range presetInputs() {
		conditions := &preset.Conditions{}
		preset.Resolve(ctx, in, conditions) // compiles the CEL, as the first claim after a start does
		for range 5 {
			begin := time.Now()
			preset.Resolve(ctx, in, conditions)
			s.add(presetResolve, time.Since(begin))
		}
	}
	if err := b.report.series(point{Machine: "presets", Held: presetCount}, s); err != nil {
		return err
	}
	common, own, err := presetSpecs(0)
	if err != nil {
		return err
	}
	at := point{Machine: "presets"}
	err = errors.Join(b.report.value("preset.spec.shared", &at, 1, float64(len(common.Content))),
		b.report.against(targetClaimSpec, true, "preset.spec.claim", &at, 1, float64(len(own.Content))))
	if err != nil {
		return err
	}
	return b.measureRescan()
}

// presetInputs are claims of one GPU each, for a tenth of the presets.
func presetInputs() []preset.Input {
	const driver, models = v1alpha1.DriverName, 10
	var presets []preset.Preset
	for i := range presetCount {
		rules := v1alpha1.PresetRules{
			DeviceSelector: &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{fmt.Sprintf("class-%d.example.com", i%models)}},
			Env: []v1alpha1.PresetEnv{
				{Name: fmt.Sprintf("NAME_%d", i%7), Value: new("value")},
				{Name: "LIST", Value: new(fmt.Sprintf("/x%d", i)), Mode: v1alpha1.EnvAppend},
			},
			Mounts:    []v1alpha1.PresetMount{{HostPath: fmt.Sprintf("/opt/%d", i), ContainerPath: fmt.Sprintf("/opt/%d", i%5)}},
			Libraries: []v1alpha1.PresetFiles{{Names: []string{fmt.Sprintf("lib%d.so.*", i)}}},
		}
		if i%4 == 0 {
			rules.DeviceSelector = &v1alpha1.PresetDeviceSelector{CEL: fmt.Sprintf(`device.attributes["fettle.dev"].model == "model-%d"`, i%models)}
		}
		object := &v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%03d", i), Generation: 1}}
		object.Spec.PresetRules = rules
		presets = append(presets, preset.Of(object.Common()))
	}
	var inputs []preset.Input
	for i := range presetClaims {
		class := fmt.Sprintf("class-%d.example.com", i%models)
		inputs = append(inputs, preset.Input{
			Presets: presets, Namespace: "team", Driver: driver, Claims: []preset.Claim{{
				ResourceClaim: &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim-" + strconv.Itoa(i)}},
				Classes:       []string{class},
				Devices: []preset.Device{{Request: "gpu", Class: class, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"model": {StringValue: new(fmt.Sprintf("model-%d", i%models))},
				}}},
			}},
		})
	}
	return inputs
}

// presetSpecs are the file that claims with the same presets share, and that of one claim with a directory of its own.
func presetSpecs(claim int) (shared, own cdi.Spec, err error) {
	names := cdi.NewNames([cdi.SecretSize]byte{})
	if shared, err = names.Common(libraryEdits()); err != nil {
		return shared, own, err
	}
	own, _, err = names.OfClaim(fmt.Sprintf("00000000-0000-4000-8000-%012d", claim), []cdi.Own{{Edits: scratchEdits(claim)}})
	return shared, own, err
}

func scratchEdits(claim int) container.Edits {
	return container.Edits{Mounts: []container.Mount{{HostPath: fmt.Sprintf("/mnt/disks/ssd%d", claim), ContainerPath: "/scratch"}}}
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

// measureRescan lets the runtimes' own library read a directory anew, as it does after each change of a file.
func (b *bench) measureRescan() error {
	median := map[string]float64{}
	for _, name := range []string{caseShared, caseInline} {
		dir := filepath.Join(b.fast, "cdi-"+name)
		if err := fillSpecs(dir, name); err != nil {
			return err
		}
		cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(dir), cdiapi.WithAutoRefresh(false))
		if err != nil {
			return fmt.Errorf("open %s as a runtime does: %w", dir, err)
		}
		s := samples{}
		for range 10 {
			begin := time.Now()
			if err := cache.Refresh(); err != nil {
				return fmt.Errorf("read %s as a runtime does: %w", dir, err)
			}
			s.add(presetRescan, time.Since(begin))
		}
		median[name] = s.median(presetRescan)
		if err := b.report.series(point{Machine: "presets", Held: rescanClaims, Case: name}, s); err != nil {
			return err
		}
	}
	return b.report.value("preset.rescan.inline_over_shared", &point{Machine: "presets", Held: rescanClaims}, 10,
		median[caseInline]/median[caseShared])
}

// fillSpecs writes the files of claims that have a directory of their own and the same presets.
func fillSpecs(dir, how string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a directory of specs: %w", err)
	}
	for claim := range rescanClaims {
		shared, own, err := presetSpecs(claim)
		if err == nil && how == caseInline {
			edits := libraryEdits()
			edits.Mounts = append(edits.Mounts, scratchEdits(claim).Mounts...)
			names := cdi.NewNames([cdi.SecretSize]byte{})
			own, _, err = names.OfClaim(fmt.Sprintf("00000000-0000-4000-8000-%012d", claim), []cdi.Own{{Edits: edits}})
		}
		if err == nil && how == caseShared && claim == 0 {
			err = os.WriteFile(filepath.Join(dir, shared.File), shared.Content, 0o600)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, own.File), own.Content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the specs of presets: %w", err)
		}
	}
	return nil
}
