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

NAME is a claim or a pod of a cluster, as claim/NAME or pod/NAME. Of a pod all claims are explained. A bare name is a claim's or, if there
is none, a pod's. The answer is what presets give now. A claim keeps what it got when it was prepared, so the answer also says what a
container that runs does not have.

Without NAME, the claims are those of files. They are YAML or JSON, and any of them may also hold the Namespaces and ConfigMaps that presets
ask for. Without ResourceSlices, CEL sees no attributes of devices. With --root it also shows what a host makes of it: mounts, libraries and
links, device nodes and hooks.`

const presetExplainExamples = `
fettle preset explain -n team-a pod/train
fettle preset explain -n team-a claim/train-gpu-x2v7k --watch
fettle preset explain --claim claim.yaml --pod pod.yaml --presets presets/ --slices slices.yaml --root /`

// explainFlags are those of preset explain.
type explainFlags struct {
	*cluster
	claims, pods, presets, slices list
	root, driverNamespace         string
	allowed                       list
	watching                      *bool
}

func presetExplain(flags *arguments) action {
	f := explainFlags{cluster: flags.cluster()}
	flags.Var(&f.claims, "claim", "`file` with the allocated claims; may be repeated")
	flags.Var(&f.pods, "pod", "`file` with the pod that owns them; may be repeated")
	flags.Var(&f.presets, "presets", "`file` with presets, or directory of such; may be repeated")
	flags.Var(&f.slices, "slices", "`file` with the node's ResourceSlices; may be repeated")
	flags.StringVar(&f.root, "root", "", "`directory` of a host, to show what presets make of it")
	flags.Var(&f.allowed, "allowed-host-path", "`directory` of the host below which DevicePresets may name files; may be repeated")
	flags.where("allowed-host-path", func(dir string) error { return preset.AllowedHostPath{Path: dir}.Validate() })
	flags.StringVar(&f.driverNamespace, "driver-namespace", "fettle-system",
		"`namespace` of the driver, with the ConfigMaps of cluster-wide presets")
	flags.where("driver-namespace", isNamespace)
	format := flags.formatOf("text", "json", "yaml")
	f.watching = flags.watch()
	flags.completeOperand(func(ctx context.Context, typed string) []string {
		return f.names(ctx, func(ctx context.Context, r *reader, namespace string) []string {
			return claimsAndPods(ctx, r, namespace, typed)
		})
	})
	return func(ctx context.Context, operands []string, stdout, stderr io.Writer) error {
		if err := f.check(operands); err != nil {
			return flags.misused(err)
		}
		to := &outputs{stdout: stdout, stderr: stderr, format: *format}
		return f.follow(ctx, *f.watching, to, func(stdout, stderr io.Writer) error {
			explanation, err := f.explain(ctx, operands, stderr)
			if err != nil {
				return fmt.Errorf("preset explain: %w", err)
			}
			return show(*format, &explanation, stdout, explanation.Text)
		})
	}
}

// check wants either files or a claim of a cluster.
func (f *explainFlags) check(operands []string) error {
	files := len(f.claims)+len(f.pods)+len(f.presets)+len(f.slices) > 0
	switch {
	case files && len(operands) > 0:
		return errors.New("want either files (--claim) or a claim or pod of a cluster (claim/NAME, pod/NAME)")
	case files && len(f.claims) == 0:
		return errors.New("want --claim FILE, with the claims to explain")
	case !files && len(operands) == 0:
		return errors.New("want --claim FILE, or claim/NAME or pod/NAME of a cluster")
	case files && *f.watching:
		return errors.New("--watch: want a claim or pod of a cluster (claim/NAME, pod/NAME)")
	case f.all:
		return errors.New("-A: want the namespace of the claim or pod (-n)")
	}
	return nil
}

func (f *explainFlags) explain(ctx context.Context, operands []string, stderr io.Writer) (explain.Explanation, error) {
	var s source
	var err error
	if len(operands) > 0 {
		s, err = f.fromCluster(ctx, operands[0], stderr)
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

// target is what is to be explained. Without a kind it is a claim or a pod.
type target struct{ kind, name string }

// The kinds of a target.
const (
	kindClaim = "claim"
	kindPod   = "pod"
)

// parseTarget reads KIND/NAME, or only NAME. It takes the names and short names that kubectl takes for claims and pods.
func parseTarget(operand string) (target, error) {
	kind, name, ok := strings.Cut(operand, "/")
	if !ok {
		kind, name = "", operand
	}
	if name != "" && !strings.Contains(name, "/") {
		kind, _, _ = strings.Cut(strings.ToLower(kind), ".")
		switch kind {
		case "":
			if !ok {
				return target{name: name}, nil
			}
		case "claim", "claims", "resourceclaim", "resourceclaims":
			return target{kindClaim, name}, nil
		case "po", "pod", "pods":
			return target{kindPod, name}, nil
		}
	}
	return target{}, usageError{fmt.Errorf("%q: want claim/NAME, pod/NAME or NAME", cmp.Or(operand, "/"))}
}
