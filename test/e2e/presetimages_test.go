// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// The images whose program asks a library that they do not have, libfakecuda.so.1.
const (
	glibcImage = "fettle.dev/test/uses-glibc:1"
	muslImage  = "fettle.dev/test/uses-musl:1"
)

// fakeCUDA needs no C library, so that it is the same for either.
const fakeCUDA = `const char *fake_cuda(void) { return "the node's CUDA"; }`

const usesCUDA = `#include <stdio.h>
const char *fake_cuda(void);
int main(void) { puts(fake_cuda()); return 0; }`

// cudaPrograms builds the library and a program that is linked with it, for each C library, and gives the nodes images with the programs.
// It returns the library.
func cudaPrograms(ctx context.Context) (library []byte) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	write := func(file, content string) {
		Expect(os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600)).To(Succeed())
	}
	run := func(args ...string) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s: %s", args, out)
	}
	write("lib.c", fakeCUDA)
	write("main.c", usesCUDA)
	run("gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libfakecuda.so.1", "-o", "libfakecuda.so", "lib.c")
	images := filepath.Join(dir, "images")
	Expect(os.Mkdir(images, 0o755)).To(Succeed())
	for ref, compiler := range map[string]string{glibcImage: "gcc", muslImage: "musl-gcc"} {
		run(compiler, "-o", compiler+"-uses", "main.c", "-L.", "-lfakecuda")
		writeImage(filepath.Join(images, compiler+".tar"), ref, filepath.Join(dir, compiler+"-uses"))
	}
	Expect(h.LoadImages(ctx, images)).To(Succeed())
	library, err := os.ReadFile(filepath.Join(dir, "libfakecuda.so"))
	Expect(err).NotTo(HaveOccurred())
	return library
}

// writeImage makes an image of busybox, a program as /bin/uses, and its loader and C library.
func writeImage(archive, ref, program string) {
	GinkgoHelper()
	files := map[string]string{"bin/busybox": "/bin/busybox", "bin/uses": program}
	for _, file := range loaderOf(program) {
		files[strings.TrimPrefix(file, "/")] = file
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, applet := range []string{"sh", "sleep", "cat", "ls", "kill", "touch"} {
		Expect(w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777})).To(Succeed())
	}
	for to, from := range files {
		content, err := os.ReadFile(from)
		Expect(err).NotTo(HaveOccurred())
		Expect(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: 0o755, Size: int64(len(content))})).To(Succeed())
		_, err = w.Write(content)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(w.Close()).To(Succeed())
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	Expect(err).NotTo(HaveOccurred())
	image, err := mutate.AppendLayers(empty.Image, made)
	Expect(err).NotTo(HaveOccurred())
	config, err := image.ConfigFile()
	Expect(err).NotTo(HaveOccurred())
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Cmd: []string{"/bin/sh"}}
	image, err = mutate.ConfigFile(image, config)
	Expect(err).NotTo(HaveOccurred())
	tag, err := name.NewTag(ref)
	Expect(err).NotTo(HaveOccurred())
	Expect(tarball.WriteToFile(archive, tag, image)).To(Succeed())
}

// loaderOf are the files of this machine that a program needs to run: its loader, and the C library that glibc's program names.
func loaderOf(program string) []string {
	GinkgoHelper()
	f, err := elf.Open(program)
	Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	loader, err := io.ReadAll(f.Section(".interp").Open())
	Expect(err).NotTo(HaveOccurred())
	files := []string{strings.TrimRight(string(loader), "\x00")}
	wanted, err := f.ImportedLibraries()
	Expect(err).NotTo(HaveOccurred())
	if slices.Contains(wanted, "libc.so.6") {
		found, err := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
		Expect(err).NotTo(HaveOccurred())
		Expect(found).NotTo(BeEmpty(), "this machine's C library")
		files = append(files, found[0])
	}
	return files
}
