// SPDX-License-Identifier: Apache-2.0

package vfio

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Aliases are the modules that can give PCI functions to virtual machines, by the devices that they say they are for.
type Aliases []Alias

// Alias is a line "alias vfio_pci:PATTERN MODULE" of modules.alias.
type Alias struct{ Pattern, Module string }

const (
	aliasPrefix = "vfio_pci:"
	busPrefix   = "pci:"
	// generic holds any device. Kernels before 5.16 have no alias that says so.
	generic = "vfio_pci"
)

// ReadAliases reads lib/modules/RELEASE/modules.alias of the running kernel. A node without the file has none.
func ReadAliases(tree *sysfs.Tree) (Aliases, error) {
	release, err := tree.ReadString(sysfs.ProcOSRelease)
	if err != nil {
		return nil, err
	}
	var found Aliases
	err = tree.Lines(path.Join(sysfs.KernelModules, release, "modules.alias"), func(line string) bool {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "alias" && strings.HasPrefix(fields[1], aliasPrefix) {
			found = append(found, Alias{Pattern: strings.TrimPrefix(fields[1], aliasPrefix), Module: fields[2]})
		}
		return true
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

// Module returns the module for a device by the text of its file modalias: that of the matching pattern with the fewest wildcards, the
// first by name if there are several. It is vfio_pci if no pattern matches.
func (a Aliases) Module(modalias string) string {
	best := Alias{Module: generic, Pattern: strings.Repeat("*", len(modalias)+1)}
	for _, candidate := range a {
		// The patterns of the kernel are those of path.Match, as no identifier has a slash.
		match, err := path.Match(candidate.Pattern, strings.TrimPrefix(modalias, busPrefix))
		if err == nil && match && better(candidate, best) {
			best = candidate
		}
	}
	return best.Module
}

func better(a, b Alias) bool {
	order := cmp.Or(cmp.Compare(strings.Count(a.Pattern, "*"), strings.Count(b.Pattern, "*")), cmp.Compare(a.Module, b.Module))
	return order < 0
}

// ErrNotLoaded says that the driver for a device is not in the kernel.
var ErrNotLoaded = errors.New("is not loaded")

// DriverFor returns the name of the driver that gives a function to virtual machines. The name is the kernel's own, from the module's
// directory: it is not always like the module's. It fails with ErrNotLoaded if the module is not loaded.
func (a Aliases) DriverFor(tree *sysfs.Tree, address pci.Address) (string, error) {
	modalias, err := tree.ReadString(path.Join(sysfs.PCIDevice(address.String()), "modalias"))
	if err != nil {
		return "", err
	}
	module := a.Module(modalias)
	links, err := tree.ReadDir(path.Join(sysfs.Module(module), "drivers"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, link := range links {
		if name, ok := strings.CutPrefix(link, busPrefix); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("the module %s, which gives %s to virtual machines, %w: run modprobe %s on the node, "+
		"and name it in /etc/modules-load.d", module, address, ErrNotLoaded, module)
}
