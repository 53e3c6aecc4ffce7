// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/stack"
)

const (
	// checkOwner is the field manager of the results in the status of AcceleratorNodes, whose other fields are the plugin's.
	checkOwner = "fettle-checks"
	// maxChecks is how many pods of checks a stack has at once, beside those that wait for room on full nodes and those that do not end.
	maxChecks = 16
	// checkPause is how often a check that runs is looked at, if nothing is heard of its pod.
	checkPause = time.Minute
	// checksOff is for a cluster where checks are switched off.
	checksOff = "the controller may not check claims: set selfTest.enabled in the chart's values"
)

// checker checks the claims of nodes by pods.
type checker struct {
	reconciler.Services

	options Checks
}

// checksOf says how the claims of a stack's nodes are checked.
func (c *checker) checksOf(s *v1alpha1.AcceleratorStack) stack.Checks {
	out := stack.ChecksOf(s)
	if c.options.Namespace == "" {
		out.Off = checksOff
	}
	return out
}

// pods returns the pods of a stack's checks, by node.
func (c *checker) pods(ctx context.Context, s *v1alpha1.AcceleratorStack) (map[string][]*corev1.Pod, error) {
	out := map[string][]*corev1.Pod{}
	if c.options.Namespace == "" {
		return out, nil
	}
	var pods corev1.PodList
	err := c.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.InNamespace(c.options.Namespace), client.HasLabels{checkLabel})
	if err != nil {
		return nil, fmt.Errorf("list the pods of checks: %w", err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Annotations[stackAnnotation] == s.Name {
			out[p.Annotations[nodeAnnotation]] = append(out[p.Annotations[nodeAnnotation]], p)
		}
	}
	return out, nil
}

// settle looks at a node's check pods: it notes those that run, writes down the results of those that ended, and returns the pods that have
// served.
func (c *checker) settle(ctx context.Context, n *stack.Node, pods []*corev1.Pod) (over []*corev1.Pod, err error) {
	var ended []v1alpha1.NodeCheck
	for _, p := range pods {
		class := p.Annotations[classAnnotation]
		if p.DeletionTimestamp != nil {
			n.Checks.Running[class] = stack.Verdict{Reason: stack.ReasonCheckRunning, Message: "the pod of an earlier check is being deleted"}
			continue
		}
		evidence := stack.Evidence(n, class)
		if evidence == "" || evidence != p.Annotations[evidenceAnnotation] { // of another boot, driver or plugin: it proves nothing
			over = append(over, p)
			continue
		}
		v, done := stack.Ended(p, n.Checks.Timeout, c.Clock.Now())
		if !done {
			n.Checks.Running[class] = v
			continue
		}
		ended = append(ended, v1alpha1.NodeCheck{
			DeviceClassName: class, Evidence: evidence, Passed: v.Status == stack.Passed, Reason: v.Reason, Message: v.Message,
			Time: metav1.NewTime(c.Clock.Now().Truncate(time.Second)),
		})
		over = append(over, p)
	}
	if len(ended) == 0 {
		return over, nil
	}
	results, err := c.liveResults(ctx, n.Name)
	if err != nil {
		return over, err
	}
	for _, r := range ended {
		results = withResult(results, r, n.Checks.Classes)
	}
	n.Accelerator = n.Accelerator.DeepCopy()
	n.Accelerator.SetChecks(results)
	return over, c.writeChecks(ctx, n)
}

// liveResults reads the results of a node. The cache may not have the last ones yet, and a write without them would delete them.
func (c *checker) liveResults(ctx context.Context, node string) ([]v1alpha1.NodeCheck, error) {
	var live v1alpha1.AcceleratorNode
	if err := c.Live.Get(ctx, client.ObjectKey{Name: node}, &live); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the checks of AcceleratorNode %s: %w", node, err)
	}
	return live.Status.Checks, nil
}

// withResult adds a result. Of too many the oldest goes that is of none of the classes.
func withResult(results []v1alpha1.NodeCheck, r v1alpha1.NodeCheck, classes []string) []v1alpha1.NodeCheck {
	results = slices.DeleteFunc(results, func(old v1alpha1.NodeCheck) bool { return old.DeviceClassName == r.DeviceClassName })
	results = append(results, r)
	wanted := func(c v1alpha1.NodeCheck) int {
		if slices.Contains(classes, c.DeviceClassName) {
			return 1
		}
		return 0
	}
	slices.SortFunc(results, func(a, b v1alpha1.NodeCheck) int {
		return cmp.Or(cmp.Compare(wanted(a), wanted(b)), a.Time.Compare(b.Time.Time), cmp.Compare(a.DeviceClassName, b.DeviceClassName))
	})
	results = results[max(len(results)-v1alpha1.MaxNodeChecks, 0):]
	slices.SortFunc(results, func(a, b v1alpha1.NodeCheck) int { return cmp.Compare(a.DeviceClassName, b.DeviceClassName) })
	return results
}

// writeChecks applies the results, and nothing else: the zero values of other fields would take them from the plugin.
func (c *checker) writeChecks(ctx context.Context, n *stack.Node) error {
	entries := []any{}
	for _, c := range n.Accelerator.Checks {
		entries = append(entries, map[string]any{
			"deviceClassName": c.DeviceClassName, "evidence": c.Evidence, "passed": c.Passed, "reason": c.Reason, "message": c.Message,
			"time": c.Time.UTC().Format(time.RFC3339),
		})
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"checks": entries}}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AcceleratorNode"))
	object.SetName(n.Name)
	results := client.ApplyConfigurationFromUnstructured(object)
	err := c.Client.Status().Apply(ctx, results, client.FieldOwner(checkOwner), client.ForceOwnership)
	if client.IgnoreNotFound(err) != nil { // a node that is gone has nothing to be noted
		return fmt.Errorf("write the checks of AcceleratorNode %s: %w", n.Name, err)
	}
	return nil
}

// begin makes the pods of checks that are due, as far as there are not too many.
func (c *checker) begin(ctx context.Context, s *v1alpha1.AcceleratorStack, n *stack.Node, due []string, room *int) error {
	var errs []error
	for _, class := range due {
		if *room <= 0 {
			return errors.Join(errs...)
		}
		*room--
		check := &claimCheck{stack: s, node: n.Name, class: class, evidence: stack.Evidence(n, class)}
		err := c.Client.Create(ctx, c.options.template(class))
		if err == nil || apierrors.IsAlreadyExists(err) {
			err = c.Client.Create(ctx, c.options.pod(check))
		}
		if err != nil && !apierrors.IsAlreadyExists(err) { // the cache is behind if it exists
			errs = append(errs, fmt.Errorf("check a claim of class %s on node %s: %w", class, n.Name, err))
			continue
		}
		n.Checks.Running[class] = stack.Verdict{Reason: stack.ReasonCheckRunning, Message: "the check has begun"}
		klog.FromContext(ctx).V(2).Info("Checking a claim", "stack", s.Name, "node", n.Name, "class", class)
	}
	return errors.Join(errs...)
}

// remove deletes pods that have served.
func (c *checker) remove(ctx context.Context, pods []*corev1.Pod) error {
	var errs []error
	for _, p := range pods {
		err := c.Client.Delete(ctx, p, client.Preconditions{UID: ptr.To(p.UID)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err))
		}
	}
	return errors.Join(errs...)
}
