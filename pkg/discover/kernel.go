// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// The kinds of nodes that a DRM driver makes (drivers/gpu/drm/drm_drv.c). The number after the name is the minor's business
// only: it changes when drivers load in another order.
const (
	drmCard   = "card"
	drmRender = "renderD"
)

// drmNode is one DRM node of a PCI function, from its directory drm/<name>.
type drmNode struct {
	name string
	dir  string
	node container.Node
}

// readDRM finds the function's node of one kind. Absent is fs.ErrNotExist.
func readDRM(tree *sysfs.Tree, f pci.Function, kind string) (drmNode, error) {
	dir := path.Join(f.Dir(), "drm")
	names, err := tree.ReadDir(dir)
	if err != nil {
		return drmNode{}, err
	}
	i := slices.IndexFunc(names, func(name string) bool { return isNumbered(name, kind) })
	if i < 0 {
		return drmNode{}, fmt.Errorf("list %s: no %s node: %w", sysfs.HostPath(dir), kind, fs.ErrNotExist)
	}
	name := names[i]
	major, minor, err := tree.ReadDev(path.Join(dir, name, "dev"))
	if err != nil {
		return drmNode{}, err
	}
	return drmNode{name: name, dir: path.Join(dir, name), node: newNode(path.Join("dri", name), major, minor)}, nil
}

// renderNode adds the function's render node, without which the device is of no use.
func (d *draft) renderNode(f pci.Function) (drmNode, bool) {
	render, err := readDRM(d.tree, f, drmRender)
	if err != nil {
		d.withhold(ReasonDeviceNumbersUnknown, err)
		return drmNode{}, false
	}
	d.node(render.node)
	return render, true
}

// optionalRenderNode adds the function's render node where it has one. NVIDIA's has one while nvidia-drm is loaded; programs that render
// need it, those that compute do not.
func (d *draft) optionalRenderNode(f pci.Function) {
	render, err := readDRM(d.tree, f, drmRender)
	switch {
	case err == nil:
		d.node(render.node)
	case !errors.Is(err, fs.ErrNotExist):
		d.note(ReasonDeviceNumbersUnknown, err)
	}
}

// cardNode adds the function's primary node, which only display and some tools need.
func (d *draft) cardNode(f pci.Function) (drmNode, bool) {
	card, err := readDRM(d.tree, f, drmCard)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.note(ReasonDeviceNumbersUnknown, err)
		}
		return drmNode{}, false
	}
	d.node(card.node)
	return card, true
}

// isNumbered reports whether name is prefix and a number: card0, but not card0-DP-1.
func isNumbered(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	_, err := strconv.ParseUint(digits, 10, 32)
	return ok && err == nil
}

// moduleVersion is the version of a loaded kernel module. Modules that come with the kernel have none of their own: then it is
// the kernel's, without the distribution's suffix, which would make it a pre-release. Empty, without an error, if neither is
// there.
func moduleVersion(tree *sysfs.Tree, module string) (string, error) {
	version, err := tree.ReadString(path.Join(sysfs.Module(module), "version"))
	if err == nil && version != "" {
		return version, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	release, err := tree.ReadString(sysfs.ProcOSRelease)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if end := strings.IndexAny(release, "-+_"); end >= 0 {
		release = release[:end]
	}
	return release, nil
}

// RenderNode returns the render node of a function that a DRM driver holds.
func RenderNode(tree *sysfs.Tree, address pci.Address) (container.Node, error) {
	render, err := readDRM(tree, pci.Function{Address: address}, drmRender)
	return render.node, err
}

// GraphicsNodes returns the nodes of a function that a DRM driver holds: its render node and, if there is one, its card node.
func GraphicsNodes(tree *sysfs.Tree, address pci.Address) ([]container.Node, error) {
	f := pci.Function{Address: address}
	render, err := readDRM(tree, f, drmRender)
	if err != nil {
		return nil, fmt.Errorf("find the render node of %s: %w", address, err)
	}
	card, err := readDRM(tree, f, drmCard)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []container.Node{render.node}, nil
	case err != nil:
		return nil, fmt.Errorf("find the card node of %s: %w", address, err)
	}
	return []container.Node{card.node, render.node}, nil
}
