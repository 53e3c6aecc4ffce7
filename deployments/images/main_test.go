// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/fettle-dev/fettle/test/check"
)

const standIn = "package main\n\nfunc main() { println(\"stand-in\") }\n"

// standInCgo is a dynamic stand-in for fettle-nvml.
const standInCgo = "package main\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc main() { C.free(nil); println(\"stand-in\") }\n"

// compile builds one Go file for an architecture.
func compile(t *testing.T, code, out, arch, cgo string) {
	t.Helper()
	main := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(main, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("go", "build", "-trimpath", "-o", out, main) // compiled once, wherever the file is
	command.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOARCH="+arch)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build %s for %s: %v\n%s", out, arch, err, output)
	}
}

// needCompiler skips where no C compiler can link the dynamic stand-in.
func needCompiler(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc to link a dynamic binary")
	}
}

// binaries makes a directory of stand-ins for the host's architecture.
func binaries(t *testing.T) string {
	t.Helper()
	needCompiler(t)
	dir := t.TempDir()
	host := filepath.Join(dir, "linux_"+runtime.GOARCH)
	compile(t, standIn, filepath.Join(host, "fettle-controller"), runtime.GOARCH, "0")
	compile(t, standIn, filepath.Join(host, "fettle-kubeletplugin"), runtime.GOARCH, "0")
	compile(t, standIn, filepath.Join(host, "fettle"), runtime.GOARCH, "0")
	compile(t, standIn, filepath.Join(host, "fettle-hook"), runtime.GOARCH, "0")
	compile(t, standIn, filepath.Join(host, "fettle-claims"), runtime.GOARCH, "0")
	compile(t, standIn, filepath.Join(host, "fettle-mps"), runtime.GOARCH, "0")
	compile(t, standInCgo, filepath.Join(host, "fettle-nvml"), runtime.GOARCH, "1")
	return dir
}

// assembleNow runs the tool and returns what it printed.
func assembleNow(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), append([]string{"-version", "v1.2.3", "-epoch", "1700000000"}, args...), &stdout, &stderr); err != nil {
		t.Fatalf("images %v: %v\n%s", args, err, stderr.String())
	}
	return stdout.String()
}

// contents lists an image's regular files, and every entry's time in seconds.
func contents(t *testing.T, img v1.Image) (files []string, times []int64) {
	t.Helper()
	flat := mutate.Extract(img)
	defer flat.Close()
	archive := tar.NewReader(flat)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(files)
			return files, slices.Compact(times)
		}
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, header.ModTime.Unix())
		if header.Typeflag == tar.TypeReg {
			files = append(files, header.Name)
		}
	}
}

func TestImages(t *testing.T) {
	bin, out := binaries(t), t.TempDir()
	assembleNow(t, "-bin", bin, "-out", out)

	for _, test := range []struct {
		name, user string
		dynamic    bool
	}{
		{name: "fettle-controller", user: "65532:65532"},
		{name: "fettle", user: "65532:65532"},
		{name: "fettle-kubeletplugin", user: "0:0", dynamic: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			tag, err := name.NewTag("ghcr.io/fettle-dev/" + test.name + ":v1.2.3")
			if err != nil {
				t.Fatal(err)
			}
			img, err := tarball.ImageFromPath(filepath.Join(out, test.name+".tar"), &tag)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Image(img); err != nil {
				t.Errorf("archive is not valid: %v", err)
			}
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.Config.User != test.user {
				t.Errorf("user is %q, want %q", config.Config.User, test.user)
			}
			if diff := cmp.Diff([]string{"/" + test.name}, config.Config.Entrypoint); diff != "" {
				t.Errorf("entrypoint (-want +got):\n%s", diff)
			}
			if got := config.Config.Labels["org.opencontainers.image.version"]; got != "v1.2.3" {
				t.Errorf("version label is %q, want v1.2.3", got)
			}
			checkContents(t, img, test.name, test.dynamic)
		})
	}
}

// checkContents wants the binary, its libraries if it has any, one time everywhere, and nothing that could run a command.
func checkContents(t *testing.T, img v1.Image, binary string, dynamic bool) {
	t.Helper()
	files, times := contents(t, img)
	if diff := cmp.Diff([]int64{1700000000}, times); diff != "" {
		t.Errorf("times of the entries (-want +got):\n%s", diff)
	}
	if !dynamic {
		if diff := cmp.Diff([]string{binary}, files); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		return
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	for _, want := range []string{binary, "fettle-nvml", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not in the image: %q", want, files)
		}
	}
	if loaders := slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "ld-linux") }); len(loaders) != 1 {
		t.Errorf("loaders are %q, want one: %q", loaders, files)
	}
	if len(files) > 11 {
		t.Errorf("%d files in the image, want at most 11: %q", len(files), files)
	}
}

// TestDynamicRuns starts the dynamic stand-in with nothing but the files of the image.
func TestDynamicRuns(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for chroot")
	}
	bin, out, root := binaries(t), t.TempDir(), t.TempDir()
	assembleNow(t, "-bin", bin, "-out", out)
	img, err := tarball.ImageFromPath(filepath.Join(out, "fettle-kubeletplugin.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	flat := mutate.Extract(img)
	defer flat.Close()
	untar := exec.Command("tar", "-x", "-C", root)
	untar.Stdin = flat
	if output, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("unpack the image: %v\n%s", err, output)
	}
	output, err := exec.Command("chroot", root, "/fettle-nvml").CombinedOutput()
	if err != nil || string(output) != "stand-in\n" {
		t.Errorf("fettle-nvml in the image: %v, printed %q, want \"stand-in\"", err, output)
	}
}

func TestReproducible(t *testing.T) {
	bin, first, second := binaries(t), t.TempDir(), t.TempDir()
	assembleNow(t, "-bin", bin, "-out", first)
	later := filepath.Join(bin, "linux_"+runtime.GOARCH, "fettle-controller")
	if err := os.Chmod(later, 0o700); err != nil {
		t.Fatal(err)
	}
	assembleNow(t, "-bin", bin, "-out", second)
	for _, path := range []string{"fettle-controller.tar", "fettle-kubeletplugin.tar", "oci/index.json"} {
		a, err := os.ReadFile(filepath.Join(first, path))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, path))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs between two runs over the same binaries", path)
		}
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	prefix := strings.TrimPrefix(server.URL, "http://") + "/team"
	bin, out := binaries(t), t.TempDir()
	// The controller is static, so a stand-in of the other architecture shows an index of two.
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	compile(t, standIn, filepath.Join(bin, "linux_"+other, "fettle-controller"), other, "0")
	spec := catalog()[0]
	a, err := source{Bin: bin, Version: "v1.2.3"}.assemble(spec, []string{"amd64", "arm64"})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := options{source: source{Version: "v1.2.3"}}.tag(prefix, spec)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := push(t.Context(), a, tag)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag.Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("pushed index is not valid: %v", err)
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms(t, index)); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
	if err := writeLayout([]assembled{a}, out, func(imageSpec) (name.Tag, error) { return tag, nil }); err != nil {
		t.Fatal(err)
	}
	local, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(local); err != nil {
		t.Errorf("layout is not valid: %v", err)
	}
}

// platforms lists the platforms of an index, in its order.
func platforms(t *testing.T, index v1.ImageIndex) []string {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var result []string
	for _, m := range manifest.Manifests {
		result = append(result, m.Platform.String())
	}
	return result
}

// TestPushAll covers the -push flag from the command line on.
func TestPushAll(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	prefix := strings.TrimPrefix(server.URL, "http://") + "/team"
	printed := assembleNow(t, "-bin", binaries(t), "-out", t.TempDir(), "-push", prefix)
	for _, image := range []string{"fettle", "fettle-controller", "fettle-kubeletplugin"} {
		if want := prefix + "/" + image + ":v1.2.3@sha256:"; !strings.Contains(printed, want) {
			t.Errorf("output has no %q:\n%s", want, printed)
		}
	}
}

func TestRefusals(t *testing.T) {
	needCompiler(t)
	bin := binaries(t)
	dynamic := filepath.Join(bin, "linux_"+runtime.GOARCH, "fettle-nvml")
	if err := checkStatic(dynamic, runtime.GOARCH); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a dynamic binary where a static one is wanted: got %v, want an error that names CGO_ENABLED=0", err)
	}
	if b, err := readBinary(dynamic); err != nil || b.interpreter == "" {
		t.Errorf("interpreter of a dynamic binary: %q, %v", b.interpreter, err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	static := filepath.Join(bin, "linux_"+runtime.GOARCH, "fettle-controller")
	if err := checkStatic(static, other); err == nil || !strings.Contains(err.Error(), "GOARCH="+other) {
		t.Errorf("a binary of another architecture: got %v, want an error that names GOARCH=%s", err, other)
	}
	if err := os.Remove(dynamic); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"no version", nil, "-version is empty"},
		{"tag that no registry takes", []string{"-version", "a b", "-bin", bin}, "name of image"},
		{"argument", []string{"-version", "v1", "x"}, `unexpected argument "x"`},
		{"half a build", []string{"-version", "v1", "-bin", bin}, "run make build"},
		{"unknown architecture", []string{"-version", "v1", "-bin", bin, "-arch", "riscv64"}, "run make build"},
		{"no build", []string{"-version", "v1", "-bin", t.TempDir()}, "run make build"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := run(t.Context(), append([]string{"-out", t.TempDir()}, test.args...), io.Discard, io.Discard)
			check.WantErr(t, err, nil, test.want)
		})
	}
}

func TestClosureNamesWhatIsMissing(t *testing.T) {
	_, err := find("libnone.so.1", "amd64", []libraryDir{{host: t.TempDir(), image: "/lib"}})
	check.WantErr(t, err, nil, "libnone.so.1")
	if _, err := libraryDirs("riscv64"); err == nil {
		t.Error("riscv64: want an error")
	}
	if machine("arm64") != elf.EM_AARCH64 {
		t.Errorf("arm64 is %s", machine("arm64"))
	}
}
