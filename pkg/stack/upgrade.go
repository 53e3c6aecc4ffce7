// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// DefaultDrainTimeout is for a stack that does not set it.
	DefaultDrainTimeout = 30 * time.Minute
	// changeTimeout is how long the change of a driver, or the checks after it, may take before the node counts as failed.
	changeTimeout = time.Hour
	// namedHolders is how many pods a message names.
	namedHolders = 3
)

// The reasons of the state Driver while a driver is to be changed.
const (
	// ReasonUpgradeWaiting: the node has not begun.
	ReasonUpgradeWaiting = "UpgradeWaiting"
	// ReasonUpgradeStopped: too many nodes have failed with the new driver.
	ReasonUpgradeStopped = "UpgradeStopped"
	// ReasonUpgradeDraining: pods that have devices of the node are to go.
	ReasonUpgradeDraining = "UpgradeDraining"
	// ReasonUpgradeDrainBlocked: they did not go in time.
	ReasonUpgradeDrainBlocked = "UpgradeDrainBlocked"
	// ReasonUpgradeQuiescing: the plugin lets go of the devices.
	ReasonUpgradeQuiescing = "UpgradeQuiescing"
	// ReasonUpgradeChanging: the engine changes the driver.
	ReasonUpgradeChanging = "UpgradeChanging"
	// ReasonUpgradeChecking: the node passes the states with the new driver.
	ReasonUpgradeChecking = "UpgradeChecking"
	// ReasonUpgradeOverdue: the change of the driver, or the checks after it, do not end.
	ReasonUpgradeOverdue = "UpgradeOverdue"
)

// Phase is how far the change of a node's driver is. It is not kept anywhere: it follows from annotations and from what is observed.
type Phase string

// The phases, in their order.
const (
	// PhaseCurrent: the node has the driver that is wanted.
	PhaseCurrent Phase = "Current"
	// PhaseWaiting: it has another, and nothing was done yet.
	PhaseWaiting Phase = "Waiting"
	// PhaseDraining: its devices have a taint, and pods that have some are evicted.
	PhaseDraining Phase = "Draining"
	// PhaseQuiescing: the plugin closes the devices.
	PhaseQuiescing Phase = "Quiescing"
	// PhaseChanging: the engine changes the driver.
	PhaseChanging Phase = "Changing"
	// PhaseChecking: the node passes the states with the new driver, still with the taint.
	PhaseChecking Phase = "Checking"
)

// Holder is a pod that holds a claim with devices of a node.
type Holder struct {
	Namespace, Name, UID string
	// Claim is the claim's name.
	Claim string
	// Admin says that it has admin access only, as a program that watches devices.
	Admin bool
}

func (h Holder) String() string { return h.Namespace + "/" + h.Name }

// UpgradeRules say how the drivers of a stack's nodes are changed.
type UpgradeRules struct {
	// Stack is the stack's name.
	Stack string
	// MaxUnavailable is how many nodes may be in change at once, MaxFailed how many may fail.
	MaxUnavailable, MaxFailed int
	DrainTimeout              time.Duration
	Force, Paused             bool
	// Blocked is why no driver can be changed now; empty: it can.
	Blocked string
}

// RulesOf returns the rules of a stack that holds for these nodes. Those without a device do not count.
func RulesOf(s *v1alpha1.AcceleratorStack, nodes []UpgradeNode) UpgradeRules {
	out := UpgradeRules{Stack: s.Name, MaxUnavailable: 1, MaxFailed: 1, DrainTimeout: DefaultDrainTimeout}
	u := s.Spec.Upgrade
	if u == nil {
		return out
	}
	if u.MaxUnavailable != nil {
		count := 0
		for i := range nodes {
			if !nodes[i].Outcome.Empty {
				count++
			}
		}
		out.MaxUnavailable = unavailable(*u.MaxUnavailable, count)
	}
	if u.MaxFailed != nil {
		out.MaxFailed = int(*u.MaxFailed)
	}
	if u.DrainTimeout != nil {
		out.DrainTimeout = u.DrainTimeout.Duration
	}
	out.Force, out.Paused = u.Force, u.Paused
	return out
}

// unavailable is at least 1: a stack of few nodes would never change their drivers.
func unavailable(most intstr.IntOrString, nodes int) int {
	if most.Type == intstr.Int {
		return max(int(most.IntVal), 1)
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(most.StrVal, "%"))
	if err != nil {
		return 1
	}
	return max(nodes*percent/100, 1)
}

// UpgradeNode is a node whose driver may have to be changed.
type UpgradeNode struct {
	*Node
	Outcome Outcome
	// Holders are the pods that hold claims with devices of the node.
	Holders []Holder
}

// Step is what to do for a node now. Each may be repeated.
type Step struct {
	Node  string
	Phase Phase
	// Annotations are wanted on the AcceleratorNode. An empty value means none. Nil: they stay as they are.
	Annotations map[string]string
	// Evict are pods to evict.
	Evict []Holder
	// Change says that the engine is to change the driver.
	Change bool
	// Failed says that the node has failed with the new driver, Stuck that it does not get as far.
	Failed, Stuck bool
	// Reason and Message are for the state Driver.
	Reason, Message string
}

// note is the value of an UpgradeAnnotation.
type note struct {
	stack string
	since time.Time
	// drain says that pods are to go, force that those which do not are to be deleted.
	drain, force bool
}

func (n note) String() string {
	text := n.stack + " " + n.since.UTC().Format(time.RFC3339)
	switch {
	case n.force:
		text += " " + v1alpha1.UpgradeForce
	case n.drain:
		text += " " + v1alpha1.UpgradeDrain
	}
	return text
}

// noteOf reads a value of the annotation. A time that is none is long ago.
func noteOf(value string) note {
	words := strings.Fields(value)
	var out note
	if len(words) > 0 {
		out.stack = words[0]
	}
	if len(words) > 1 {
		out.since, _ = time.Parse(time.RFC3339, words[1])
	}
	if len(words) > 2 {
		out.force = words[2] == v1alpha1.UpgradeForce
		out.drain = out.force || words[2] == v1alpha1.UpgradeDrain
	}
	return out
}

// UpgradedBy returns the name of the stack that changes the driver of the node with these annotations; empty: none does.
func UpgradedBy(annotations map[string]string) string {
	return noteOf(annotations[v1alpha1.UpgradeAnnotation]).stack
}

// Released returns the annotations with which a node is that is no longer upgraded.
func Released(annotations map[string]string) map[string]string {
	out := map[string]string{v1alpha1.UpgradeAnnotation: ""}
	if annotations[v1alpha1.QuiesceAnnotation] == v1alpha1.QuiesceByUpgrade {
		out[v1alpha1.QuiesceAnnotation] = ""
	}
	return out
}

// Changing says that the plugin has let go of a node's devices for an upgrade, so that the driver may be taken from under it.
func Changing(n *Node) bool {
	return UpgradedBy(n.Annotations) != "" && n.quiescedByUpgrade() && current(n) &&
		condition(n.Accelerator, v1alpha1.ConditionQuiesced).Status == metav1.ConditionTrue
}

func (n *Node) quiescedByUpgrade() bool {
	return n.Annotations[v1alpha1.QuiesceAnnotation] == v1alpha1.QuiesceByUpgrade
}

// outdated says that the engine is to bring another driver than the node has.
func (n *Node) outdated() bool { return n.Delivered.Reason == ReasonDriverOutdated }

// checksAfter returns the time before which results of checks are of the driver before. Zero: there is none.
func (n *Node) checksAfter() time.Time {
	value := n.Annotations[v1alpha1.UpgradeAnnotation]
	if value == "" || n.outdated() || n.quiescedByUpgrade() {
		return time.Time{}
	}
	return noteOf(value).since
}

// Upgrade says what to do for each node now. One that is stuck or has failed holds back no other, until more have failed than the rules
// allow.
func Upgrade(rules UpgradeRules, nodes []UpgradeNode, now time.Time) []Step {
	now = now.Truncate(time.Second)
	steps := make([]Step, len(nodes))
	busy, failed := 0, 0
	for i := range nodes {
		n := &nodes[i]
		by := UpgradedBy(n.Annotations)
		switch {
		case by == rules.Stack:
			steps[i] = rules.goOn(n, now)
		case by != "": // the stack that began it does not hold for the node any more
			steps[i] = Step{Phase: PhaseCurrent, Annotations: Released(n.Annotations)}
		default:
			steps[i] = Step{Phase: PhaseCurrent}
		}
		steps[i].Node = n.Name
		if steps[i].Failed {
			failed++
		} else if steps[i].Phase != PhaseCurrent && !steps[i].Stuck {
			busy++
		}
	}
	for i := range nodes {
		n := &nodes[i]
		if !n.outdated() || n.Accelerator == nil || UpgradedBy(n.Annotations) != "" {
			continue
		}
		if why, reason := rules.heldBack(n, busy, failed); why != "" {
			steps[i].Phase, steps[i].Reason, steps[i].Message = PhaseWaiting, reason, why
			continue
		}
		busy++
		begun := map[string]string{v1alpha1.UpgradeAnnotation: note{stack: rules.Stack, since: now, drain: true}.String()}
		steps[i].draining(n, "the change of the driver begins")
		steps[i].Annotations, steps[i].Evict = begun, nil // once the taint keeps other pods away
	}
	return steps
}

// heldBack says why a node does not begin.
func (r *UpgradeRules) heldBack(n *UpgradeNode, busy, failed int) (why, reason string) {
	_, held := n.Labels[v1alpha1.UpgradeHoldLabel]
	_, quiesce := n.Annotations[v1alpha1.QuiesceAnnotation]
	switch {
	case held:
		return "the label " + v1alpha1.UpgradeHoldLabel + " of the node holds it back", ReasonUpgradeWaiting
	case quiesce || quiesced(n.Accelerator):
		return fmt.Sprintf("the driver is quiesced by hand: kubectl annotate acceleratornode %s %s- ends that", n.Name,
			v1alpha1.QuiesceAnnotation), ReasonUpgradeWaiting
	case failed > r.MaxFailed:
		return fmt.Sprintf("%d nodes have failed with the new driver, and spec.upgrade.maxFailed is %d: mend them, or take the change back",
			failed, r.MaxFailed), ReasonUpgradeStopped
	case r.Blocked != "":
		return r.Blocked, ReasonUpgradeWaiting
	case r.Paused:
		return "spec.upgrade.paused is set", ReasonUpgradeWaiting
	case busy >= r.MaxUnavailable:
		return fmt.Sprintf("%d of %d nodes that may change their driver at once do: %s", busy, r.MaxUnavailable, n.Delivered.Message),
			ReasonUpgradeWaiting
	}
	return "", ""
}

// goOn continues with a node that has begun.
func (r *UpgradeRules) goOn(n *UpgradeNode, now time.Time) Step {
	at := noteOf(n.Annotations[v1alpha1.UpgradeAnnotation])
	lasts := now.Sub(at.since)
	switch {
	case n.quiescedByUpgrade():
		return r.change(n, lasts, now)
	case n.outdated():
		return r.drain(n, at, lasts, now)
	}
	return r.check(n, lasts)
}

func (r *UpgradeRules) drain(n *UpgradeNode, at note, lasts time.Duration, now time.Time) Step {
	var s Step
	_, byHand := n.Annotations[v1alpha1.QuiesceAnnotation]
	switch {
	case byHand:
		s.draining(n, "waits for the annotation "+v1alpha1.QuiesceAnnotation+", which was set by hand, to go")
	case quiesced(n.Accelerator):
		// The condition is of an earlier annotation. The next one would count as followed before the plugin has seen it.
		s.draining(n, "waits for the plugin to take back the devices that it let go of before")
	case !holdDevices(n.Holders):
		// Programs that watch devices come back as long as there are devices. They go once there are none.
		s.Phase, s.Reason, s.Message = PhaseQuiescing, ReasonUpgradeQuiescing, "no pod has devices of the node: the plugin lets go of them"
		s.Annotations = map[string]string{
			v1alpha1.UpgradeAnnotation: note{stack: r.Stack, since: now}.String(), v1alpha1.QuiesceAnnotation: v1alpha1.QuiesceByUpgrade,
		}
		return s
	default:
		s.draining(n, "waits for pods with devices of the node to go: "+named(n.Holders))
	}
	if !at.drain { // a version before this word began it
		at.drain = true
		s.Annotations = map[string]string{v1alpha1.UpgradeAnnotation: at.String()}
	}
	if lasts < r.DrainTimeout {
		return s
	}
	s.Stuck, s.Reason = true, ReasonUpgradeDrainBlocked
	s.Message += fmt.Sprintf(", for longer than %s", r.DrainTimeout)
	if r.Force != at.force {
		at.force = r.Force
		s.Annotations = map[string]string{v1alpha1.UpgradeAnnotation: at.String()}
	}
	return s
}

// drainAgain is for pods that got devices before these were withheld, and do not go: only a taint deletes pods, and what is withheld has
// none.
func (r *UpgradeRules) drainAgain(n *UpgradeNode, since time.Time) Step {
	s := Step{Stuck: true, Annotations: map[string]string{
		v1alpha1.UpgradeAnnotation: note{stack: r.Stack, since: since, drain: true, force: true}.String(), v1alpha1.QuiesceAnnotation: "",
	}}
	s.draining(n, "pods got devices of the node before these were withheld, and have to go: "+named(n.Holders))
	s.Reason = ReasonUpgradeDrainBlocked
	return s
}

// holdDevices says whether any of the pods has devices with more than admin access.
func holdDevices(holders []Holder) bool {
	return slices.ContainsFunc(holders, func(h Holder) bool { return !h.Admin })
}

func (s *Step) draining(n *UpgradeNode, message string) {
	s.Phase, s.Reason, s.Message = PhaseDraining, ReasonUpgradeDraining, message
	for _, h := range n.Holders {
		if !h.Admin {
			s.Evict = append(s.Evict, h)
		}
	}
}

func (r *UpgradeRules) change(n *UpgradeNode, lasts time.Duration, now time.Time) Step {
	// With another version than was expected nothing is left to change: what the plugin reports while it has let go may be old, too.
	if n.Delivered.Status == Passed || n.Delivered.Reason == ReasonDriverOtherVersion {
		return Step{
			Phase: PhaseChecking, Reason: ReasonUpgradeChecking, Message: "the driver was changed, and the plugin takes the devices back",
			Annotations: map[string]string{
				v1alpha1.UpgradeAnnotation: note{stack: r.Stack, since: now}.String(), v1alpha1.QuiesceAnnotation: "",
			},
		}
	}
	s := Step{
		Phase: PhaseChanging, Reason: ReasonUpgradeChanging, Message: "the driver is being changed: " + n.Delivered.Message, Change: true,
	}
	if !Changing(n.Node) {
		if r.Force && lasts >= r.DrainTimeout && holdDevices(n.Holders) {
			return r.drainAgain(n, now.Add(-lasts))
		}
		s = Step{Phase: PhaseQuiescing, Reason: ReasonUpgradeQuiescing, Evict: n.Holders, Stuck: lasts >= r.DrainTimeout}
		why := "the plugin has not let go of the devices yet"
		if v := facts(n.Node); v.Status != Passed {
			why = v.Message
		} else if c := condition(n.Accelerator, v1alpha1.ConditionQuiesced); c.Message != "" {
			why = c.Message
		}
		s.Message = "waits until nothing uses the driver: " + why
		return s
	}
	if c := condition(n.Accelerator, v1alpha1.ConditionQuiesced); c.Reason == v1alpha1.ReasonUsedByOthers {
		s.Message += "; " + c.Message
	}
	s.Failed = n.Delivered.Status == Failed
	s.overdue(lasts)
	return s
}

func (r *UpgradeRules) check(n *UpgradeNode, lasts time.Duration) Step {
	w, waits := n.Outcome.Waits()
	if !waits || !w.Failed && w.Reason == ReasonChecksOff {
		return Step{Phase: PhaseCurrent, Annotations: map[string]string{v1alpha1.UpgradeAnnotation: ""}}
	}
	s := Step{
		Phase: PhaseChecking, Reason: ReasonUpgradeChecking, Failed: w.Failed,
		Message: fmt.Sprintf("the driver was changed; the state %s is not passed yet: %s", w.State, cmp.Or(w.Message, w.Reason)),
	}
	if w.Reason == ReasonCheckNoRoom { // the node is full, which says nothing of the driver
		s.Stuck = lasts >= changeTimeout
		return s
	}
	s.overdue(lasts)
	return s
}

// overdue has a node that takes too long count as failed.
func (s *Step) overdue(lasts time.Duration) {
	if s.Failed || lasts < changeTimeout {
		return
	}
	s.Failed, s.Reason = true, ReasonUpgradeOverdue
	s.Message += fmt.Sprintf(", for longer than %s", changeTimeout)
}

func named(holders []Holder) string {
	var names []string
	for _, h := range holders {
		if !h.Admin {
			names = append(names, h.String())
		}
	}
	if len(names) > namedHolders {
		return strings.Join(names[:namedHolders], ", ") + fmt.Sprintf(" and %d more", len(names)-namedHolders)
	}
	return strings.Join(names, ", ")
}

// Unwritten is for a step that could not be taken: a node that was to be released still has the taint, and is not available yet.
func (s *Step) Unwritten() {
	if s.Phase == PhaseCurrent {
		s.Phase, s.Reason, s.Message = PhaseChecking, ReasonUpgradeChecking, "the change is over, and the taint of it is about to go"
	}
}

// Upgrading puts a step into the outcome of its node: the state Driver is in doubt while the driver is changed. What failed stays.
func (o *Outcome) Upgrading(s *Step) {
	if s.Phase == PhaseCurrent {
		return
	}
	o.UpgradeRuns = s.Phase != PhaseWaiting
	at := slices.Index(o.States, v1alpha1.StateDriver)
	if o.Verdicts[at].Status == Failed {
		return
	}
	o.Verdicts[at] = unknown(s.Reason, "%s", s.Message)
	if s.Reason == ReasonUpgradeOverdue {
		o.Verdicts[at].Status = Failed
	}
}
