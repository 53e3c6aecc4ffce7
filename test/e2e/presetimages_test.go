// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

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

// workshop is a directory in which a spec builds programs.
type workshop string

func newWorkshop() workshop { return workshop(GinkgoT().TempDir()) }

func (w workshop) write(file, content string) {
	GinkgoHelper()
	Expect(os.WriteFile(w.at(file), []byte(content), 0o600)).To(Succeed())
}

func (w workshop) at(file string) string { return filepath.Join(string(w), file) }

func (w workshop) read(file string) []byte {
	GinkgoHelper()
	content, err := os.ReadFile(w.at(file))
	Expect(err).NotTo(HaveOccurred())
	return content
}

func (w workshop) run(ctx context.Context, args ...string) {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = string(w)
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s: %s", args, out)
}

// library builds NAME.so with the soname NAME.so.1 of a source.
func (w workshop) library(ctx context.Context, name, source string) []byte {
	GinkgoHelper()
	w.write(name+".c", source)
	w.run(ctx, "gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,"+name+".so.1", "-o", name+".so", name+".c")
	return w.read(name + ".so")
}

// cudaPrograms builds the library and a program that is linked with it, for each C library, and gives the nodes images with the programs.
// It returns the library.
func cudaPrograms(ctx context.Context) (library []byte) {
	GinkgoHelper()
	w := newWorkshop()
	library = w.library(ctx, "libfakecuda", fakeCUDA)
	w.write("main.c", usesCUDA)
	var images []builtImage
	for ref, compiler := range map[string]string{glibcImage: "gcc", muslImage: "musl-gcc"} {
		w.run(ctx, compiler, "-o", compiler+"-uses", "main.c", "-L.", "-lfakecuda")
		images = append(images, builtImage{ref: ref, files: append(busybox("bin"), dynamic("bin/uses", w.at(compiler+"-uses"))...)})
	}
	loadImages(ctx, images...)
	return library
}
