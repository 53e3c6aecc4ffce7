// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

const (
	// DefaultCheckInterval and DefaultCheckTimeout are for a stack that does not set them.
	DefaultCheckInterval = 24 * time.Hour
	DefaultCheckTimeout  = 5 * time.Minute
	// checkRetry is when a check that failed is repeated.
	checkRetry = 10 * time.Minute
	// checkEnds is how long after its time to end the pod of a check counts as one that still runs.
	checkEnds = time.Minute
	// evidenceDigits is how much of a hash is kept.
	evidenceDigits = 32
)

// The reasons of the state ClaimChecked.
const (
	// ReasonChecksOff: the controller may not run checks.
	ReasonChecksOff = "ChecksOff"
	// ReasonCheckPending: the check of a class has not run yet in this boot, with this driver and this plugin.
	ReasonCheckPending = "CheckPending"
	// ReasonCheckRunning: it runs.
	ReasonCheckRunning = "CheckRunning"
	// ReasonCheckNoRoom: its pod waits for a processor or memory of the node.
	ReasonCheckNoRoom = "CheckNoRoom"
	// ReasonCheckNotScheduled: the scheduler does not give the pod a device of the node.
	ReasonCheckNotScheduled = "CheckNotScheduled"
	// ReasonCheckNotStarted: the pod did not start in time.
	ReasonCheckNotStarted = "CheckNotStarted"
	// ReasonCheckFailed: the program in the pod could not open a device.
	ReasonCheckFailed = "CheckFailed"
	// ReasonNoClass: no class is known for what the node publishes.
	ReasonNoClass = "NoClass"
)

// Checks are what is known of the checks of a node's claims.
type Checks struct {
	// Off says why no check can be run.
	Off string
	// Classes are the DeviceClasses that a stack names. Empty: the shipped class of each kind with device nodes that the node publishes.
	Classes           []string
	Interval, Timeout time.Duration
	// Running are the verdicts of checks that have not ended, by class.
	Running map[string]Verdict
}

// classes are the DeviceClasses whose claims are checked on the node.
func (n *Node) classes() []string {
	if len(n.Checks.Classes) > 0 || n.Accelerator == nil {
		return n.Checks.Classes
	}
	var out []string
	for i := range n.Accelerator.Pools {
		// A directory of the host has no device node that could be opened.
		if p := &n.Accelerator.Pools[i]; p.Devices > 0 && p.Kind != string(device.KindHost) {
			out = append(out, p.Kind+"."+v1alpha1.DriverName)
		}
	}
	slices.Sort(out)
	return out
}

// Evidence returns what the result of a class's check holds for: the node, its boot and kernel, its drivers, and the plugin's pod. If any
// of them changes, nothing is known. It is empty while that is not known itself.
func Evidence(n *Node, class string) string {
	if n.BootID == "" || n.Accelerator == nil || n.Accelerator.Facts == nil || n.Accelerator.Facts.BootID != n.BootID {
		return ""
	}
	plugin := n.Accelerator.Facts.PluginPod
	if plugin != "" && !slices.ContainsFunc(n.Plugins, func(p Pod) bool { return p.UID == plugin }) {
		return ""
	}
	drivers := ""
	if n.Accelerator.Summary != nil {
		drivers = n.Accelerator.Summary.Drivers
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{n.Name, n.BootID, n.KernelVersion, drivers, plugin, class}, "\n")))
	return hex.EncodeToString(sum[:])[:evidenceDigits]
}

// checked returns the result of a class's check, if there is one for the present evidence.
func checked(n *Node, class string) (v1alpha1.NodeCheck, bool) {
	evidence := Evidence(n, class)
	if evidence == "" {
		return v1alpha1.NodeCheck{}, false
	}
	at := slices.IndexFunc(n.Accelerator.Checks, func(c v1alpha1.NodeCheck) bool {
		return c.DeviceClassName == class && c.Evidence == evidence && !c.Time.Time.Before(n.checksAfter())
	})
	if at < 0 {
		return v1alpha1.NodeCheck{}, false
	}
	return n.Accelerator.Checks[at], true
}

// claimChecked needs a result of every class. A check that is repeated takes nothing back before it has ended.
func claimChecked(n *Node) Verdict {
	classes := n.classes()
	if n.Accelerator == nil || Evidence(n, "") == "" {
		return notCurrent()
	}
	if devices, _ := devicesOf(n.Accelerator); len(classes) == 0 && devices > 0 {
		return passed("the node publishes directories of the host only, which are not checked")
	}
	if len(classes) == 0 {
		return unknown(ReasonNoClass, "the node publishes nothing of a kind that has a class: set spec.check.deviceClassNames")
	}
	var open *Verdict
	for _, class := range classes {
		result, done := checked(n, class)
		switch {
		case done && !result.Passed:
			return failed(result.Reason, "class %s: %s", class, result.Message)
		case done:
			continue
		case open != nil:
			continue
		}
		v := unknown(ReasonCheckPending, "a claim of class %s is checked once the states before are passed", class)
		if running, ok := n.Checks.Running[class]; ok {
			v = running
		} else if n.Checks.Off != "" {
			v = unknown(ReasonChecksOff, "%s", n.Checks.Off)
		}
		open = &v
	}
	if open != nil {
		return *open
	}
	return passed("claims of %s were checked", strings.Join(classes, ", "))
}

// Due returns the classes whose claims should be checked now, and when the next one is due; 0: not before something changes. A check begins
// once the states before it are passed.
func Due(n *Node, now time.Time) (classes []string, next time.Duration) {
	if n.Checks.Off != "" || !readyForChecks(n) {
		return nil, 0
	}
	for _, class := range n.classes() {
		if _, running := n.Checks.Running[class]; running {
			continue
		}
		result, done := checked(n, class)
		again := n.Checks.Interval
		if !result.Passed {
			again = min(again, checkRetry)
		}
		left := result.Time.Add(again).Sub(now)
		if !done || left <= 0 {
			classes = append(classes, class)
			continue
		}
		if next == 0 || left < next {
			next = left
		}
	}
	return classes, next
}

// checkDue returns when the check that passed longest ago is to be repeated. Zero: none has passed with the present evidence, or none is
// run any more.
func checkDue(n *Node) (oldest time.Time) {
	if n.Checks.Off != "" {
		return time.Time{}
	}
	for _, class := range n.classes() {
		result, done := checked(n, class)
		if due := result.Time.Add(n.Checks.Interval); done && result.Passed && (oldest.IsZero() || due.Before(oldest)) {
			oldest = due
		}
	}
	return oldest
}

func readyForChecks(n *Node) bool {
	return !slices.ContainsFunc(n.rules(), func(r rule) bool {
		return r.beforeChecks && r.judge(n).Status != Passed
	})
}

// Ended says what the pod of a check shows. Done is false while it may still pass; then the verdict says why it is not known.
func Ended(p *corev1.Pod, timeout time.Duration, now time.Time) (v Verdict, done bool) {
	since := begun(p)
	late := now.Sub(since) >= timeout
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return passed("every device of the claim was opened"), true
	case corev1.PodFailed:
		return failed(ReasonCheckFailed, "%s", cmp.Or(said(p), p.Status.Message, "the program ended without a message")), true
	case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
	}
	if message, unscheduled := notScheduled(p); unscheduled {
		switch {
		case noRoom(message):
			return unknown(ReasonCheckNoRoom, "the pod of the check waits for room on the node: %s", message), false
		case late:
			return failed(ReasonCheckNotScheduled, "no device of the node was given to a claim in %s: %s", timeout, message), true
		}
		return unknown(ReasonCheckRunning, "the pod of the check is not scheduled yet: %s", message), false
	}
	if late {
		return failed(ReasonCheckNotStarted, "the pod of the check did not end in %s%s: kubectl get events -n %s shows why", timeout, waitsFor(p),
			p.Namespace), true
	}
	return unknown(ReasonCheckRunning, "the check runs since %s", since.UTC().Format(time.RFC3339)), false
}

// begun is when the pod of a check got its node, or was made: one may have waited for room for as long as its node was full.
func begun(p *corev1.Pod) time.Time {
	at := p.CreationTimestamp.Time
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// Occupies says whether the pod of a check counts as one of those that run at once. One that waits for a processor or memory of its node
// may do so for as long as the node is full, and one that was to be gone already may never end: its node is gone, or its program hangs in
// the driver.
func Occupies(p *corev1.Pod, now time.Time) bool {
	if p.DeletionTimestamp != nil {
		return now.Sub(p.DeletionTimestamp.Time) < checkEnds
	}
	message, unscheduled := notScheduled(p)
	return !unscheduled || !noRoom(message)
}

func notScheduled(p *corev1.Pod) (message string, unscheduled bool) {
	if p.Spec.NodeName != "" {
		return "", false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message, true
		}
	}
	return "", false
}

// noRoom says that a node lacks what every pod needs, not what a claim does: a busy node is in order.
func noRoom(message string) bool {
	return slices.ContainsFunc([]string{"Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage", "Too many pods"},
		func(text string) bool { return strings.Contains(message, text) })
}

// said returns what the program said last.
func said(p *corev1.Pod) string {
	for i := range p.Status.ContainerStatuses {
		if t := p.Status.ContainerStatuses[i].State.Terminated; t != nil && (t.Message != "" || t.Reason != "") {
			return cmp.Or(strings.TrimSpace(t.Message), fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode))
		}
	}
	return ""
}

// waitsFor returns why the container does not run.
func waitsFor(p *corev1.Pod) string {
	for i := range p.Status.ContainerStatuses {
		if w := p.Status.ContainerStatuses[i].State.Waiting; w != nil && w.Reason != "" {
			return ", it waits: " + strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	return ""
}
