// SPDX-License-Identifier: Apache-2.0

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
	// libraryDir is the directory of a container that has the node's libraries, toolDir that for programs, which every image searches.
	libraryDir = hook.Prefix + "/lib"
	toolDir    = "/usr/bin"
	// maxTools is how many programs of one directory are made known: each is an argument of the hook.
	maxTools = 256
)

// Finder looks up on a node what presets name.
type Finder struct {
	// Root is the host's tree, of which the plugin has what is below the directories. None: it has all.
	Root        string
	Directories []string
	// Hook returns where fettle-hook is on the host; nil where it is not installed. Ldconfig is the host's own.
	Hook     func() (string, error)
	Ldconfig string
	// Allowed are the directories below which presets of namespaces may name files. Scratch says that claims may have memory of their own.
	Allowed []preset.AllowedHostPath
	Scratch bool
	// Mounts is where mounts are that one claim alone has. Nil, as for a command that only looks: they are shown as those that they are of.
	Mounts *hostmount.Dir
	// Drivers knows the files of vendors' drivers; nil where the node is not at hand.
	Drivers *Drivers
}

// Found is what a claim gets of what presets give to one request.
type Found struct {
	// Shared are the edits that other claims may have as well, Own those that only this claim has, and Steps what Own needs.
	Shared, Own container.Edits
	Steps       []step.Step
}

// Empty says that there is nothing to edit.
func (f *Found) Empty() bool { return f.Shared.Empty() && f.Own.Empty() }

// lookup makes edits of what presets give to one request.
type lookup struct {
	files *Finder
	host  *rootfs.Root
	// claim is the claim's UID.
	claim string
	edits container.Edits
	// own are those that only the claim has, and steps what they need.
	own   container.Edits
	steps []step.Step
	// mounted are all mounts of both edits, by what they are of.
	mounted []container.Mount
	// links and yielding are TARGET::PATH: those that must be made, and those that leave what an image has in their place.
	links, yielding []string
	// absent are the paths in the container of optional mounts that the node does not have.
	absent []string
	// dirs are directories of the container with libraries of a driver.
	dirs []string
	errs []error
}

// Find makes edits of what presets give to a request of the claim with a UID. An error names each preset, what it gives, and what this node
// lacks of it.
func (f *Finder) Find(claim string, r preset.Request) (Found, error) {
	host, err := rootfs.Open(f.Root)
	if err != nil {
		return Found{}, err
	}
	defer func() { _ = host.Close() }() // it was only read
	l := lookup{files: f, host: host, claim: claim}
	for i := range r.Env {
		l.fail(l.variable(&r.Env[i]), r.Env[i].From[len(r.Env[i].From)-1], "variable "+r.Env[i].Name)
	}
	for i := range r.Mounts {
		l.fail(l.mount(&r.Mounts[i]), r.Mounts[i].From, "mount "+r.Mounts[i].ContainerPath)
	}
	for i := range r.Nodes {
		l.fail(l.node(&r.Nodes[i]), r.Nodes[i].From, "device node "+r.Nodes[i].Path)
	}
	for i := range slices.Backward(r.Libraries) { // the later preset's library of a name wins
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
	return Found{Shared: l.edits, Own: l.own, Steps: l.steps}, errors.Join(l.errs...)
}

// sees says whether the plugin can look for a path of the host.
func (f *Finder) sees(name string) error {
	in := func(dir string) bool { return preset.Below(name, dir) }
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

// variable is refused here, where it is known whose it is, if no spec can hold it: its value may be a ConfigMap's.
func (l *lookup) variable(v *preset.Variable) error {
	text := v.Name + "=" + v.Value
	if err := container.CheckVariable(text); err != nil {
		return err
	}
	l.edits.Env = append(l.edits.Env, text)
	return nil
}

// mount names what is on the node now, links followed.
func (l *lookup) mount(m *preset.Mount) error {
	switch {
	case m.Scratch != nil:
		return l.scratch(m)
	case m.From.Namespace != "":
		return l.ownMount(m)
	}
	if err := l.files.sees(m.HostPath); err != nil {
		return l.lacks(m, err) // where nothing can be found, nothing is
	}
	hostPath, _, err := l.host.Resolve(m.HostPath)
	if errors.Is(err, fs.ErrNotExist) {
		return l.lacks(m, notHere(m))
	}
	if err != nil {
		return err
	}
	l.add(container.Mount{
		HostPath: hostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly == nil || *m.ReadOnly,
		Alone: !m.Recursive, Follows: m.Propagation == v1alpha1.PropagationHostToContainer,
	})
	return nil
}

// lacks leaves out a mount that the node does not have, or says why the claim must wait for it.
func (l *lookup) lacks(m *preset.Mount, why error) error {
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
	l.mounted = append(l.mounted, m)
	l.edits.Mounts = append(l.edits.Mounts, m)
}

func (l *lookup) node(n *preset.Node) error {
	stat, err := l.host.Lstat(n.Path)
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
	permissions := "rw"
	if n.ReadOnly {
		permissions = "r"
	}
	l.edits.Nodes = append(l.edits.Nodes, container.Node{
		Path: n.Path, Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev)), Permissions: permissions,
	})
	return nil
}

// system is the one that a preset's files are of, and where it is on the host: its own, or a driver's below a directory of it. It is nil
// where there is none and need not be.
func (l *lookup) system(f *preset.Files) (_ *hostlib.Host, root string, err error) {
	if f.From.Namespace != "" {
		if err = l.mayLook(cmp.Or(f.Root, "/")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("root: %w", err)
		}
		root = f.Root
	} else if root = "/"; f.Root != "" && f.Root != root {
		if err := l.files.sees(f.Root); err != nil {
			return nil, "", err
		}
		// A link in it leads to the host's, not to where it would in the plugin's container.
		root, _, err = l.host.Resolve(f.Root)
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
		library := &found.Found[i]
		bound, err := l.bind(&f.From, path.Join(root, library.HostPath), path.Join(libraryDir, library.Name))
		if err != nil {
			return err
		}
		if !bound {
			continue
		}
		for _, link := range library.Links {
			l.links = append(l.links, link.Target+"::"+path.Join(libraryDir, link.Name))
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

// toolDir has the programs of a directory that is appended to PATH be found in one that every image searches. What the image has by
// their names stays, as if its directories came first.
func (l *lookup) toolDir(d *preset.Directory) error {
	in := func(dir string) bool { return preset.Below(d.Path, dir) }
	i := slices.IndexFunc(l.mounted, func(m container.Mount) bool { return in(m.ContainerPath) })
	switch {
	case i < 0 && slices.ContainsFunc(l.absent, in):
		return nil
	case i < 0:
		return errors.New("is below no mount of a preset, so its programs are not known: mount the directory, or name them as tools")
	}
	m := l.mounted[i]
	hostDir := path.Join(m.HostPath, strings.TrimPrefix(d.Path, m.ContainerPath))
	if l.isOwn(m.ContainerPath) {
		if err := l.mayLook(hostDir); err != nil {
			return err
		}
	}
	names, err := l.host.ReadDir(hostDir)
	if err != nil {
		return err
	}
	found := 0
	for _, name := range names {
		stat, err := l.host.Stat(path.Join(hostDir, name))
		if err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o111 == 0 {
			continue // a link that leads nowhere is no program
		}
		link := path.Join(d.Path, name) + "::" + path.Join(toolDir, name)
		if linkable(link) != nil {
			continue // nobody calls a program by such a name
		}
		if found++; found > maxTools {
			return fmt.Errorf("has more than %d programs: name those that are needed as tools", maxTools)
		}
		l.yielding = append(l.yielding, link)
	}
	return nil
}

// bind mounts a file of the node, unless there is another in its place already.
func (l *lookup) bind(from *preset.Origin, hostPath, containerPath string) (bool, error) {
	if slices.ContainsFunc(l.mounted, func(m container.Mount) bool { return m.ContainerPath == containerPath }) {
		return false, nil
	}
	m := container.Mount{HostPath: hostPath, ContainerPath: containerPath, ReadOnly: true, Alone: true}
	if from.Namespace != "" {
		return true, l.copy(m)
	}
	l.add(m)
	return true, nil
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

// hooks has the links made first, so that the loader's cache names what they lead to. What fettle-hook would refuse is refused here: there
// it keeps a container from starting.
func (l *lookup) hooks(r *preset.Request) {
	var dirs []string
	add := func(dir string) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if slices.ContainsFunc(l.mounted, func(m container.Mount) bool { return path.Dir(m.ContainerPath) == libraryDir }) {
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
			l.fail(l.link(link.Target, link.Path), h.From, "hook links")
		}
	}
	if len(l.links)+len(l.yielding) > 0 {
		l.hook(flags(flags([]string{"links"}, "--link", l.links), "--yielding-link", l.yielding))
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

// link has a link made, in the place of an earlier preset's.
func (l *lookup) link(target, name string) error {
	text := target + "::" + name
	if err := linkable(text); err != nil {
		return err
	}
	l.links = slices.DeleteFunc(l.links, func(earlier string) bool { return strings.HasSuffix(earlier, "::"+name) })
	l.links = append(l.links, text)
	return nil
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
