// SPDX-License-Identifier: Apache-2.0

// Command fettle is the command line of Fettle, also usable as kubectl fettle: what the driver sees of a machine, and tools that
// work offline on files. Results go to stdout and the rest to stderr; the exit status is 0, 1 for a failure, 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	// The public authorities, where there are no files of them: the images have none.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/fettle-dev/fettle/pkg/message"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// command is one subcommand. Its name may have two words.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

// printsFiles are the commands whose output is a file: it is written byte by byte. All others print for people, who also see what others
// wrote into objects and files.
func printsFiles() []string { return []string{"convert", "machine record"} }

// commandTable is what the command line can do, in the order of the help.
type commandTable []command

// commands returns every command of fettle. Adding one is a file and a row: see docs/design/adding.md.
func commands() commandTable {
	return commandTable{
		{"bitstream inspect", "show what an FPGA's bitstream file holds", runBitstreamInspect},
		{"bitstream ls", "list the bitstreams of a cluster", runBitstreamList},
		{"bitstream push", "push bitstream files to a registry as one artifact", runBitstreamPush},
		{"bitstream verify", "check an artifact or a file against what it says of itself", runBitstreamVerify},
		{"cache build", "make an image of a directory of compiled GPU kernels", runCacheBuild},
		{"cache check", "say which GPUs of a machine a kernel cache fits", runCacheCheck},
		{"cache extract", "verify a kernel cache and bring it to a directory or volume", runCacheExtract},
		{"cache inspect", "show what a kernel cache is for", runCacheInspect},
		{"cache push", "copy a kernel cache with its signatures", runCachePush},
		{"cache verify", "check by TrustPolicies who signed a kernel cache", runCacheVerify},
		{"convert", "make claims of pods that use Intel's FPGA plugin, and presets of PodPresets", runConvert},
		{"devices", "show the devices that the driver finds on a machine", runDevices},
		{"machine expand", "write a machine file as a host tree", runMachineExpand},
		{"machine record", "record this machine as a machine file", runMachineRecord},
		{"preset explain", "show what presets give to a claim, and why", runPresetExplain},
		{"validate", "check claims, templates, classes and presets in a YAML file", runValidate},
		{"version", "show the version of this binary", runVersion},
	}
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	stderr = message.Printable(stderr)
	err := commands().dispatch(ctx, args, stdout, stderr)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "fettle: %v\n", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// dispatch runs the command whose words the arguments begin with.
func (t commandTable) dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usageError{errors.New("want a command; see fettle help")}
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		return t.help(stdout)
	}
	for _, c := range t {
		words := strings.Fields(c.name)
		if len(args) >= len(words) && strings.Join(args[:len(words)], " ") == c.name {
			if !slices.Contains(printsFiles(), c.name) {
				stdout = message.Printable(stdout)
			}
			err := c.run(ctx, args[len(words):], stdout, stderr)
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		}
	}
	return usageError{fmt.Errorf("unknown command %q; see fettle help", strings.Join(args[:min(2, len(args))], " "))}
}

func (t commandTable) help(w io.Writer) error {
	text := "Fettle hands a pod its GPUs and FPGAs in working order.\n\nUsage: fettle COMMAND [FLAGS]\n\nCommands:\n"
	for _, c := range t {
		text += fmt.Sprintf("  %-17s %s\n", c.name, c.summary)
	}
	text += "\nfettle COMMAND --help tells a command's flags. As a plugin of kubectl: kubectl fettle COMMAND.\n"
	_, err := io.WriteString(w, text)
	return err
}
