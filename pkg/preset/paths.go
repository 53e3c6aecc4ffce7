// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// ErrOutside refuses a path that no DevicePreset may name.
var ErrOutside = errors.New("is not below a directory of the driver's allowedHostPaths")

// AllowedHostPath is a directory of the nodes that namespaces may use.
type AllowedHostPath struct {
	// Path is absolute and clean. If directories are nested, the innermost counts.
	Path string `json:"path"`
	// Writable allows presets to say readOnly: false.
	Writable bool `json:"writable,omitempty"`
	// Namespaces lists the namespaces that may use the directory. Empty: every namespace.
	Namespaces []string `json:"namespaces,omitempty"`
}

// ParseAllowedHostPath reads the form of a command line: PATH, with :rw and :NAMESPACE[,NAMESPACE...] after it where they are set.
func ParseAllowedHostPath(text string) AllowedHostPath {
	var a AllowedHostPath
	parts := strings.Split(text, ":")
	a.Path, parts = parts[0], parts[1:]
	if len(parts) > 0 && parts[0] == "rw" {
		a.Writable, parts = true, parts[1:]
	}
	if len(parts) > 0 {
		a.Namespaces = strings.Split(strings.Join(parts, ":"), ",")
	}
	return a
}

// Validate refuses directories that would give a namespace control over the node.
func (a AllowedHostPath) Validate() error {
	if !path.IsAbs(a.Path) || path.Clean(a.Path) != a.Path {
		return fmt.Errorf("must be absolute and clean, is %q", a.Path)
	}
	for _, namespace := range a.Namespaces {
		if faults := validation.IsDNS1123Label(namespace); len(faults) > 0 {
			return fmt.Errorf("%s: namespaces has %q: %s", a.Path, namespace, faults[0])
		}
	}
	if tree := a.controls(); tree != "" {
		return fmt.Errorf("%s: whoever has %s has the node: name a directory of data", a.Path, tree)
	}
	return nil
}

// controls returns what of the directory gives control over the node, or "". Distributions of Kubernetes keep their keys and programs in
// different places, so the rules are of whole trees and of names, and not of each distribution's directories.
func (a AllowedHostPath) controls() string {
	for _, tree := range guardedTrees(a.Writable) {
		if mountpath.Within(a.Path, tree) || mountpath.Within(tree, a.Path) {
			return tree
		}
	}
	parts := strings.Split(a.Path, "/")[1:]
	for i, part := range parts {
		if slices.Contains(nodeSoftware(), part) {
			return "/" + path.Join(parts[:i+1]...)
		}
	}
	if a.Writable && parts[0] == "home" && len(parts) <= 2 {
		return a.Path // it has the keys by which a user logs in
	}
	return ""
}

// guardedTrees lists trees of the file system hierarchy that give control over the node. Some hold keys, sockets and what other namespaces
// wrote, so reading is enough. The others hold what the node runs, or the state of what it runs, so writing is enough.
func guardedTrees(writable bool) []string {
	trees := []string{
		"/boot", "/dev", "/proc", "/root", "/run", "/sys", // sockets, devices, memory, root's keys
		"/etc",                                                 // keys of the node and of Kubernetes
		"/var/lib/containers", "/var/lib/kubelet", "/var/snap", // files of all containers, and keys
		"/var/log/containers", "/var/log/pods", // what all containers say
		"/var/run",
	}
	if writable {
		trees = append(trees,
			"/bin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/opt", "/ostree", "/sbin", "/snap", "/sysroot", "/usr", // programs
			"/var/cache", "/var/db", "/var/lib", "/var/lock", "/var/log", "/var/opt", "/var/spool", // what services and cron read
		)
	}
	return trees
}

// nodeSoftware lists the names of directories with the keys, sockets and images of Kubernetes and of container runtimes, wherever they are.
func nodeSoftware() []string {
	return []string{
		".kube", ".ssh", "cni", "containerd", "crio", "docker", "etcd", "fettle", "k0s", "k3s", "kubelet", "kubernetes", "microk8s", "minikube",
		"podman", "rancher", "rke2",
	}
}

// IsSoftware reports whether a path of the host is in a tree of the system's programs and of its services. Whoever writes there has the
// node, so no container may, by none of the driver's ways.
func IsSoftware(name string) bool {
	return slices.ContainsFunc([]string{
		"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/opt", "/ostree", "/proc", "/root", "/run", "/sbin",
		"/snap", "/sys", "/sysroot", "/usr", "/var/run",
	}, func(tree string) bool { return mountpath.Within(name, tree) })
}

// HoldsContainers reports whether a directory of the host is one of kubelet or of a container runtime, below which there are the volumes
// and the own files of containers.
func HoldsContainers(dir string) bool {
	return mountpath.Within(dir, "/var/lib/containers") || slices.Contains([]string{
		"containerd", "crio", "docker", "k0s", "k3s", "kubelet", "microk8s", "minikube", "podman", "rancher", "rke2",
	}, path.Base(dir))
}

// AllowedFor returns the directory by which a DevicePreset of a namespace may name a path. Who mounts a path has all that is below it, so a
// path above a directory that the namespace may use less, or not at all, is refused. AllowedFor compares the text only: only a node can
// tell whether a link leads out.
func AllowedFor(all []AllowedHostPath, namespace, name string, readOnly bool) (string, error) {
	best, own := "", []string(nil)
	for _, allowed := range all {
		if mountpath.Within(name, allowed.Path) && len(allowed.Path) > len(best) {
			best = allowed.Path
		}
		if allowed.serves(namespace) {
			own = append(own, allowed.Path)
		}
	}
	readable, writable := rightsAt(all, namespace, best)
	switch {
	case len(own) == 0:
		return "", fmt.Errorf("%s %w, of which there are none: ask an administrator for a ClusterDevicePreset", name, ErrOutside)
	case !readable:
		return "", fmt.Errorf("%s %w (%s): use one below, or ask an administrator for a ClusterDevicePreset",
			name, ErrOutside, strings.Join(own, ", "))
	case !readOnly && !writable:
		return "", fmt.Errorf("%s is below %s, which the driver's allowedHostPaths have for reading: leave out readOnly: false", name, best)
	}
	for _, allowed := range all {
		if allowed.Path == name || !mountpath.Within(allowed.Path, name) {
			continue
		}
		switch readable, writable := rightsAt(all, namespace, allowed.Path); {
		case !readable:
			return "", fmt.Errorf("%s %w: a directory below it is for other namespaces: name the directories below it that the preset needs",
				name, ErrOutside)
		case !readOnly && !writable:
			return "", fmt.Errorf("%s holds %s, which the driver's allowedHostPaths have for reading: "+
				"leave out readOnly: false, or name the directories below it that the preset writes to", name, allowed.Path)
		}
	}
	return best, nil
}

func (a *AllowedHostPath) serves(namespace string) bool {
	return len(a.Namespaces) == 0 || slices.Contains(a.Namespaces, namespace)
}

// rightsAt returns what the entries for one directory allow a namespace.
func rightsAt(all []AllowedHostPath, namespace, dir string) (readable, writable bool) {
	for _, allowed := range all {
		if allowed.Path == dir && allowed.serves(namespace) {
			readable, writable = true, writable || allowed.Writable
		}
	}
	return readable, writable
}

// NotAllowed lists the fields of a DevicePreset with paths that the driver allows to no namespace. Claims that it selects wait.
func (p *Preset) NotAllowed(allowed []AllowedHostPath) field.ErrorList {
	if p.Namespace == "" {
		return nil
	}
	var faults field.ErrorList
	check := func(at *field.Path, name string, readOnly bool) {
		if _, err := AllowedFor(allowed, p.Namespace, name, readOnly); err != nil {
			faults = append(faults, field.Forbidden(at, err.Error()))
		}
	}
	at := field.NewPath("spec")
	for i := range p.Rules.Mounts {
		if m := &p.Rules.Mounts[i]; m.Scratch == nil {
			check(at.Child("mounts").Index(i).Child("hostPath"), m.HostPath, m.ReadOnly == nil || *m.ReadOnly)
		}
	}
	files := func(at *field.Path, files []v1alpha1.PresetFiles) {
		for i := range files {
			check(at.Index(i).Child("root"), cmp.Or(files[i].Root, "/"), true)
		}
	}
	files(at.Child("libraries"), p.Rules.Libraries)
	files(at.Child("tools"), p.Rules.Tools)
	return faults
}
