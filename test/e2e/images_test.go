// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"io"
	"os"
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

// builtImage is an image that a spec makes.
type builtImage struct {
	ref   string
	env   []string
	files []tarFile
	// over is a layer of its own, so that images share what is below.
	over []tarFile
}

// tarFile is a file of an image.
type tarFile struct {
	tar.Header
	content []byte
}

// searched is PATH in every image of the suite.
const searched = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func regular(name string, content []byte) tarFile {
	return tarFile{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}, content}
}

func symlink(name, target string) tarFile {
	return tarFile{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

// fromHere is a file of this machine.
func fromHere(name, at string) tarFile {
	GinkgoHelper()
	content, err := os.ReadFile(at)
	Expect(err).NotTo(HaveOccurred())
	return regular(name, content)
}

// busybox is the program of that name in a directory, with what the suite runs of it.
func busybox(dir string) []tarFile {
	GinkgoHelper()
	files := []tarFile{fromHere(dir+"/busybox", "/bin/busybox")}
	for _, applet := range []string{"sh", "sleep", "cat", "ls", "kill", "touch", "env", "id"} {
		files = append(files, symlink(dir+"/"+applet, "busybox"))
	}
	return files
}

// dynamic is a program of this machine with its loader and its C library.
func dynamic(name, program string) []tarFile {
	GinkgoHelper()
	files := []tarFile{fromHere(name, program)}
	for _, file := range loaderOf(program) {
		files = append(files, fromHere(strings.TrimPrefix(file, "/"), file))
	}
	return files
}

// loadImages gives the nodes images, in one archive.
func loadImages(ctx context.Context, images ...builtImage) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	archive := map[name.Tag]v1.Image{}
	for _, image := range images {
		tag, err := name.NewTag(image.ref)
		Expect(err).NotTo(HaveOccurred())
		archive[tag] = image.build()
	}
	Expect(tarball.MultiWriteToFile(filepath.Join(dir, "images.tar"), archive)).To(Succeed())
	Expect(h.LoadImages(ctx, dir)).To(Succeed())
}

// layerOf packs files.
func layerOf(files []tarFile) v1.Layer {
	GinkgoHelper()
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for i := range files {
		Expect(w.WriteHeader(&files[i].Header)).To(Succeed())
		_, err := w.Write(files[i].content)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(w.Close()).To(Succeed())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	Expect(err).NotTo(HaveOccurred())
	return layer
}

// build makes the image.
func (b *builtImage) build() v1.Image {
	GinkgoHelper()
	layers := []v1.Layer{layerOf(b.files)}
	if len(b.over) > 0 {
		layers = append(layers, layerOf(b.over))
	}
	image, err := mutate.AppendLayers(empty.Image, layers...)
	Expect(err).NotTo(HaveOccurred())
	config, err := image.ConfigFile()
	Expect(err).NotTo(HaveOccurred())
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: b.env, Cmd: []string{"/bin/sh"}}
	if !slices.ContainsFunc(b.env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		config.Config.Env = append(config.Config.Env, searched)
	}
	image, err = mutate.ConfigFile(image, config)
	Expect(err).NotTo(HaveOccurred())
	return image
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
