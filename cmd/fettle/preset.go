// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/preset/explain"
	"github.com/fettle-dev/fettle/pkg/preset/hostfiles"
)

const presetExplainHelp = `
Shows what presets give to the containers that use a claim, request by request: each value with the preset that it is from and those that
it overrode, what was refused and why, and what is missing. The claim must be allocated.

Of a cluster:  fettle preset explain -n NAMESPACE claim/NAME
Of files:      fettle preset explain --claim FILE --pod FILE --presets DIRECTORY --slices FILE

Files are YAML or JSON, and any of them may also hold the Namespaces and ConfigMaps that presets ask for. Without ResourceSlices, CEL sees
no attributes of devices. With --root it also shows what a host makes of it: mounts, libraries and links, device nodes and hooks.`

// explainFlags are those of preset explain.
type explainFlags struct {
	*cluster
	claims, pods, presets, slices list
	root, driverNamespace         string
	allowed                       list
}

func runPresetExplain(ctx context.Context, args []string, stdout, _ io.Writer) error {
	flags := newArguments("preset explain [CLAIM]", presetExplainHelp)
	f := explainFlags{cluster: flags.cluster()}
	flags.Var(&f.claims, "claim", "`file` with the allocated claims; may be repeated")
	flags.Var(&f.pods, "pod", "`file` with the pod that owns them; may be repeated")
	flags.Var(&f.presets, "presets", "`file` with presets, or directory of such; may be repeated")
	flags.Var(&f.slices, "slices", "`file` with the node's ResourceSlices; may be repeated")
	flags.StringVar(&f.root, "root", "", "`directory` of a host, to show what presets make of it")
	flags.Var(&f.allowed, "allowed-host-path", "`directory` of the host below which DevicePresets may name files; may be repeated")
	flags.StringVar(&f.driverNamespace, "driver-namespace", "fettle-system",
		"`namespace` of the driver, with the ConfigMaps of cluster-wide presets")
	format := flags.formatOf("text", "json", "yaml")
	operands, err := flags.parse(args, stdout)
	if err != nil {
		return err
	}
	if err := f.check(operands); err != nil {
		return flags.misused(err)
	}
	explanation, err := f.explain(ctx, operands)
	if err != nil {
		return fmt.Errorf("preset explain: %w", err)
	}
	return show(*format, &explanation, stdout, explanation.Text)
}

// check wants either files or a claim of a cluster.
func (f *explainFlags) check(operands []string) error {
	files := len(f.claims)+len(f.pods)+len(f.presets)+len(f.slices) > 0
	switch {
	case files && len(operands) > 0:
		return errors.New("want either files (--claim) or a claim of a cluster (claim/NAME)")
	case files && len(f.claims) == 0:
		return errors.New("want --claim FILE, with the claims to explain")
	case !files && len(operands) == 0:
		return errors.New("want --claim FILE, or claim/NAME of a cluster")
	case f.all:
		return errors.New("-A: want the namespace of the claim (-n)")
	}
	return nil
}

func (f *explainFlags) explain(ctx context.Context, operands []string) (explain.Explanation, error) {
	var s source
	var err error
	if len(operands) > 0 {
		s, err = f.fromCluster(ctx, operands[0])
	} else {
		s, err = f.fromFiles()
	}
	if err != nil {
		return explain.Explanation{}, err
	}
	s.objects.DriverNamespace = f.driverNamespace
	if f.root != "" {
		host := hostfiles.Preview{Root: f.root, Hook: "fettle-hook"}
		for _, dir := range f.allowed {
			host.AllowedHostPaths = append(host.AllowedHostPaths, preset.AllowedHostPath{Path: dir, Writable: true})
		}
		s.objects.Edits = host.Edits
	}
	explanation, err := explain.Explain(ctx, s.objects, s.wanted)
	return explanation, errors.Join(err, s.unread())
}

// source is where objects are from.
type source struct {
	objects explain.Objects
	// wanted says which claims are to be explained.
	wanted func(*resourceapi.ResourceClaim) bool
	// unread is about ConfigMaps that could not be read when they were needed.
	unread func() error
}

// claimName reads claim/NAME, or only NAME.
func claimName(operand string) (string, error) {
	kind, name, ok := strings.Cut(operand, "/")
	if !ok {
		return operand, nil
	}
	switch strings.ToLower(kind) {
	case "claim", "resourceclaim", "resourceclaims":
		return name, nil
	}
	return "", usageError{fmt.Errorf("%q: want claim/NAME", cmp.Or(operand, "/"))}
}
