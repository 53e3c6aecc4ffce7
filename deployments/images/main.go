// SPDX-License-Identifier: Apache-2.0

// Command images assembles Fettle's container images from the built binaries: static binaries on an empty base, and with the one
// dynamic binary the few files of the C library that it needs. It needs no container engine and no base image, and the same
// binaries always give the same digests.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	source     source
	out        string
	repository string
	push       string
	// architectures are GOARCH values; the docker archives are of the first.
	architectures []string
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var epoch int64
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.source.Bin, "bin", "dist", "`directory` with linux_amd64/ and linux_arm64/, the built binaries")
	flags.StringVar(&o.source.Version, "version", "", "`version` of the images, also their tag (required)")
	flags.StringVar(&o.source.Revision, "revision", "", "`commit` that the binaries were built from")
	flags.Int64Var(&epoch, "epoch", 0, "`seconds` since 1970, the time of everything in the image")
	flags.StringVar(&o.out, "out", "dist/images", "`directory` for NAME.tar (docker archive) and oci/ (OCI layout)")
	flags.StringVar(&o.repository, "repository", "ghcr.io/fettle-dev", "`prefix` of the image names")
	flags.StringVar(&o.push, "push", "", "also push every image to this `prefix`, such as registry.example/fettle")
	arch := flags.String("arch", runtime.GOARCH, "`architectures` of the images, such as amd64,arm64; the docker archives are of the first")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.source.Version == "" {
		return options{}, fmt.Errorf("-version is empty: give the version that the binaries were built with")
	}
	o.architectures = strings.Split(*arch, ",")
	o.source.Created = time.Unix(epoch, 0).UTC()
	return o, nil
}

// run assembles every image of the catalog, writes it and, if asked to, pushes it. It prints one line a result.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var images []assembled
	for _, spec := range catalog() {
		a, err := o.source.assemble(spec, o.architectures)
		if err != nil {
			return err
		}
		images = append(images, a)
		if err := o.archive(a, stdout); err != nil {
			return err
		}
	}
	oci := filepath.Join(o.out, "oci")
	if err := writeLayout(images, oci, func(s imageSpec) (name.Tag, error) { return o.tag(o.repository, s) }); err != nil {
		return err
	}
	fmt.Fprintln(stdout, oci)
	if o.push == "" {
		return nil
	}
	return o.pushAll(ctx, images, stdout)
}

// tag is the full name of an image under a prefix.
func (o options) tag(prefix string, spec imageSpec) (name.Tag, error) {
	tag, err := name.NewTag(prefix+"/"+spec.Name+":"+o.source.Version, name.StrictValidation)
	if err != nil {
		return name.Tag{}, fmt.Errorf("name of image %s: %w", spec.Name, err)
	}
	return tag, nil
}

// archive writes the docker archive of one image.
func (o options) archive(a assembled, stdout io.Writer) error {
	tag, err := o.tag(o.repository, a.spec)
	if err != nil {
		return err
	}
	path, err := writeArchive(a, o.architectures[0], o.out, tag)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, path, tag)
	return nil
}

// pushAll pushes every image and prints the reference by digest.
func (o options) pushAll(ctx context.Context, images []assembled, stdout io.Writer) error {
	for _, a := range images {
		tag, err := o.tag(o.push, a.spec)
		if err != nil {
			return err
		}
		digest, err := push(ctx, a, tag)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s@%s\n", tag, digest)
	}
	return nil
}
