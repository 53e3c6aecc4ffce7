// SPDX-License-Identifier: Apache-2.0

// Command fettle is the command line of Fettle, also usable as kubectl fettle: what the driver sees of a machine, and tools that
// work offline on files. Results go to stdout and the rest to stderr; the exit status is 0, 1 for a failure, 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	// The public authorities, where there are no files of them: the images have none.
	_ "golang.org/x/crypto/x509roots/fallback"
	// The ways to log in that a kubeconfig may name.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	name, args := called(os.Args)
	status := runAs(ctx, name, args, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// called tells by the program's file how it was called. As kubectl-fettle it is a plugin of kubectl, and as kubectl_complete-fettle kubectl
// asks it for what may follow on the command line.
func called(argv []string) (name string, args []string) {
	switch base := strings.TrimSuffix(filepath.Base(argv[0]), ".exe"); {
	case base == "kubectl_complete-fettle":
		return "kubectl fettle", append([]string{cobra.ShellCompRequestCmd}, argv[1:]...)
	case strings.HasPrefix(base, "kubectl-"):
		return "kubectl fettle", argv[1:]
	}
	return "fettle", argv[1:]
}

// command is one verb of the command line.
type command struct {
	// usage has the verb's one or two words, and its operands in capitals.
	usage   string
	summary string
	help    string
	// examples are lines that can be run, and lines of comment that begin with #.
	examples string
	// declare declares the flags, and returns what the verb does once they were read.
	declare func(flags *arguments) action
}

// action does what a verb is for.
type action func(ctx context.Context, operands []string, stdout, stderr io.Writer) error

// name returns the words of the verb.
func (c command) name() string {
	words, _ := split(c.usage)
	return strings.Join(words, " ")
}

// printsFiles are the commands whose output is a file: it is written byte by byte. All others print for people, who also see what others
// wrote into objects and files.
func printsFiles() []string { return []string{"completion", "convert", "machine record", "snapshot"} }

// commandTable is what the command line can do, in the order of the help.
type commandTable []command

// commands returns every command of fettle. Adding one is a file and a row: see docs/design/adding.md.
func commands() commandTable {
	return commandTable{
		{"bitstream inspect FILE", "show what an FPGA's bitstream file holds", bitstreamInspectHelp, bitstreamInspectExamples, bitstreamInspect},
		{"bitstream ls", "list the bitstreams of a cluster", bitstreamListHelp, bitstreamListExamples, bitstreamList},
		{
			"bitstream push FILE... REF", "push bitstream files to a registry as one artifact", bitstreamPushHelp, bitstreamPushExamples,
			bitstreamPush,
		},
		{
			"bitstream verify REF|FILE", "check an artifact or a file against what it says of itself", bitstreamVerifyHelp, bitstreamVerifyExamples,
			bitstreamVerify,
		},
		{"cache build DIR", "make an image of a directory of compiled GPU kernels", cacheBuildHelp, cacheBuildExamples, cacheBuild},
		{"cache check REF", "say which GPUs of a machine a kernel cache fits", cacheCheckHelp, cacheCheckExamples, cacheCheck},
		{
			"cache extract REF DIR", "verify a kernel cache and bring it to a directory or volume", cacheExtractHelp, cacheExtractExamples,
			cacheExtract,
		},
		{"cache inspect REF", "show what a kernel cache is for", cacheInspectHelp, cacheInspectExamples, cacheInspect},
		{"cache push REF DEST", "copy a kernel cache with its signatures", cachePushHelp, cachePushExamples, cachePush},
		{"cache verify REF", "check by TrustPolicies who signed a kernel cache", cacheVerifyHelp, cacheVerifyExamples, cacheVerify},
		{"completion SHELL", "print a script that completes commands in bash, fish or zsh", completionHelp, completionExamples, completion},
		{"convert", "make claims of pods that use Intel's FPGA plugin, and presets of PodPresets", convertHelp, convertExamples, convertFiles},
		{"devices", "show the devices that the driver finds on a machine", devicesHelp, devicesExamples, devices},
		{"explain claim NAME", "say who has a claim, or why it has no devices", explainClaimHelp, explainClaimExamples, explainClaim},
		{"explain pod NAME", "say why a pod has no devices, and what would help", explainPodHelp, explainPodExamples, explainPod},
		{"machine expand FILE DIR", "write a machine file as a host tree", machineExpandHelp, machineExpandExamples, machineExpand},
		{"machine record", "record this machine as a machine file", machineRecordHelp, machineRecordExamples, machineRecord},
		{"partition", "say what the profiles of divided devices cost the cluster", partitionHelp, partitionExamples, partitionCosts},
		{"plan", "say which nodes and devices pods will get", planHelp, planExamples, planPods},
		{"preset explain [NAME]", "show what presets give to a claim or pod, and why", presetExplainHelp, presetExplainExamples, presetExplain},
		{"quota", "show devices by namespace and class against ResourceQuotas", quotaHelp, quotaExamples, quotas},
		{"slices", "print the Node and the ResourceSlices of a machine that is not there", slicesHelp, slicesExamples, slicesOfMachine},
		{"snapshot", "save what decides about devices as one file", snapshotHelp, snapshotExamples, saveSnapshot},
		{"stack plan", "say what AcceleratorStacks do next with drivers, and for which pods", stackPlanHelp, stackPlanExamples, stackPlan},
		{"status", "say what is installed on a cluster, what is wrong, and what to do next", statusHelp, statusExamples, status},
		{"validate FILE...", "check claims, templates, classes and presets in YAML files", validateHelp, validateExamples, validate},
		{"version", "show the version of this binary", versionHelp, versionExamples, showVersion},
	}
}

// usageError is a mistake in the command line.
type usageError struct{ error }

// statusError ends the program with a status that a verb has for it.
type statusError struct {
	error
	status int
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runAs(ctx, "fettle", args, stdout, stderr)
}

// runAs returns the exit status: 0, 1 for a failure, 2 for wrong usage.
func runAs(ctx context.Context, name string, args []string, stdout, stderr io.Writer) int {
	ctx, screen := newScreen(ctx, stdout, stderr)
	defer screen.end()
	err := program{name, commands(), screen}.run(ctx, args)
	if err == nil {
		return 0
	}
	fmt.Fprintf(screen.stderr, "fettle: %v\n", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	if ended := (statusError{}); errors.As(err, &ended) {
		return ended.status
	}
	return 1
}
