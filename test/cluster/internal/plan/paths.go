// SPDX-License-Identifier: Apache-2.0

package plan

import "path/filepath"

// Dirs are a node's own directories on the host. The comments give the place inside the node.
type Dirs struct {
	Root       string `json:"root"`       // not mounted
	Run        string `json:"run"`        // /run, lost by a reboot: run/cdi, run/nri, run/containerd, run/fettle, run/netns
	Kubelet    string `json:"kubelet"`    // /var/lib/kubelet
	Containerd string `json:"containerd"` // /var/lib/containerd
	Fettle     string `json:"fettle"`     // /var/lib/fettle
	EtcCDI     string `json:"etcCDI"`     // /etc/cdi
	RunCDI     string `json:"runCDI"`     // /var/run/cdi
	CNIConfig  string `json:"cniConfig"`  // /etc/cni/net.d
	CNIState   string `json:"cniState"`   // /var/lib/cni
	PodLogs    string `json:"podLogs"`    // /var/log/pods
	Containers string `json:"containers"` // /var/log/containers
	Machine    string `json:"machine"`    // /opt/machine, the simulated hardware's host tree
	Disks      string `json:"disks"`      // /mnt/disks
	LocalPath  string `json:"localPath"`  // /var/local-path-provisioner, for volumes of a provisioner, as on nodes of KIND
	Config     string `json:"config"`     // not mounted: files of kubelet and containerd
}

func nodeDirs(root string) Dirs {
	in := func(p string) string { return filepath.Join(root, p) }
	return Dirs{
		Root: root, Run: in("run"), Kubelet: in("kubelet"), Containerd: in("containerd"), Fettle: in("fettle"),
		EtcCDI: in("etc-cdi"), RunCDI: in("run/cdi"), CNIConfig: in("cni-config"), CNIState: in("cni-state"),
		PodLogs: in("pod-logs"), Containers: in("container-logs"), Machine: in("machine"), Disks: in("disks"),
		LocalPath: in("local-path"), Config: in("config"),
	}
}

// Bind is one directory of the host that a node sees elsewhere.
type Bind struct {
	From, To string
	// FromHost says that mounts made later on the host under From must appear in the node.
	FromHost bool
}

// Binds lists what a node sees in place of the host's directories.
func (d Dirs) Binds() []Bind {
	return []Bind{
		{From: d.Run, To: "/run"},
		{From: d.Kubelet, To: "/var/lib/kubelet"},
		{From: d.Containerd, To: "/var/lib/containerd"},
		{From: d.Fettle, To: "/var/lib/fettle"},
		{From: d.EtcCDI, To: "/etc/cdi"},
		{From: d.CNIConfig, To: "/etc/cni/net.d"},
		{From: d.CNIState, To: "/var/lib/cni"},
		{From: d.PodLogs, To: "/var/log/pods"},
		{From: d.Containers, To: "/var/log/containers"},
		{From: d.Machine, To: "/opt/machine", FromHost: true},
		{From: d.Disks, To: "/mnt/disks", FromHost: true},
		{From: d.LocalPath, To: "/var/local-path-provisioner"},
	}
}

// RunSubdirs are the directories that exist under /run right after a node's boot.
func (d Dirs) RunSubdirs() []string {
	var dirs []string
	for _, s := range []string{"cdi", "nri", "containerd", "fettle", "netns", "lock"} {
		dirs = append(dirs, filepath.Join(d.Run, s))
	}
	return dirs
}

// OfObjects are the directories that hold what a node has because of objects, and a new node does not.
func (d Dirs) OfObjects() []string {
	return []string{d.Kubelet, d.Fettle, d.EtcCDI, d.PodLogs, d.Containers, d.LocalPath}
}

// File is a path under the state directory.
func (c Cluster) File(elem ...string) string {
	return filepath.Join(append([]string{c.State}, elem...)...)
}

// LogFile is where a component writes; node is "" for the control plane.
func (c Cluster) LogFile(node, component string) string {
	return c.File("logs", scope(node)+"-"+component+".log")
}

// PIDFile holds the process of a component.
func (c Cluster) PIDFile(node, component string) string {
	return c.File("pids", scope(node)+"-"+component+".json")
}

// Cgroup is the group of a scope below the cluster's own; node is "" for the control plane.
func (c Cluster) Cgroup(node string) string { return "/" + c.ID + "/" + scope(node) }

// DaemonCgroup is the leaf that holds the daemons of a scope: with cgroup v2 only leaves hold processes.
func (c Cluster) DaemonCgroup(node string) string { return c.Cgroup(node) + "/daemons" }

func scope(node string) string {
	if node == "" {
		return "control-plane"
	}
	return node
}
