// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

// The reasons of the state Driver with the engines DaemonSet and KMM, beside DriverPending and DriverFailed.
const (
	// ReasonDriversOff: the controller may not run drivers.
	ReasonDriversOff = "DriversOff"
	// ReasonOSUnknown: the name of the node's operating system, which the image's tag has, is not known.
	ReasonOSUnknown = "OSUnknown"
	// ReasonDriverTagInvalid: the image's tag for the node is none.
	ReasonDriverTagInvalid = "DriverTagInvalid"
	// ReasonDriverImageMissing: the node cannot pull the image for its kernel.
	ReasonDriverImageMissing = "DriverImageMissing"
	// ReasonDriverOutdated: the driver's pod is not of the image that is wanted.
	ReasonDriverOutdated = "DriverOutdated"
	// ReasonDriverOtherBoot: kubelet has not started the driver's container since the node started.
	ReasonDriverOtherBoot = "DriverOtherBoot"
	// ReasonDriverOtherVersion: the plugin finds another version of the driver.
	ReasonDriverOtherVersion = "DriverOtherVersion"
)

// DriversOff is for a controller that may not run drivers.
func DriversOff(why string) Verdict { return unknown(ReasonDriversOff, "%s", why) }

// NoDriverWanted is for a node that gets no driver: it has no device, or it is not known which.
func NoDriverWanted(n *Node) Verdict {
	if n.Accelerator == nil {
		return facts(n)
	}
	return passed("the node has no device")
}

// Platform is what a driver is built for. Nodes of one platform share an image.
type Platform struct {
	// OS is the operating system with its version: ubuntu24.04. Empty: not known, or of no account.
	OS string
	// KernelVersion is the release, as uname prints it.
	KernelVersion string
	// Architecture is amd64 or arm64.
	Architecture string
}

// PlatformOf returns what of a node's platform is known.
func PlatformOf(n *Node) Platform {
	return Platform{OS: osName(n.OSImage), KernelVersion: n.KernelVersion, Architecture: n.Architecture}
}

// noImage says that kubelet cannot pull a container's image.
func noImage(waits string) bool {
	return slices.Contains([]string{"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}, waits)
}

// crashed says that a container failed, and that kubelet starts it again now or in a while.
func crashed(waits string) bool {
	return slices.Contains([]string{"CrashLoopBackOff", "Error", "OOMKilled", "StartError"}, waits)
}

// ImageFor returns the image of a driver for a node and the platform that it is for. A verdict with a reason: there is none.
func ImageFor(d *v1alpha1.DaemonSetDriver, n *Node) (image string, p Platform, why Verdict) {
	p = PlatformOf(n)
	if p.KernelVersion == "" || p.Architecture == "" {
		return "", p, unknown(ReasonDriverPending, "kubelet has not reported the node's kernel yet")
	}
	if p.OS == "" && strings.Contains(d.Tag, "${OS}") {
		return "", p, failed(ReasonOSUnknown, "the name of the operating system %q for ${OS} is not known: write it into the tag of a "+
			"stack of its own", n.OSImage)
	}
	tag := strings.NewReplacer("${DRIVER_VERSION}", d.Version, "${KERNEL}", tagText(p.KernelVersion), "${OS}", tagText(p.OS),
		"${ARCH}", tagText(p.Architecture)).Replace(d.Tag)
	if !tagForm.MatchString(tag) {
		return "", p, failed(ReasonDriverTagInvalid, "%q is no tag of an image: at most 128 characters, the first a letter, digit or _", tag)
	}
	return d.Repository + ":" + tag, p, Verdict{}
}

//nolint:gochecknoglobals // constants that Go cannot express as such
var (
	tagForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	notOfTag   = regexp.MustCompile(`[^A-Za-z0-9._-]`)
	osNumber   = regexp.MustCompile(`[0-9]+(\.[0-9]+)*`)
	suseNumber = regexp.MustCompile(`([0-9]+) SP([0-9]+)`)
)

// tagText is a text with an underscore for each character that a tag may not have: 6.1.0+ is a kernel's release.
func tagText(text string) string { return notOfTag.ReplaceAllString(text, "_") }

// system is a beginning of PRETTY_NAME in os-release, and ID there. parts is how many numbers of the version images are named by.
type system struct {
	pretty, id string
	parts      int
}

// systems: kubelet reports PRETTY_NAME and nothing else of os-release. NFD's labels have the ID, but may be of the system before an
// upgrade.
func systems() []system {
	return []system{
		{"Ubuntu ", "ubuntu", 2},
		{"Debian GNU/Linux ", "debian", 1},
		{"Red Hat Enterprise Linux CoreOS ", "rhcos", 2},
		{"Red Hat Enterprise Linux ", "rhel", 2},
		{"CentOS Stream ", "centos", 1},
		{"Rocky Linux ", "rocky", 2},
		{"AlmaLinux ", "almalinux", 2},
		{"Oracle Linux Server ", "ol", 2},
		{"Fedora CoreOS ", "fedora-coreos", 1},
		{"Fedora Linux ", "fedora", 1},
		{"SUSE Linux Enterprise Server ", "sles", 2},
		{"openSUSE Leap ", "opensuse-leap", 2},
		{"Amazon Linux ", "amzn", 1},
		{"Flatcar Container Linux ", "flatcar", 3},
		{"Talos ", "talos", 3},
		{"Microsoft Azure Linux ", "azurelinux", 2},
		{"Azure Linux ", "azurelinux", 2},
	}
}

// osName returns the name of a system as images are named by it: ubuntu24.04, rhel9.4, sles15.5. Empty: it is not known.
func osName(image string) string {
	systems := systems()
	at := slices.IndexFunc(systems, func(s system) bool { return strings.HasPrefix(image, s.pretty) })
	if at < 0 {
		return ""
	}
	s := systems[at]
	number := osNumber.FindString(image)
	if of := suseNumber.FindStringSubmatch(image); s.id == "sles" && of != nil {
		number = of[1] + "." + of[2]
	}
	if number == "" {
		return ""
	}
	parts := strings.Split(number, ".")
	return s.id + strings.Join(parts[:min(len(parts), s.parts)], ".")
}

// DriverPod is the pod of a driver on a node.
type DriverPod struct {
	// Name and UID are the pod's, Set is its DaemonSet's name.
	Name, UID, Set string
	// Image and Kernel are those that its DaemonSet had when it was made.
	Image, Kernel string
	// OS and Architecture are the others of its DaemonSet's platform.
	OS, Architecture string
	// Ready is whether its container runs and its driver is loaded. Leaving: it is being deleted.
	Ready, Leaving bool
	// Started is when kubelet started the container; zero: it has not.
	Started time.Time
	// Waits is why the container does not run, as kubelet has it, or how it last ended.
	Waits, Message string
}

// ForDaemonSet returns the image of the driver that a node is to have, what it is built for, and what is known of the one that it has.
// Without an image the node gets none, and the verdict says why.
func ForDaemonSet(d *v1alpha1.DaemonSetDriver, n *Node, pods []DriverPod) (image string, p Platform, v Verdict) {
	if !WantsDriver(n, len(pods) > 0) {
		return "", p, NoDriverWanted(n)
	}
	if image, p, v = ImageFor(d, n); image == "" {
		return "", p, v
	}
	if n.Before != "" && len(pods) == 0 && !n.Placed {
		return "", p, oneDriver(n)
	}
	return image, p, ByDaemonSet(d, image, n, pods)
}

// ByDaemonSet says what is known of a node's driver by its pods there. image is the one that is wanted. A pod that is ready proves
// nothing by itself: after a restart of the node its status is that of the boot before until kubelet writes the next.
func ByDaemonSet(d *v1alpha1.DaemonSetDriver, image string, n *Node, pods []DriverPod) Verdict {
	at := slices.IndexFunc(pods, func(p DriverPod) bool { return !p.Leaving && p.Kernel == n.KernelVersion })
	if old := Outdated(n, pods); at < 0 && old != nil {
		return unknown(ReasonDriverOutdated, "pod %s is for kernel %s, and the node has %s", old.Name, old.Kernel, n.KernelVersion)
	}
	if at < 0 {
		return unknown(ReasonDriverPending, "the driver for kernel %s has no pod on the node yet%s", n.KernelVersion, leaving(pods))
	}
	p := pods[at]
	switch {
	case p.Image != image:
		return unknown(ReasonDriverOutdated, "pod %s has image %s, and %s is wanted", p.Name, p.Image, image)
	case noImage(p.Waits):
		return failed(ReasonDriverImageMissing, "the node cannot pull %s for kernel %s: build it, or start the node with another kernel: %s",
			image, n.KernelVersion, p.Message)
	case crashed(p.Waits):
		return failed(ReasonDriverFailed, "the driver's pod %s failed and is started again, see its log: %s", p.Name, p.Message)
	case !p.Ready:
		return unknown(ReasonDriverPending, "the driver's pod %s is not ready: %s", p.Name, p.Waits)
	}
	return thisBoot(d, n, &p)
}

// Outdated returns the pod of a driver for another kernel than the node has, if the node has none for this one. It stays until the upgrade
// of the node has come as far.
func Outdated(n *Node, pods []DriverPod) *DriverPod {
	for i := range pods {
		if p := &pods[i]; !p.Leaving && p.Kernel == n.KernelVersion {
			return nil
		}
	}
	at := slices.IndexFunc(pods, func(p DriverPod) bool { return !p.Leaving })
	if at < 0 {
		return nil
	}
	return &pods[at]
}

// thisBoot asks whether the container of a pod that is ready was started in this boot, and what the plugin finds since.
func thisBoot(d *v1alpha1.DaemonSetDriver, n *Node, p *DriverPod) Verdict {
	switch {
	case !current(n):
		return notCurrent()
	case n.Accelerator.Facts.BootTime == nil:
		return unknown(ReasonNotReported, "the node's plugin, version %q, does not report when the node started", n.Accelerator.PluginVersion)
	case p.Started.Before(n.Accelerator.Facts.BootTime.Time):
		return unknown(ReasonDriverOtherBoot, "kubelet has not started the driver's container since the node started: if it stays, delete pod %s",
			p.Name)
	case d.ModuleVersion != "" && !loaded(n, d.ModuleVersion):
		return otherVersion(n, d.ModuleVersion)
	}
	return passed("pod %s has brought driver %s for kernel %s", p.Name, d.Version, n.KernelVersion)
}

func otherVersion(n *Node, wanted string) Verdict {
	return failed(ReasonDriverOtherVersion, "the plugin finds the drivers %q, and %s is wanted: was the driver before it unloaded?",
		drivers(n), wanted)
}

func leaving(pods []DriverPod) string {
	for _, p := range pods {
		return fmt.Sprintf(": pod %s, for kernel %s, has to go first", p.Name, p.Kernel)
	}
	return ""
}

func drivers(n *Node) string {
	if n.Accelerator.Summary == nil {
		return ""
	}
	return n.Accelerator.Summary.Drivers
}

// loaded looks for a version in "amd 6.12.12, nvidia 580.95.5". It may be written as the driver prints it: 580.95.05.
func loaded(n *Node, version string) bool {
	if normal, err := device.NormalizeVersion(version); err == nil {
		version = normal
	}
	for of := range strings.SplitSeq(drivers(n), ", ") {
		if _, has, found := strings.Cut(of, " "); found && has == version {
			return true
		}
	}
	return false
}

// WantsDriver says whether the driver's pod belongs on a node. A node that never reported, or that has no device, gets none. A node
// that has one keeps it: its devices may be away for as long as the driver is changed.
func WantsDriver(n *Node, has bool) bool {
	return has || n.Placed || n.Accelerator != nil && !isEmpty(n)
}
