// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/fettle-dev/fettle/pkg/device"
)

// cgroup is that of all containers.
const cgroup = "/fettle-gpu"

// firstUser and users are those of the host that a user namespace has.
const firstUser, users = 100000, 65536

// jail is a container that is run once.
type jail struct {
	name string
	// devices are qualified names of CDI.
	devices []string
	args    []string
	user    uint32
	// userns gives it a user namespace of its own.
	userns bool
}

// container runs a CUDA program in containers with and without a claim.
func (s *site) container(ctx context.Context, f *findings) error {
	switch _, err := os.Stat("/dev/nvidiactl"); {
	case s.simulated():
		return impossible("there is no card behind a simulated machine")
	case os.Geteuid() != 0:
		return impossible("containers take root here")
	case err != nil:
		return impossible("%w", err)
	}
	r, err := s.start(ctx)
	if err != nil {
		return err
	}
	devices, _, err := r.devices(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove("/sys/fs/cgroup" + cgroup) }()
	ids, uuid, end, err := r.hold(ctx, &devices[0])
	if err != nil {
		return err
	}
	f.fact("CDI devices", ids)
	s.given(ctx, f, r, ids)
	for _, j := range []jail{
		{name: "root", devices: ids},
		{name: "user 1000", devices: ids, user: 1000},
		{name: "user namespace", devices: ids, userns: true},
		{name: "user 1000 of a user namespace", devices: ids, user: 1000, userns: true},
	} {
		f.check("a CUDA program computes as "+j.name, s.computes(ctx, f, r, j, uuid))
	}
	s.without(ctx, f, r)
	f.check("nvidia-smi tells of the GPU in the container", s.smiInside(ctx, f, r, ids, uuid))
	f.check("a container with another claim computes on its own GPU only", s.another(ctx, f, r, devices))
	f.check("the claim is unprepared", end(ctx))
	return nil
}

// hold has a claim prepared for a device, until end. It returns the names of CDI and the UUID of the GPU.
func (r *running) hold(ctx context.Context, d *resourceapi.Device) (ids []string, uuid string, end func(context.Context) error, err error) {
	claim, err := r.claim(ctx, d.Name)
	if err != nil {
		return nil, "", nil, err
	}
	ids, _, err = r.prepare(ctx, claim)
	return ids, device.StringOf(d.Attributes["uuid"]), func(ctx context.Context) error {
		_, err := r.unprepare(ctx, claim)
		return err
	}, err
}

// computes runs the CUDA program, which must be right on one GPU.
func (s *site) computes(ctx context.Context, f *findings, r *running, j jail, uuid string) error {
	j.args = []string{"/bin/fettle-cuda"}
	out, err := s.runJail(ctx, r, j)
	f.fact(j.name, string(out))
	if err != nil {
		return err
	}
	return computed(out, uuid)
}

// another holds a second GPU beside the first.
func (s *site) another(ctx context.Context, f *findings, r *running, devices []resourceapi.Device) error {
	if len(devices) < 2 {
		return impossible("the machine has one GPU")
	}
	ids, uuid, end, err := r.hold(ctx, &devices[1])
	if err != nil {
		return err
	}
	return errors.Join(s.computes(ctx, f, r, jail{name: "another claim", devices: ids}, uuid), end(ctx))
}

// smiInside runs the nvidia-smi that the claim brings.
func (s *site) smiInside(ctx context.Context, f *findings, r *running, ids []string, uuid string) error {
	spec, err := s.spec(r, jail{devices: ids})
	if err != nil {
		return err
	}
	at := slices.IndexFunc(spec.Mounts, func(m oci.Mount) bool { return path.Base(m.Destination) == "nvidia-smi" })
	if at < 0 {
		return errors.New("the claim brings none")
	}
	out, err := s.runJail(ctx, r, jail{name: "nvidia-smi", devices: ids, args: []string{spec.Mounts[at].Destination, "-L"}})
	f.fact("nvidia-smi in the container", string(out))
	if err == nil && !strings.Contains(string(out), uuid) {
		err = fmt.Errorf("it does not tell of %s: %s", uuid, out)
	}
	return err
}

// computed wants that exactly one device was computed on, and right.
func computed(out []byte, uuid string) error {
	var a struct {
		Devices []struct {
			UUID  string `json:"uuid"`
			Right bool   `json:"right"`
		} `json:"devices"`
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if len(a.Devices) != 1 || !a.Devices[0].Right || a.Devices[0].UUID != uuid {
		return fmt.Errorf("expected one right result, of %s: %s", uuid, out)
	}
	return nil
}

// without wants a container without the claim to see no node, and to be refused one that it makes.
func (s *site) without(ctx context.Context, f *findings, r *running) {
	for _, one := range []struct {
		jail
		// refusal is the error of open.
		refusal error
	}{
		{jail{name: "open", args: []string{"/bin/fettle-cuda", "-open", "/dev/nvidia0"}}, unix.ENOENT},
		{jail{name: "mknod 195:0", args: []string{"/bin/fettle-cuda", "-mknod", "/tmp/gpu 195 0"}}, unix.EPERM},
		{jail{name: "mknod 195:255", args: []string{"/bin/fettle-cuda", "-mknod", "/tmp/control 195 255"}}, unix.EPERM},
	} {
		out, err := s.runJail(ctx, r, one.jail)
		f.fact("without a claim, "+one.name, string(out))
		var said struct{ Mknod, Error string }
		if err == nil {
			err = json.Unmarshal(out, &said)
		}
		if err == nil && (said.Mknod != "" || said.Error != one.refusal.Error()) {
			err = fmt.Errorf("it says %s, expected only open to fail: %w", out, one.refusal)
		}
		f.check("a container without the claim cannot open the GPU: "+one.name, err)
	}
}

// given wants the claim to bring each library of the driver that the machine's linker knows.
func (s *site) given(ctx context.Context, f *findings, r *running, ids []string) {
	spec, err := s.spec(r, jail{devices: ids})
	if err != nil {
		f.check("the CDI specs can be applied", err)
		return
	}
	f.fact("edits", map[string]any{"mounts": spec.Mounts, "env": spec.Process.Env, "hooks": spec.Hooks, "devices": spec.Linux.Devices})
	inside := map[string]bool{}
	for _, m := range spec.Mounts {
		inside[path.Base(m.Destination)] = true
	}
	out, err := tool(ctx, "ldconfig", "-p")
	if err != nil {
		f.check("ldconfig -p", err)
		return
	}
	absent := notBrought(string(out), inside)
	f.fact("libraries of ldconfig -p that the claim does not bring", absent)
	f.check("every library of the driver in ldconfig -p is brought", none(absent))
	for _, prefix := range []string{"libcuda.so.", "libnvidia-ml.so.", "libnvidia-ptxjitcompiler.so."} {
		f.check(prefix+"VERSION is brought", broughtLike(inside, prefix))
	}
}

// notBrought lists the libraries that the machine's linker knows in the directory of libcuda, by the names of NVIDIA's, and that are not
// mounted.
func notBrought(ldconfig string, inside map[string]bool) []string {
	var ours []string
	dirs := map[string]bool{}
	for line := range strings.Lines(ldconfig) {
		_, file, _ := strings.Cut(strings.TrimSpace(line), " => ")
		real, err := filepath.EvalSymlinks(file)
		if err != nil || !nvidiaLibrary.MatchString(path.Base(real)) {
			continue
		}
		ours = append(ours, real)
		dirs[path.Dir(real)] = dirs[path.Dir(real)] || strings.HasPrefix(path.Base(real), "libcuda.so.")
	}
	absent := slices.DeleteFunc(ours, func(file string) bool { return inside[path.Base(file)] || !dirs[path.Dir(file)] })
	slices.Sort(absent)
	return slices.Compact(absent)
}

var nvidiaLibrary = regexp.MustCompile(`^lib(cuda|cudadebugger|nvcuvid|nvoptix|.*nvidia.*)\.so\.\d+\.\d+`)

func broughtLike(inside map[string]bool, prefix string) error {
	for name := range inside {
		if strings.HasPrefix(name, prefix) {
			return nil
		}
	}
	return fmt.Errorf("no mount is named %s…", prefix)
}

// spec is the container's, with the edits of its CDI devices as a runtime applies them.
func (s *site) spec(r *running, j jail) (*oci.Spec, error) {
	spec := &oci.Spec{
		Version: "1.2.0",
		Root:    &oci.Root{Path: filepath.Join(s.work, "rootfs")},
		Process: &oci.Process{
			Args: j.args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin:/usr/local/nvidia/bin"}, User: oci.User{UID: j.user, GID: j.user},
			NoNewPrivileges: true,
			Capabilities:    &oci.LinuxCapabilities{},
		},
		Mounts: []oci.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=1777"}},
		},
		Linux: &oci.Linux{
			CgroupsPath: cgroup + "/" + id(j.name),
			Namespaces: []oci.LinuxNamespace{
				{Type: oci.PIDNamespace},
				{Type: oci.MountNamespace},
				{Type: oci.IPCNamespace},
				{Type: oci.UTSNamespace},
				{Type: oci.NetworkNamespace},
			},
			Resources: &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	if j.user == 0 {
		all := []string{"CAP_MKNOD", "CAP_CHOWN", "CAP_DAC_OVERRIDE"} // what engines give root, of what matters for device nodes
		spec.Process.Capabilities = &oci.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	}
	if j.userns {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, oci.LinuxNamespace{Type: oci.UserNamespace})
		spec.Linux.UIDMappings = []oci.LinuxIDMapping{{HostID: firstUser, Size: users}}
		spec.Linux.GIDMappings = []oci.LinuxIDMapping{{HostID: firstUser, Size: users}}
	}
	if len(j.devices) == 0 {
		return spec, nil
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(r.node.CDI()), cdiapi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	unresolved, err := cache.InjectDevices(spec, j.devices...)
	if err != nil {
		return nil, fmt.Errorf("inject %v (not resolved: %v): %w", j.devices, unresolved, err)
	}
	return spec, nil
}

func id(name string) string { return strings.NewReplacer(" ", "-", ":", "-").Replace(name) }

// runJail runs a container to its end and returns what it printed on stdout.
func (s *site) runJail(ctx context.Context, r *running, j jail) ([]byte, error) {
	if err := s.copyRoot(ctx, j.userns); err != nil {
		return nil, err
	}
	spec, err := s.spec(r, j)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.work, "jail-"+id(j.name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, s.program("runc"), "--root", filepath.Join(s.work, "runc"), "run", "--bundle", dir, id(j.name))
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return []byte(stdout.String()), fmt.Errorf("%w: %s%s", err, stdout.String(), tail([]byte(stderr.String())))
	}
	return []byte(strings.TrimSpace(stdout.String())), nil
}

// copyRoot makes the containers' root file system, which mounts and hooks make files in. An engine maps its owner to a user namespace.
func (s *site) copyRoot(ctx context.Context, userns bool) error {
	dir := filepath.Join(s.work, "rootfs")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(s.bundle, "rootfs"), dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the root file system: %w: %s", err, out)
	}
	if !userns {
		return nil
	}
	return filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, firstUser, firstUser)
	})
}
