// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/cmd/fettle/internal/terminal"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/explain"
	"github.com/fettle-dev/fettle/pkg/plan/page"
)

const explainPodHelp = `
Says why a pod has no devices: first the one change that would help most, then what the scheduler said and what that means, then what is
missing on each node. With -v every device is listed with every check that fails, also those that the scheduler does not come to.
With -o html it is a page for a browser, in one file, that draws the devices with what is against each.

Of a cluster:  fettle explain pod NAME [-n NAMESPACE]
Of files:      fettle explain pod NAME -f FILE|DIR [-f ...]

The scheduler's own allocator tries every node. The devices of 200 nodes are looked at one by one, those first on which only devices are
missing; a note says so if there are more, and --all-nodes looks at all.

Changes are tried with the scheduler's own allocator: without a taint, a constraint, what other claims hold, or a selector. What you may not
read is not named: claims of other namespaces are counted, and a note says what is missing.`

const explainPodExamples = `
fettle explain pod train
fettle explain pod train -n research -v
fettle explain pod train -f snapshot.yaml -o json
fettle explain pod train -o html > why.html`

const explainClaimHelp = `
Says who has a ResourceClaim, or why the first pod that waits for it has no devices. A claim that no pod waits for is explained as if a pod
that may be on any node did.

Of a cluster:  fettle explain claim NAME [-n NAMESPACE]
Of files:      fettle explain claim NAME -f FILE|DIR [-f ...]

With -v every device is listed with every check that fails. With -o html it is a page for a browser that draws them.`

const explainClaimExamples = `
fettle explain claim train-gpu
fettle explain claim train-gpu -n research -v
fettle explain claim train-gpu -f snapshot.yaml -o yaml`

// lookedAtNodes is how many nodes are looked at device by device. The scheduler's allocator, which says whether any node fits, tries all.
const lookedAtNodes = 200

// explainTimeout bounds an explanation. What was found until then is shown.
const explainTimeout = time.Minute

// objectFlags are those of explain pod and explain claim.
type objectFlags struct {
	*snapshotFlags
	verbose *bool
	// all is set if every node is judged, however many there are.
	all *bool
	// draw is set if a page is made, for which every device is judged.
	draw bool
}

func explainPod(flags *arguments) action {
	return explainObject(flags, corev1.SchemeGroupVersion.WithResource("pods"),
		func(ctx context.Context, c *plan.Cluster, key types.NamespacedName, o explain.Options) (explain.Explanation, bool) {
			at := slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return p.Namespace == key.Namespace && p.Name == key.Name })
			if at < 0 {
				return explain.Explanation{}, false
			}
			return explain.Pod(ctx, c, c.Pods[at], o), true
		})
}

func explainClaim(flags *arguments) action {
	return explainObject(flags, resourceapi.SchemeGroupVersion.WithResource("resourceclaims"),
		func(ctx context.Context, c *plan.Cluster, key types.NamespacedName, o explain.Options) (explain.Explanation, bool) {
			claim := c.Claims[key]
			if claim == nil {
				return explain.Explanation{}, false
			}
			return explain.Claim(ctx, c, claim, o), true
		})
}

// explainer explains an object of a cluster, if it is there.
type explainer func(context.Context, *plan.Cluster, types.NamespacedName, explain.Options) (explain.Explanation, bool)

func explainObject(flags *arguments, resource schema.GroupVersionResource, explained explainer) action {
	f := objectFlags{snapshotFlags: flags.snapshot()}
	f.verbose = flags.BoolP("verbose", "v", false, "list every device with every check that fails")
	f.all = flags.Bool("all-nodes", false, fmt.Sprintf("look at the devices of every node (default: of %d nodes)", lookedAtNodes))
	format := flags.formatOf("table", "json", "yaml", formatPage)
	flags.completeOperand(func(ctx context.Context, _ string) []string {
		return f.names(ctx, func(ctx context.Context, r *reader, namespace string) []string {
			names, _ := r.namesOf(ctx, resource, namespace)
			return names
		})
	})
	return func(ctx context.Context, operands []string, stdout, stderr io.Writer) error {
		f.fromCluster = f.fromCluster || len(f.files) == 0
		if err := f.check(flags); err != nil {
			return flags.misused(err)
		}
		ctx, cancel := context.WithTimeout(ctx, explainTimeout)
		defer cancel()
		f.draw = *format == formatPage
		e, err := f.explain(ctx, resource, operands[0], explained, stderr)
		if err != nil {
			return fmt.Errorf("%s %s: %w", flags.name, operands[0], err)
		}
		return show(*format, e.Explanation, stdout, func(stdout io.Writer) error {
			if f.draw {
				return page.Write(stdout, e.page())
			}
			return e.WriteText(stdout)
		})
	}
}

// explain reads the cluster or the files, and explains the object.
func (f *objectFlags) explain(
	ctx context.Context, resource schema.GroupVersionResource, name string, explained explainer, stderr io.Writer,
) (explanation, error) {
	key := types.NamespacedName{Namespace: f.defaultNamespace(), Name: name}
	if f.fromCluster {
		_, namespace, err := f.client()
		if err != nil {
			return explanation{}, err
		}
		key.Namespace = namespace
	}
	snapshot, problems, err := f.read(ctx)
	if err != nil {
		return explanation{}, err
	}
	o := explain.Options{
		Devices: *f.verbose || f.draw, MaxNodes: lookedAtNodes, MoreNodes: "see --all-nodes", Parallel: runtime.GOMAXPROCS(0),
		Judged: func(done, of int) { terminal.FromContext(ctx).Objects("looking at nodes", int64(done), int64(of)) },
	}
	if *f.all {
		o.MaxNodes = 0
	}
	o.Unread, problems = explain.Unread(problems)
	if slices.Contains(o.Unread, "nodes") {
		explain.AddNodes(&snapshot)
	}
	if slices.Contains(o.Unread, "namespaces") {
		f.ownNamespace(ctx, &snapshot, key.Namespace)
	}
	if f.fromCluster && resource.Resource == "pods" {
		if o.Events, err = f.events(ctx, key); err != nil {
			problems = append(problems, plan.Problem{
				Object: "Events of pod " + name, Message: fmt.Sprintf("none were read, and the scheduler may have said more: %v", err),
			})
		}
	}
	c, more, err := plan.Adopt(snapshot)
	if err != nil {
		return explanation{}, err
	}
	for _, p := range append(problems, more...) {
		if _, err := fmt.Fprintf(stderr, "%s: %s\n", p.Object, p.Message); err != nil {
			return explanation{}, err
		}
	}
	before := page.Allocated(c)
	terminal.FromContext(ctx).Step("trying "+counted(len(c.Nodes), "node"), 0)
	e, found := explained(ctx, c, key, o)
	if !found {
		return explanation{}, f.notThere(key, resource.Resource)
	}
	return explanation{e, c, before}, nil
}

// notThere says that there is no such object, and what to look at.
func (f *objectFlags) notThere(key types.NamespacedName, resource string) error {
	if !f.fromCluster {
		return fmt.Errorf("namespace %s of the files has no such object: want --namespace, or a file that has it", key.Namespace)
	}
	hint := "look with kubectl get " + resource + " -A"
	if resource == "resourceclaims" {
		hint += "; claims of templates have names of their own, so fettle explain pod may be what you want"
	}
	return fmt.Errorf("namespace %s has no such object: %s", key.Namespace, hint)
}

// ownNamespace reads the one namespace that a tenant may read. Without it, admin access looks refused.
func (f *objectFlags) ownNamespace(ctx context.Context, s *plan.Snapshot, name string) {
	client, _, err := f.client()
	if err != nil {
		return
	}
	namespace := &corev1.Namespace{}
	if client.get(ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "", name, namespace) == nil {
		s.Namespaces = append(s.Namespaces, namespace)
	}
}

// events reads what was said of a pod. Without the right to, the pod's condition is all there is.
func (f *objectFlags) events(ctx context.Context, key types.NamespacedName) ([]*corev1.Event, error) {
	client, _, err := f.client()
	if err != nil {
		return nil, err
	}
	return listOf(ctx, client, corev1.SchemeGroupVersion.WithResource("events"), choice[corev1.Event]{
		namespace: key.Namespace, fields: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": key.Name},
	})
}
