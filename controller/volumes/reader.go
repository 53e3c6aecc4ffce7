// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// Reader reads the objects that a plan depends on.
type Reader struct {
	// Cached has the claims and Jobs with [UIDLabel], and the metadata of namespaces and nodes.
	Cached client.Reader
	// Live reads pods, and claims that the cache does not have.
	Live client.Reader
	// Users also reads the pods that use filled claims. Without it the reader reads only pods that block the filling of a claim, and those
	// of Jobs.
	Users bool
	// Clock is the time.
	Clock clock.PassiveClock
}

// Plan reads the objects and plans. It reads nothing if volumes are disabled or the cache is being deleted.
func (r Reader) Plan(ctx context.Context, o Object, options Options) (Plan, error) {
	if !options.Enabled || o.Deleting {
		return Make(o, options, Observed{}), nil
	}
	if err := r.template(ctx, &o); err != nil {
		return Plan{}, err
	}
	w, err := r.Observed(ctx, o)
	if err != nil {
		return Plan{}, err
	}
	return Make(o, options, w), nil
}

// template reads the pod template of an object of which the cache left it out.
func (r Reader) template(ctx context.Context, o *Object) error {
	if t := o.Spec.PodTemplate; t == nil || !t.LeftOut || !o.Wants() {
		return nil
	}
	var live v1alpha1.GPUKernelCache
	if err := r.Live.Get(ctx, o.key(), &live); err != nil {
		return fmt.Errorf("read podTemplate of %s %s: %w", o.Kind, o.key(), err)
	}
	if live.UID != o.UID {
		return fmt.Errorf("read podTemplate of %s %s: it was made again meanwhile", o.Kind, o.key())
	}
	spec := *o.Spec
	o.Spec, spec.PodTemplate = &spec, live.Spec.PodTemplate
	return nil
}

// Observed reads the objects that the plan of a cache depends on.
func (r Reader) Observed(ctx context.Context, o Object) (Observed, error) {
	w := Observed{
		Namespaces: map[string]bool{}, Claims: map[Key]*corev1.PersistentVolumeClaim{}, Jobs: map[Key]*batchv1.Job{}, Now: r.Clock.Now(),
	}
	for _, read := range []func(context.Context, Object, *Observed) error{r.owned, r.namespaces, r.nodes, r.foreignClaims, r.pods} {
		if err := read(ctx, o, &w); err != nil {
			return Observed{}, fmt.Errorf("volumes of %s %s: %w", o.Kind, client.ObjectKey{Namespace: o.Namespace, Name: o.Name}, err)
		}
	}
	return w, nil
}

// owned reads the claims and Jobs of the object in all namespaces.
func (r Reader) owned(ctx context.Context, o Object, w *Observed) error {
	its := client.MatchingLabels{UIDLabel: string(o.UID)}
	var claims corev1.PersistentVolumeClaimList
	if err := r.Cached.List(ctx, &claims, its); err != nil {
		return fmt.Errorf("list PersistentVolumeClaims: %w", err)
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		w.Claims[Key{c.Namespace, c.Name}] = c
	}
	var jobs batchv1.JobList
	if err := r.Cached.List(ctx, &jobs, its); err != nil {
		return fmt.Errorf("list Jobs: %w", err)
	}
	for i := range jobs.Items {
		j := &jobs.Items[i]
		w.Jobs[Key{j.Namespace, j.Name}] = j
	}
	return nil
}

func (r Reader) namespaces(ctx context.Context, o Object, w *Observed) error {
	for _, name := range o.Namespaces {
		n := reconciler.Metadata("v1", "Namespace")
		err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, n)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read namespace %s: %w", name, err)
		}
		w.Namespaces[name] = err == nil && n.DeletionTimestamp == nil
	}
	return nil
}

// nodes reads the nodes. Those with an AcceleratorNode run the driver. One that has none may have lost it for a while: an administrator or
// an uninstall that was given up deletes it, and the plugin makes it again.
func (r Reader) nodes(ctx context.Context, o Object, w *Observed) error {
	if o.Type() != v1alpha1.CacheRWOPerNode {
		return nil
	}
	var reports v1alpha1.AcceleratorNodeList
	if err := r.Cached.List(ctx, &reports); err != nil {
		return fmt.Errorf("list AcceleratorNodes: %w", err)
	}
	var all corev1.NodeList
	if err := r.Cached.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	caches := map[string][]v1alpha1.NodeCache{}
	for i := range reports.Items {
		caches[reports.Items[i].Name] = o.reportedBy(&reports.Items[i].Status)
	}
	for i := range all.Items {
		n := &all.Items[i]
		of, reported := caches[n.Name]
		w.Nodes = append(w.Nodes, Node{Name: n.Name, Labels: n.Labels, Unreported: !reported, Caches: of})
	}
	return nil
}

// foreignClaims reads claims of other owners that have a name of the object's claims. The manager's cache does not hold them. There may be
// one for each node, so before anything is made only those are read that a Job may still write to.
func (r Reader) foreignClaims(ctx context.Context, o Object, w *Observed) error {
	wanted, _ := o.wanted(*w)
	if !o.Wants() {
		return nil
	}
	filled := map[Key]bool{}
	for _, j := range w.Jobs {
		filled[Key{j.Namespace, j.Annotations[ClaimAnnotation]}] = true
	}
	for _, v := range wanted {
		key := Key{v.Namespace, v.ClaimName}
		if w.Claims[key] != nil || o.digest() == "" && !filled[key] {
			continue
		}
		c := &corev1.PersistentVolumeClaim{}
		err := r.Live.Get(ctx, client.ObjectKey(key), c)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", key.Namespace, key.Name, err)
		}
		if err == nil {
			w.Claims[key] = c
		}
	}
	return nil
}

// pods reads the pods of the namespaces with a claim of the object: all of these, or those with a claim that is to be filled.
func (r Reader) pods(ctx context.Context, o Object, w *Observed) error {
	var namespaces []string
	for key, c := range w.Claims {
		if o.owns(c.Labels) && (r.Users || !o.has(c) || c.DeletionTimestamp != nil) {
			namespaces = append(namespaces, key.Namespace)
		}
	}
	slices.Sort(namespaces)
	for _, namespace := range slices.Compact(namespaces) {
		if err := r.podsIn(ctx, namespace, o, w); err != nil {
			return fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
	}
	return nil
}

// podsIn reads the pods of a namespace in pages and keeps those that use a claim or fill one.
func (r Reader) podsIn(ctx context.Context, namespace string, o Object, w *Observed) error {
	counts := func(p *corev1.Pod) bool {
		return o.owns(p.Labels) || slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && w.Claims[Key{namespace, v.PersistentVolumeClaim.ClaimName}] != nil
		})
	}
	before := len(w.Pods)
	begin := func() { w.Pods = w.Pods[:before] }
	pods := reconciler.Listing{Reader: r.Live, List: &corev1.PodList{}, Options: []client.ListOption{client.InNamespace(namespace)}}
	return pods.Read(ctx, begin, func(o runtime.Object) error {
		if p, ok := o.(*corev1.Pod); ok && counts(p) {
			w.Pods = append(w.Pods, trimPod(p, w.Claims))
		}
		return nil
	})
}

// trimPod keeps of a pod what a plan reads: whose it is, which of the claims it uses, and what keeps it from running.
func trimPod(p *corev1.Pod, claims map[Key]*corev1.PersistentVolumeClaim) corev1.Pod {
	out := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, CreationTimestamp: p.CreationTimestamp},
		Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message, Conditions: p.Status.Conditions,
			ContainerStatuses: p.Status.ContainerStatuses,
		},
	}
	for _, label := range []string{UIDLabel, batchv1.JobNameLabel} {
		if value, labelled := p.Labels[label]; labelled {
			metav1.SetMetaDataLabel(&out.ObjectMeta, label, value)
		}
	}
	for _, v := range p.Spec.Volumes {
		if c := v.PersistentVolumeClaim; c != nil && claims[Key{p.Namespace, c.ClaimName}] != nil {
			out.Spec.Volumes = append(out.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: c}})
		}
	}
	return out
}

// Planner plans the volumes of caches: for the reconciler that carries plans out, and for the status of caches. It remembers why the last
// plan of a cache could not be carried out, such as a quota of the namespace, since the status has to say that.
type Planner struct {
	reader  Reader
	options Options
	// failures are texts, by the cache's name.
	failures sync.Map
}

// NewPlanner returns a planner.
func NewPlanner(s reconciler.Services, options Options) *Planner {
	return &Planner{reader: Reader{Cached: s.Client, Live: s.Live, Clock: s.Clock}, options: options}
}

// Enabled says whether plans are carried out.
func (p *Planner) Enabled() bool { return p.options.Enabled }

// Report plans for the status of a cache: with the pods that use its volumes, and with the error of the last plan that was carried out. A
// cache without volumes has an empty plan.
func (p *Planner) Report(ctx context.Context, o Object) (Plan, error) {
	if !o.Wants() {
		return Plan{}, nil
	}
	reader := p.reader
	reader.Users = true
	plan, err := reader.Plan(ctx, o, p.options)
	if failure, failed := p.failures.Load(o.key()); failed {
		plan.Stuck = append(plan.Stuck, fmt.Sprint(failure))
	}
	return plan, err
}

// note remembers the error of the last plan of a cache; nil forgets it.
func (p *Planner) note(cache types.NamespacedName, err error) {
	if err == nil {
		p.failures.Delete(cache)
		return
	}
	p.failures.Store(cache, strings.ReplaceAll(err.Error(), "\n", "; "))
}
