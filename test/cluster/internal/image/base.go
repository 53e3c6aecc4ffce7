// SPDX-License-Identifier: Apache-2.0

// Package image assembles the images every node starts with, without a registry, and imports archives into nodes.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Names of the images that every node has.
const (
	BusyBox = "fettle.dev/test/busybox:1"
	Pause   = "fettle.dev/test/pause:1"
)

// Program is Debian's statically linked busybox.
const Program = "/bin/busybox"

// WriteBase writes a docker-archive with BusyBox and Pause, which share their one layer.
func WriteBase(path string) error {
	layer, err := busyboxLayer()
	if err != nil {
		return err
	}
	archive := map[name.Tag]v1.Image{}
	for ref, config := range map[string]v1.Config{
		BusyBox: {Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/sh"}},
		Pause:   {Entrypoint: []string{"/bin/busybox", "sleep", "infinity"}},
	} {
		tag, err := name.NewTag(ref)
		if err != nil {
			return fmt.Errorf("name base image: %w", err)
		}
		if archive[tag], err = assemble(layer, config); err != nil {
			return err
		}
	}
	if err := tarball.MultiWriteToFile(path, archive); err != nil {
		return fmt.Errorf("write base images: %w", err)
	}
	return nil
}

func assemble(layer v1.Layer, config v1.Config) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("assemble base image: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("assemble base image: %w", err)
	}
	file = file.DeepCopy()
	file.Config, file.OS, file.Architecture = config, "linux", runtime.GOARCH
	img, err = mutate.ConfigFile(img, file)
	if err != nil {
		return nil, fmt.Errorf("assemble base image: %w", err)
	}
	return img, nil
}

func busyboxLayer() (v1.Layer, error) {
	content, err := busyboxTar()
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, fmt.Errorf("make busybox layer: %w", err)
	}
	return layer, nil
}

func busyboxTar() ([]byte, error) {
	program, err := os.ReadFile(Program)
	if err != nil {
		return nil, fmt.Errorf("read busybox (run: cluster build): %w", err)
	}
	applets, err := exec.Command(Program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list busybox applets: %w", err)
	}
	var t tarFile
	for _, d := range []string{"bin", "etc", "root", "home", "var", "usr", "proc", "sys", "dev", "run"} {
		t.add(tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}, nil)
	}
	t.add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			t.add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte(
		"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/sh\n"))
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte(
		"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"))
	return t.bytes()
}

// A tarFile collects entries without times, so that equal content has an equal digest; the first error stays.
type tarFile struct {
	buf bytes.Buffer
	w   *tar.Writer
	err error
}

func (t *tarFile) add(h tar.Header, content []byte) {
	if t.w == nil {
		t.w = tar.NewWriter(&t.buf)
	}
	if t.err != nil {
		return
	}
	h.Size = int64(len(content))
	if t.err = t.w.WriteHeader(&h); t.err == nil {
		_, t.err = t.w.Write(content)
	}
}

func (t *tarFile) bytes() ([]byte, error) {
	if t.err == nil {
		t.err = t.w.Close()
	}
	if t.err != nil {
		return nil, fmt.Errorf("write layer: %w", t.err)
	}
	return t.buf.Bytes(), nil
}
