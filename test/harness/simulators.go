// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// Simulators are hardware that answers, on the nodes of a cluster: processes of the node, which end with it.
type Simulators struct {
	h *Harness
	// dir has the programs and the images.
	dir string
}

// Simulators builds the programs into a directory.
func (h *Harness) Simulators(ctx context.Context, dir string) (*Simulators, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of simulators: %w", err)
	}
	_, err := h.run(ctx, nil, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, "pcisim"),
		"./test/pcisim/cmd")
	if err != nil {
		return nil, err
	}
	return &Simulators{h: h, dir: dir}, nil
}

// NVMLImage gives the nodes an image of the kubelet plugin with the simulator's fettle-nvml, and returns its tag.
func (s *Simulators) NVMLImage(ctx context.Context) (string, error) {
	platform := "linux_" + runtime.GOARCH
	bin, images, tag := filepath.Join(s.dir, "bin"), filepath.Join(s.dir, "images"), s.h.Version+"-nvmlsim"
	into := filepath.Join(bin, platform)
	for _, dir := range []string{bin, images} {
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("build an image with simulated GPUs: %w", err)
		}
	}
	if err := os.CopyFS(into, os.DirFS(filepath.Join(s.h.Root, "dist", platform))); err != nil {
		return "", fmt.Errorf("build an image with simulated GPUs: %w", err)
	}
	if err := s.h.buildSimulatedNVML(ctx, s.h.Root, filepath.Join(into, "fettle-nvml")); err != nil {
		return "", err
	}
	_, err := s.h.run(ctx, nil, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", linked(s.h.Version),
		"-o", into+"/", "./cmd/fettle-kubeletplugin", "./cmd/fettle-mps")
	if err != nil {
		return "", err
	}
	_, err = s.h.run(ctx, nil, "go", "run", "-trimpath", "./deployments/images", "-bin", bin, "-version", tag, "-arch", runtime.GOARCH,
		"-out", images)
	if err != nil {
		return "", err
	}
	return tag, s.h.LoadImages(ctx, images)
}

// NVMLValues are the chart's values with which the plugin asks the simulator, on nodes that have one.
func NVMLValues(tag string) Values {
	return Values{
		"nvidia":        Values{"enabled": true, "driverRoot": MachineRoot},
		"kubeletPlugin": Values{"image": Values{"tag": tag}},
	}
}

// vfioMinors is the first minor of VFIO's device nodes on a simulated node. MIG capabilities have those below it. They count on with each
// bind, and what is beyond the last terminal does not open.
const vfioMinors, terminals, terminalMajor = 54, 63, 4

// StartNVML makes NVIDIA's GPUs of a node's machine those of a model of nvmlsim. A plugin that runs already does not see it.
func (s *Simulators) StartNVML(ctx context.Context, node, model string) (nvmlsim.Machine, error) {
	tree := s.h.MachineDir(node)
	used, err := minorsUsed(filepath.Join(tree, "dev"))
	if err != nil {
		return nvmlsim.Machine{}, err
	}
	var free []int
	for minor := 1; minor < vfioMinors; minor++ {
		if !used[minor] {
			free = append(free, minor)
		}
	}
	file := nvmlsim.DefaultFile(filepath.Join(tree, nvmlsim.WritableDir))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nvmlsim.Machine{}, fmt.Errorf("make the directory of the simulated GPUs: %w", err)
	}
	machine, err := nvmlsim.Adopt(file, tree, model, free...)
	if err != nil {
		return nvmlsim.Machine{}, err
	}
	if err := s.placeTools(ctx, tree); err != nil {
		return nvmlsim.Machine{}, err
	}
	// The plugin has the driver's root and /proc without the right to write, and what is mounted below them with it.
	const script = `for dir; do mount --bind "$dir" "$dir"; done`
	_, err = s.h.OnNode(ctx, node, append([]string{"sh", "-c", script, "sh"}, writable()...)...)
	return machine, err
}

// writable are the directories of a node's machine that fettle-nvml of the simulator writes to.
func writable() []string {
	return []string{MachineRoot + "/" + nvmlsim.WritableDir, MachineRoot + "/proc/driver/nvidia/capabilities"}
}

// linked are the linker's flags of programs of which NVIDIA's library is simulated: it may write to its state.
func linked(version string) string {
	var state []string
	for _, dir := range writable() {
		state = append(state, "/driver-root"+strings.TrimPrefix(dir, MachineRoot))
	}
	return "-s -w -X main.version=" + version + " -X github.com/fettle-dev/fettle/pkg/nvml.Simulated=" + strings.Join(state, ":")
}

// StopNVML ends what StartNVML began.
func (s *Simulators) StopNVML(ctx context.Context, node string) error {
	_, err := s.h.OnNode(ctx, node, append([]string{"umount", "-l"}, writable()...)...)
	return err
}

// machineFile is the machine's text in the node's host tree.
const machineFile = "machine.txtar"

// writeMachine writes a machine's text into the host tree of the node that was placed as it.
func (s *Simulators) writeMachine(node string, m *sim.Machine) error {
	openable, err := m.Openable()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.h.MachineDir(node), machineFile), openable.Format(), 0o600); err != nil {
		return fmt.Errorf("write the machine of %s: %w", node, err)
	}
	return nil
}

// servesSys waits until a program serves the sys of a node.
func (s *Simulators) servesSys(ctx context.Context, node, name string) error {
	return s.h.awaitProcess(ctx, node, name, func(ctx context.Context) error {
		_, err := s.h.OnNode(ctx, node, "sh", "-c", `[ "$(stat -f -c %T "$0")" = fuseblk ] || [ "$(stat -f -c %T "$0")" = fuse ]`,
			MachineRoot+"/sys")
		return err
	})
}

// FPGAInput is where the node has the input of the process that StartFPGA starts. It takes fpgasim.Command as lines of JSON.
const FPGAInput = runDir + "/fpgasim.in"

// StartFPGA makes the DFL cards of a node react as those of a kernel. The machine is what the node was placed as. A plugin that runs
// already does not see it.
func (s *Simulators) StartFPGA(ctx context.Context, node string, m *sim.Machine) error {
	_, err := s.h.run(ctx, nil, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(s.dir, "fpgasim"),
		"./test/fpgasim/cmd")
	if err != nil {
		return err
	}
	if err := s.writeMachine(node, m); err != nil {
		return err
	}
	err = s.h.startProcess(ctx, node, filepath.Join(s.dir, "fpgasim"), "-root", MachineRoot+"/sys", "-machine",
		MachineRoot+"/"+machineFile, "-shared", "-dev", MachineRoot+"/dev")
	if err != nil {
		return err
	}
	return s.servesSys(ctx, node, "fpgasim")
}

// StartPCI makes the PCI functions of a node react as those of a kernel. The machine is what the node was placed as. A plugin that runs
// already does not see it.
func (s *Simulators) StartPCI(ctx context.Context, node string, m *sim.Machine) error {
	if err := s.writeMachine(node, m); err != nil {
		return err
	}
	used, err := minorsUsed(filepath.Join(s.h.MachineDir(node), "dev"))
	if err != nil {
		return err
	}
	err = s.h.startProcess(ctx, node, filepath.Join(s.dir, "pcisim"), "-tree", MachineRoot, "-machine", MachineRoot+"/"+machineFile,
		"-major", strconv.Itoa(terminalMajor), "-vfio-minor", strconv.Itoa(vfioMinors),
		"-drm-minor", strconv.Itoa(slices.Max(append(slices.Collect(maps.Keys(used)), 0))+1))
	if err != nil {
		return err
	}
	return s.servesSys(ctx, node, "pcisim")
}

// StopPCI ends what StartPCI began: the node has the sys that it was placed with.
func (s *Simulators) StopPCI(ctx context.Context, node string) error {
	if _, err := s.h.OnNode(ctx, node, "umount", "-l", MachineRoot+"/sys"); err != nil {
		return err
	}
	return s.h.stopProcess(ctx, node, "pcisim")
}

// minorsUsed are the terminals that a machine's nodes have the numbers of.
func minorsUsed(dev string) (map[int]bool, error) {
	used := map[int]bool{}
	err := filepath.WalkDir(dev, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeCharDevice == 0 {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if unix.Major(stat.Rdev) == terminalMajor && unix.Minor(stat.Rdev) <= terminals {
			used[int(unix.Minor(stat.Rdev))] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read which device numbers the machine has: %w", err)
	}
	return used, nil
}
