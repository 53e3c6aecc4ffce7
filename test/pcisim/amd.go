// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/pci"
)

const (
	kfdDir   = "sys/devices/virtual/kfd/kfd"
	nodesDir = kfdDir + "/topology/nodes/"
)

// topology is that of AMD's compute driver: a list, which the driver numbers anew after each change.
type topology struct {
	model *model
	nodes []kfdNode
	gpus  map[string]*gpu // by address
}

// kfdNode is a directory of the topology: its files by name.
type kfdNode struct {
	address string // of its GPU, empty for a processor
	files   map[string]string
}

// gpu is one that can be divided.
type gpu struct {
	function *function
	mode     string
	// whole are the files of the node of the whole GPU. render is the minor of its own render node.
	whole  map[string]string
	render int
}

// parts is how many partitions a mode has on a GPU of 8 compute dies.
func parts(mode string) int {
	return map[string]int{"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}[mode]
}

func newTopology(s *model) topology {
	t := topology{model: s, gpus: map[string]*gpu{}}
	for i := 0; ; i++ {
		prefix := nodesDir + strconv.Itoa(i) + "/"
		node := kfdNode{files: map[string]string{}}
		for name, content := range s.machine.Files {
			if below, ok := strings.CutPrefix(name, prefix); ok {
				node.files[below] = content
			}
		}
		if len(node.files) == 0 {
			break
		}
		for _, f := range s.functions {
			if number(node.files["properties"], "simd_count") > 0 && isAt(node.files["properties"], f.address) {
				node.address = f.address
			}
		}
		t.nodes = append(t.nodes, node)
	}
	for _, f := range s.functions {
		mode := s.text(f.dir + "/current_compute_partition")
		at := slices.IndexFunc(t.nodes, func(n kfdNode) bool { return n.address == f.address })
		if mode == "" || at < 0 {
			continue
		}
		// The first node of a divided GPU is multiplied, to have that of the whole.
		properties := t.nodes[at].files["properties"]
		g := &gpu{function: f, mode: mode, whole: scaled(t.nodes[at].files, parts(mode), 1), render: number(properties, "drm_render_minor")}
		t.gpus[f.address] = g
	}
	return t
}

func isAt(properties, address string) bool {
	a, err := pci.Parse(address)
	const functionBits = 7
	return err == nil && number(properties, "domain") == int(a.Domain) &&
		number(properties, "location_id")&0xffff&^functionBits == int(a.LocationID())&^functionBits
}

// number finds a line "name number".
func number(properties, name string) int {
	for line := range strings.Lines(properties) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(value)) // 0 for what is no number.
			return n
		}
	}
	return 0
}

// scaled multiplies what a partition has a share of.
func scaled(files map[string]string, times, by int) map[string]string {
	out := map[string]string{}
	for name, content := range files {
		if path.Base(name) == "properties" {
			for _, shared := range []string{"simd_count", "array_count", "num_xcc", "size_in_bytes"} {
				content = replaced(content, shared, number(content, shared)*times/by)
			}
		}
		out[name] = content
	}
	return out
}

func replaced(properties, name string, value int) string {
	var lines []string
	for line := range strings.Lines(properties) {
		if strings.HasPrefix(line, name+" ") {
			line = fmt.Sprintf("%s %d\n", name, value)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// grow makes the attributes, the platform devices of partitions and the topology.
func (t *topology) grow(ctx context.Context) {
	if len(t.nodes) == 0 {
		return
	}
	xcp := 0
	for _, address := range slices.Sorted(maps.Keys(t.gpus)) {
		g := t.gpus[address]
		t.model.writable(ctx, g.function.dir+"/current_compute_partition", func() string { return g.mode + "\n" },
			//nolint:contextcheck // What it makes outlives the request.
			func(value string) syscall.Errno { return t.switchMode(g, value) })
		for i := 1; i < 8; i++ {
			name := fmt.Sprintf("renderD%d", g.render+i)
			if _, ok := t.model.machine.Files["sys/class/drm/"+name]; !ok {
				at := fmt.Sprintf("sys/devices/platform/amdgpu_xcp_%d/drm/%s", xcp, name)
				t.model.tree.Fixed(ctx, at+"/dev", fmt.Sprintf("226:%d\n", g.render+i))
				t.model.link(ctx, "sys/class/drm/"+name, at)
			}
			xcp++
		}
	}
	t.show(ctx)
}

// switchMode is amdgpu_gfx_set_compute_partition.
func (t *topology) switchMode(g *gpu, mode string) syscall.Errno {
	available := strings.Split(t.model.text(g.function.dir+"/available_compute_partition"), ", ")
	memory := t.model.text(g.function.dir + "/current_memory_partition")
	fits := memory == "NPS1" || mode == "DPX" && memory == "NPS2" || memory == "NPS4" && (mode == "QPX" || mode == "CPX")
	switch {
	case !slices.Contains(available, mode) || parts(mode) == 0 || !fits:
		return unix.EINVAL
	case g.function.users > 0:
		return unix.EBUSY
	case g.mode == mode:
		return 0
	}
	g.mode = mode
	t.nodes = slices.DeleteFunc(t.nodes, func(n kfdNode) bool { return n.address == g.function.address })
	for i := range parts(mode) {
		files := scaled(g.whole, 1, parts(mode))
		location := number(files["properties"], "location_id") & 0xffff &^ 7
		if t.model.machine.FunctionBits {
			location |= i
		} else {
			location |= i << 28
		}
		files["properties"] = replaced(replaced(files["properties"], "location_id", location), "drm_render_minor", g.render+i)
		id, _ := strconv.Atoi(strings.TrimSpace(g.whole["gpu_id"])) // A number in every machine.
		files["gpu_id"] = fmt.Sprintf("%d\n", id+i)
		t.nodes = append(t.nodes, kfdNode{address: g.function.address, files: files})
	}
	t.show(context.Background())
	return 0
}

// show numbers all nodes.
func (t *topology) show(ctx context.Context) {
	t.model.tree.Remove(strings.TrimSuffix(nodesDir, "/"))
	for i, node := range t.nodes {
		for name, content := range node.files {
			t.model.tree.Fixed(ctx, nodesDir+strconv.Itoa(i)+"/"+name, content)
		}
	}
}
