// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
)

// other is the id of a second image.
const other = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"

// bench is one region of a kind that the simulator of DFL's cards does not know, with a programmer. Its attributes are plain files.
type bench struct {
	*programmer
	tree string
}

// newBench makes the programmer of a region; reach gives the way to it. locks is the state directory.
func newBench(t *testing.T, r *fpga.Region, reach func(tree, locks string) region.Backend) *bench {
	t.Helper()
	n := &node{
		t: t, dir: t.TempDir(), regions: map[string]*fpga.Region{first: r}, files: map[string][]byte{}, fs: quick(), boot: boot,
	}
	b := &bench{tree: t.TempDir()}
	n.ways = map[string]region.Backend{r.Backend: reach(b.tree, n.state())}
	b.programmer = n.process()
	return b
}

func (b *bench) set(name, text string) {
	b.t.Helper()
	name = filepath.Join(b.tree, name)
	check.Must(b.t, os.MkdirAll(filepath.Dir(name), 0o755))
	check.Must(b.t, os.WriteFile(name, []byte(text), 0o644))
}

// reboot is a later process, after a boot.
func (b *bench) reboot() {
	b.boot = otherBoot
	b.programmer = b.process()
}

// raw is an image of the shell that says nothing of itself.
func (b *bench) raw(id, content string) *region.Image {
	b.t.Helper()
	config := fpga.Config{Format: fpga.BIN, ID: id, InterfaceID: shell}
	_, err := config.Inspect(bytes.NewReader([]byte(content)), int64(len(content)))
	check.Must(b.t, err)
	image := &region.Image{
		Digest: digest([]byte(content)), Size: int64(len(content)), InterfaceID: shell, AFUID: id, Config: config,
		Origin: "FPGABitstream team-a/raw",
	}
	b.files[image.Digest] = []byte(content)
	return image
}

// xclbin is an image with a uuid for the shell.
func (b *bench) xclbin(uuid string) *region.Image {
	b.t.Helper()
	file, err := os.ReadFile("../testdata/hello.xclbin")
	check.Must(b.t, err)
	for at, id := range map[int]string{336: shell, 416: uuid} {
		raw, err := hex.DecodeString(id)
		check.Must(b.t, err)
		copy(file[at:], raw)
	}
	return b.keep(file)
}
