// SPDX-License-Identifier: Apache-2.0

// Package hostfiles finds on a node what presets name: files, libraries, tools, device nodes, and the files of a vendor's driver. The
// kubelet plugin uses it for claims, and the command line to show what a node would do.
package hostfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/hooktext"
	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hook"
	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/pkg/step"
)

const (
	// libraryDir is the directory of a container for the node's libraries. toolDir is the directory for programs, which every image searches.
	libraryDir = hook.Prefix + "/lib"
	toolDir    = "/usr/bin"
	// maxTools limits the programs of one directory. Each becomes an argument of the hook.
	maxTools = 256
	// maxSearches limits how many lists of libraries and tools, and directories of programs, presets of a namespace have for one request. Each
	// is looked through below a directory that its tenants may write to, which may take seconds.
	maxSearches = 64
)

// Finder finds on a node what presets name.
type Finder struct {
	// Root is the host's tree. Directories lists those that the plugin sees; if it is empty, the plugin sees all of the tree.
	Root        string
	Directories []string
	// Hook returns the path of fettle-hook on the host. It is nil if the hook is not installed. Ldconfig is the path of the host's ldconfig.
	Hook     func() (string, error)
	Ldconfig string
	// Allowed lists the directories below which namespaced presets may name files. Scratch says that claims may have memory of their own.
	Allowed []preset.AllowedHostPath
	Scratch bool
	// MaxScratch is the most that a sizeLimit may say. 0: no limit.
	MaxScratch int64
	// Mounts makes mounts that only one claim has. It is nil for a command that only looks: then the original paths are shown.
	Mounts *hostmount.Dir
	// Copies says that the plugin may mount, and so presets of the administrator may have copies, too. Writable lists more trees of the host
	// that containers may write to, as patterns.
	Copies   bool
	Writable []string
	// Drivers knows the files of vendors' drivers. It is nil away from the node.
	Drivers *Drivers
}

// Found is what one request of a claim gets from presets.
type Found struct {
	// Shared are edits that other claims may have as well. Own are edits that only this claim has, and Steps prepare what Own needs.
	Shared, Own container.Edits
	Steps       []step.Step
	// Overrides says which preset has a file or link of the container instead of another preset.
	Overrides []string
	// Givers names the preset of each mount, by its path in the container, and of each variable.
	Givers map[string]string
}

// Empty reports whether there is nothing to edit.
func (f *Found) Empty() bool { return f.Shared.Empty() && f.Own.Empty() }

// lookup makes the edits of one request.
type lookup struct {
	files *Finder
	// paths says where paths of the host lead, and places what the container has at its own.
	paths  *locator
	places *places
	// claim is the UID of the claim.
	claim string
	// namespaced has the namespace of each mount of a DevicePreset, by its path in the container. searches counts what is looked through for
	// DevicePresets.
	namespaced map[string]string
	searches   int
	edits      container.Edits
	// own are edits that only the claim has. steps prepare what they need.
	own   container.Edits
	steps []step.Step
	// fallbackLinks are TARGET::PATH, and made only where the image has no file of that name.
	fallbackLinks []string
	// absent lists the container paths of optional mounts that the node does not have.
	absent []string
	// dirs lists directories of the container with libraries of a driver.
	dirs []string
	errs []error
}

// FindBeside is Find while containers may write to more trees.
func (f *Finder) FindBeside(claim string, r preset.Request, writable []string) (Found, error) {
	now := *f
	now.Writable = slices.Concat(f.Writable, writable)
	return now.Find(claim, r)
}

// Find makes the edits for one request of a claim. An error names each preset, the value, and what is missing on this node.
func (f *Finder) Find(claim string, r preset.Request) (Found, error) {
	host, err := rootfs.Open(f.Root)
	if err != nil {
		return Found{}, err
	}
	defer func() { _ = host.Close() }() // it was only read
	l := lookup{
		files: f, claim: claim, namespaced: map[string]string{}, paths: newLocator(host, f),
		places: &places{presets: r.Presets, taken: map[string]place{}},
	}
	for i := range r.Env {
		l.fail(l.variable(&r.Env[i]), r.Env[i].From[len(r.Env[i].From)-1], "variable "+r.Env[i].Name)
	}
	for i := range r.Mounts {
		before := len(l.places.mounted)
		l.fail(l.mount(&r.Mounts[i]), r.Mounts[i].From, "mount "+r.Mounts[i].ContainerPath)
		if len(l.places.mounted) > before {
			l.places.takeMount(r.Mounts[i].From)
		}
	}
	for i := range r.Nodes {
		l.fail(l.node(&r.Nodes[i]), r.Nodes[i].From, "device node "+r.Nodes[i].Path)
	}
	for i := range slices.Backward(r.Libraries) { // of two libraries of one name, the later preset wins
		l.fail(l.libraries(&r.Libraries[i]), r.Libraries[i].From, "libraries")
	}
	for i := range slices.Backward(r.Tools) {
		l.fail(l.tools(&r.Tools[i]), r.Tools[i].From, "tools")
	}
	for i := range r.Drivers {
		l.fail(l.driver(&r.Drivers[i]), r.Drivers[i].From, "driver of "+string(r.Drivers[i].Vendor))
	}
	for i := range r.ToolDirs {
		l.fail(l.toolDir(&r.ToolDirs[i]), r.ToolDirs[i].From, "PATH "+r.ToolDirs[i].Path)
	}
	l.hooks(&r)
	return Found{
		Shared: l.edits, Own: l.own, Steps: l.steps, Overrides: l.places.overrides, Givers: l.places.givers(r.Env),
	}, errors.Join(l.errs...)
}

// checkVisible refuses a path of the host that the plugin cannot see.
func (f *Finder) checkVisible(name string) error {
	in := func(dir string) bool { return mountpath.Within(name, dir) }
	if len(f.Directories) == 0 || slices.ContainsFunc(f.Directories, in) {
		return nil
	}
	return fmt.Errorf("%s is not below a directory of the node that the plugin sees (%s): add it to the chart's presets.hostDirectories",
		name, strings.Join(f.Directories, ", "))
}

func (l *lookup) fail(err error, from preset.Origin, what string) {
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s, %s: %w", from, what, err))
	}
}

// variable refuses a variable that no spec can hold, since its value may come from a ConfigMap. Here it is still known which preset it is
// from.
func (l *lookup) variable(v *preset.Variable) error {
	text := v.Name + "=" + v.Value
	if err := container.CheckVariable(text); err != nil {
		return err
	}
	l.edits.Env = append(l.edits.Env, text)
	return nil
}

// mount mounts what the node has at a path now. It follows links that only root can change.
func (l *lookup) mount(m *preset.Mount) error {
	switch {
	case m.Scratch != nil:
		return l.scratch(m)
	case m.From.Namespace != "":
		return l.ownMount(m)
	}
	if err := l.files.checkVisible(m.HostPath); err != nil {
		return l.leaveOut(m, err) // nothing can be found below it
	}
	err := l.give(container.Mount{
		HostPath: m.HostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly == nil || *m.ReadOnly,
		NonRecursive: !m.Recursive, HostToContainer: m.Propagation == v1alpha1.PropagationHostToContainer,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return l.leaveOut(m, notHere(m))
	}
	return err
}

// leaveOut leaves out an optional mount that the node does not have. For any other it says why the claim must wait.
func (l *lookup) leaveOut(m *preset.Mount, why error) error {
	if !m.Optional {
		return why
	}
	l.absent = append(l.absent, m.ContainerPath)
	return nil
}

func notHere(m *preset.Mount) error {
	return fmt.Errorf("%s is not on this node: put it there, or say optional", m.HostPath)
}

func (l *lookup) add(m container.Mount) {
	l.places.mounted = append(l.places.mounted, m)
	l.edits.Mounts = append(l.edits.Mounts, m)
}

func (l *lookup) node(n *preset.Node) error {
	stat, err := l.paths.host.Lstat(n.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.Optional:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is not on this node: load its driver, or say optional")
	case err != nil:
		return err
	case stat.Mode&unix.S_IFMT != unix.S_IFCHR:
		return fmt.Errorf("is %s, want a character device", rootfs.TypeName(stat.Mode))
	}
	major, minor := int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	if err := container.CheckNode(n.Path, major, minor); err != nil {
		return err
	}
	permissions := "rw"
	if n.ReadOnly {
		permissions = "r"
	}
	l.edits.Nodes = append(l.edits.Nodes, container.Node{
		Path: n.Path, Major: major, Minor: minor, Permissions: permissions,
	})
	return nil
}

// system returns the system that the files of a preset belong to, and its path on the host: the host itself, or a driver's directory on it.
// It returns nil if an optional one does not exist.
func (l *lookup) system(f *preset.Files) (_ *hostlib.Host, root string, err error) {
	if err := l.search(f.From.Namespace); err != nil {
		return nil, "", err
	}
	if f.From.Namespace != "" {
		if root, err = l.checkMayRead(f.From.Namespace, cmp.Or(f.Root, "/")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("root: %w", err)
		}
	} else if root = "/"; f.Root != "" && f.Root != root {
		if err := l.files.checkVisible(f.Root); err != nil {
			return nil, "", err
		}
		root, err = l.checkMayRead("", f.Root)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.Optional:
		return nil, "", nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", fmt.Errorf("the root %s is not on this node: install the driver there, or say optional", f.Root)
	case err != nil:
		return nil, "", err
	}
	host, err := hostlib.Open(filepath.Join(l.files.Root, root), hostlib.Config{LibraryDirs: f.Directories, ToolDirs: f.Directories})
	return host, root, err
}

// search counts one more search for a preset of a namespace. Those of the administrator's are not counted.
func (l *lookup) search(namespace string) error {
	if namespace == "" {
		return nil
	}
	if l.searches++; l.searches > maxSearches {
		return fmt.Errorf("presets of the namespace have more than %d lists of libraries and tools, and directories in PATH, for the request: "+
			"name several files in one list", maxSearches)
	}
	return nil
}

func (l *lookup) libraries(f *preset.Files) error {
	host, root, err := l.system(f)
	if err != nil || host == nil {
		return err
	}
	defer func() { _ = host.Close() }()
	found, err := host.Libraries(f.Names)
	if err != nil {
		return err
	}
	if err := unmet(found.Missing, f.Optional); err != nil {
		return err
	}
	for i := range found.Found {
		if err := l.library(f.From, root, &found.Found[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *lookup) tools(f *preset.Files) error {
	host, root, err := l.system(f)
	if err != nil || host == nil {
		return err
	}
	defer func() { _ = host.Close() }()
	found, err := host.Tools(f.Names)
	if err != nil {
		return err
	}
	if err := unmet(found.Missing, f.Optional); err != nil {
		return err
	}
	for i := range found.Found {
		if _, err := l.bind(&f.From, path.Join(root, found.Found[i].HostPath), path.Join(toolDir, found.Found[i].Name)); err != nil {
			return err
		}
	}
	return nil
}

// toolDir links the programs of a directory that is appended to PATH into a directory that every image searches. Programs of the image win,
// as if its directories came first.
func (l *lookup) toolDir(d *preset.Directory) error {
	in := func(dir string) bool { return mountpath.Within(d.Path, dir) }
	m := l.places.mountAbove(d.Path)
	switch {
	case m == nil && slices.ContainsFunc(l.absent, in):
		return nil
	case m == nil:
		return errors.New("is below no mount of a preset, so its programs are not known: mount the directory, or name them as tools")
	}
	hostDir, top, err := l.toolPlace(m, d.Path)
	if err != nil {
		return err
	}
	names, err := l.paths.host.ReadDir(hostDir)
	if err != nil {
		return err
	}
	found := 0
	for _, name := range names {
		at, stat, err := l.paths.host.Resolve(path.Join(hostDir, name))
		if err != nil || !mountpath.Within(at, top) || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o111 == 0 {
			continue // a link that leads nowhere is no program
		}
		link := path.Join(d.Path, name) + hooktext.LinkSeparator + path.Join(toolDir, name)
		if linkable(link) != nil {
			continue // nobody calls a program by such a name
		}
		if found++; found > maxTools {
			return fmt.Errorf("has more than %d programs: name those that are needed as tools", maxTools)
		}
		l.fallbackLinks = append(l.fallbackLinks, link)
	}
	return nil
}

// toolPlace returns where on the host a directory of a mount is, and what links in it may lead to: those of a tenant must not tell what is
// elsewhere.
func (l *lookup) toolPlace(m *container.Mount, dir string) (hostDir, top string, err error) {
	namespace, top := l.namespaced[m.ContainerPath], "/"
	if err := l.search(namespace); err != nil {
		return "", "", err
	}
	if namespace != "" {
		if top, err = l.checkMayRead(namespace, m.HostPath); err != nil {
			return "", "", err
		}
	}
	hostDir, err = l.checkMayRead(namespace, path.Join(m.HostPath, strings.TrimPrefix(dir, m.ContainerPath)))
	return hostDir, top, err
}

// bind mounts a file of the node, unless another mount or a link has that place already.
func (l *lookup) bind(from *preset.Origin, hostPath, containerPath string) (bool, error) {
	if !l.places.take(containerPath, place{from: *from, content: hostPath}) {
		return false, nil
	}
	m := fileMount(hostPath, containerPath)
	if from.Namespace != "" {
		return true, l.mountAllowed(from.Namespace, m)
	}
	return true, l.give(m)
}

func fileMount(hostPath, containerPath string) container.Mount {
	return container.Mount{HostPath: hostPath, ContainerPath: containerPath, ReadOnly: true, NonRecursive: true}
}

func unmet(missing []hostlib.Missing, optional bool) error {
	if optional {
		return nil
	}
	var errs []error
	for _, m := range missing {
		errs = append(errs, m)
	}
	return errors.Join(errs...)
}

// hooks adds the runs of fettle-hook. Links come first, so that the loader's cache names their targets. It refuses what fettle-hook would
// refuse, since a failing hook keeps a container from starting.
func (l *lookup) hooks(r *preset.Request) {
	var dirs []string
	add := func(dir string) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if slices.ContainsFunc(l.places.mounted, func(m container.Mount) bool { return path.Dir(m.ContainerPath) == libraryDir }) {
		add(libraryDir)
	}
	for _, d := range r.LibraryDirs {
		l.fail(hook.CheckDirs([]string{d.Path}), d.From, v1alpha1.EnvLibraryPath)
		add(d.Path)
	}
	for _, dir := range l.dirs {
		add(dir)
	}
	for i := range r.Hooks {
		h := &r.Hooks[i]
		for _, dir := range h.Directories {
			l.fail(hook.CheckDirs([]string{dir}), h.From, "hook ldconfig")
			add(dir)
		}
		for _, link := range h.Links {
			l.fail(l.places.link(link, h.From), h.From, "hook links")
		}
	}
	if links := len(l.places.links) + len(l.fallbackLinks); links > 0 {
		if err := hook.CheckLinks(links); err != nil && len(l.errs) == 0 {
			l.errs = append(l.errs, fmt.Errorf("libraries, tools and links of all presets: %w: name fewer libraries by a *", err))
		}
		l.hook(flags(flags([]string{"links"}, "--link", l.places.links), "--yielding-link", l.fallbackLinks))
	}
	if len(dirs) > 0 {
		if err := hook.CheckDirs(dirs); err != nil && len(l.errs) == 0 {
			l.errs = append(l.errs, fmt.Errorf("directories for libraries of all presets: %w", err))
		}
		args := flags([]string{"ldconfig"}, "--dir", dirs)
		if l.files.Ldconfig != "" {
			args = append(args, "--ldconfig", l.files.Ldconfig)
		}
		l.hook(args)
	}
}

// linkable says what is wrong with a link, TARGET::PATH.
func linkable(text string) error {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return fmt.Errorf("link %q: want printable characters only", text)
	}
	_, err := hook.ParseLink(text)
	return err
}

func flags(args []string, flag string, values []string) []string {
	for _, value := range values {
		args = append(args, flag, value)
	}
	return args
}

// hook adds a run of fettle-hook.
func (l *lookup) hook(args []string) {
	if l.files.Hook == nil {
		l.errs = append(l.errs, errors.New("the plugin has no hook to make libraries and links known: set its --hook-command"))
		return
	}
	at, err := l.files.Hook()
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	l.edits.Hooks = append(l.edits.Hooks, container.Hook{Path: at, Args: append([]string{path.Base(at)}, args...)})
}
