// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/nvml"
)

// printDriver prints what NVIDIA's own list says that containers need of the driver below a root. No library of the driver is loaded: the
// version that the list is for is the kernel module's, or else that of the files.
func printDriver(root, version string, stdout io.Writer) error {
	root = cmp.Or(root, "/")
	if err := installed(root, version); err != nil {
		return err
	}
	list, err := listOf(root, version)
	if err != nil {
		return err
	}
	driver, err := driverOf(root, list)
	if err != nil {
		return err
	}
	if err := driver.Validate(); err != nil {
		return fmt.Errorf("NVIDIA's list of the driver's files below %s: %w", root, err)
	}
	return json.NewEncoder(stdout).Encode(driver)
}

// installed looks for the library that every other thing of the driver is of no use without, in the version that the kernel runs.
func installed(root, version string) error {
	const prefix = nvml.CUDALibrary + "."
	found, err := lookup.NewLibraryLocator(lookup.WithRoot(root), lookup.WithLogger(silent{})).Locate(prefix + "*.*")
	if err != nil && !errors.Is(err, lookup.ErrNotFound) {
		return fmt.Errorf("look for %s below %s: %w", nvml.CUDALibrary, root, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("%w: no %sVERSION below %s in the usual directories or its ld.so.cache", nvml.ErrNoDriver, prefix, root)
	}
	if version == "" || slices.ContainsFunc(found, func(name string) bool { return filepath.Base(name) == prefix+version }) {
		return nil
	}
	return fmt.Errorf("the kernel runs version %s of NVIDIA's driver, and the libraries are %s: install those of the version, or load the "+
		"module of theirs (reboot the node)", version, strings.Join(found, ", "))
}

// listOf asks the toolkit for what all GPUs have in common. Of its hooks those are asked for that we have of our own; its own program for
// them is never run.
func listOf(root, version string) (*specs.ContainerEdits, error) {
	lib, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithLogger(silent{}),
		nvcdi.WithDriverRoot(root), nvcdi.WithDevRoot(root),
		nvcdi.WithNvmlLib(&loaded{version: version}), nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithDisabledHooks(nvcdi.AllHooks), nvcdi.WithEnabledHooks(nvcdi.CreateSymlinksHook, nvcdi.UpdateLDCacheHook),
	)
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's list: %w", err)
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's list of the driver's files below %s: %w", root, err)
	}
	return edits.ContainerEdits, nil
}

// driverOf translates the list. Device nodes are left out: they come with the GPU.
func driverOf(root string, list *specs.ContainerEdits) (*nvml.Driver, error) {
	// NVIDIA_CTK_LIBCUDA_DIR, which is there as well, nobody reads.
	driver := &nvml.Driver{Files: []nvml.DriverFile{}, Env: slices.DeleteFunc(slices.Clone(list.Env), func(env string) bool {
		return !strings.HasPrefix(env, "NVIDIA_VISIBLE_DEVICES=")
	})}
	places := map[string]bool{}
	for _, m := range list.Mounts {
		below, ok := cutRoot(root, m.HostPath)
		if !ok {
			return nil, fmt.Errorf("%s is outside of the driver's root %s, to which a link leads: install the driver with relative links",
				m.HostPath, root)
		}
		if places[m.ContainerPath] {
			continue
		}
		places[m.ContainerPath] = true
		driver.Files = append(driver.Files, nvml.DriverFile{Path: below, ContainerPath: m.ContainerPath})
		if version, ok := strings.CutPrefix(path.Base(m.ContainerPath), nvml.CUDALibrary+"."); ok {
			driver.Version = version
		}
	}
	for _, h := range list.Hooks {
		takeHook(driver, h.Args)
	}
	addSonames(root, driver)
	return driver, nil
}

// cutRoot is where a path is below a root.
func cutRoot(root, name string) (string, bool) {
	if root == "/" {
		return path.Clean(name), path.IsAbs(name)
	}
	rest, ok := strings.CutPrefix(path.Clean(name), strings.TrimSuffix(root, "/")+"/")
	return "/" + rest, ok
}

// takeHook reads the toolkit's own command line: PROGRAM COMMAND [--link TARGET::PATH | --folder DIRECTORY]...
func takeHook(driver *nvml.Driver, args []string) {
	for i := 2; i+1 < len(args); i += 2 {
		switch value := args[i+1]; args[i] {
		case "--link":
			if target, name, ok := strings.Cut(value, "::"); ok {
				addLink(driver, nvml.DriverLink{Path: name, Target: target})
			}
		case "--folder":
			if !slices.Contains(driver.LibraryDirs, value) {
				driver.LibraryDirs = append(driver.LibraryDirs, value)
			}
		}
	}
}

// addLink adds a link, unless there is something in its place.
func addLink(driver *nvml.Driver, link nvml.DriverLink) {
	taken := slices.ContainsFunc(driver.Links, func(l nvml.DriverLink) bool { return l.Path == link.Path }) ||
		slices.ContainsFunc(driver.Files, func(f nvml.DriverFile) bool { return f.ContainerPath == link.Path })
	if !taken {
		driver.Links = append(driver.Links, link)
	}
}

// addSonames links each library by the name that the loader's cache has for it, which the toolkit leaves to an ldconfig that may write into
// the container's directories. Ours may not.
func addSonames(root string, driver *nvml.Driver) {
	for _, f := range driver.Files {
		dir, name := path.Split(f.ContainerPath)
		if !slices.Contains(driver.LibraryDirs, path.Clean(dir)) {
			continue
		}
		soname := sonameOf(filepath.Join(root, f.Path))
		if soname != "" && soname != name && !strings.Contains(soname, "/") {
			addLink(driver, nvml.DriverLink{Path: path.Join(dir, soname), Target: name})
		}
	}
}

// sonameOf is empty where a file has none, or is no library.
func sonameOf(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	object, err := hostlib.ReadObject(f)
	if err != nil {
		return ""
	}
	return object.Soname
}

// loaded stands for NVML where only the version is asked for. NVML itself would initialise every GPU of a cold driver for it, while a
// container waits, and would not tell it where the libraries do not fit the module.
type loaded struct {
	gonvml.Interface
	version string
}

func (l *loaded) Init() gonvml.Return {
	if l.version == "" {
		return gonvml.ERROR_LIBRARY_NOT_FOUND
	}
	return gonvml.SUCCESS
}

func (l *loaded) Shutdown() gonvml.Return { return gonvml.SUCCESS }

func (l *loaded) SystemGetDriverVersion() (string, gonvml.Return) { return l.version, gonvml.SUCCESS }

// silent is a log that nobody reads: what the list lacks is told by what it has.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Errorf(string, ...any)   {}
func (silent) Infof(string, ...any)    {}
func (silent) Warningf(string, ...any) {}
func (silent) Tracef(string, ...any)   {}
