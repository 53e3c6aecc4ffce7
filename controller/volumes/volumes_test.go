// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	one = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	two = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

// on is what the controller is started with.
func on() Options { return Options{Enabled: true, Image: "registry.example/fettle:v1"} }

// object is a cache of some namespaces, resolved and verified.
func object(kind v1alpha1.CacheDistributionType, digest string, namespaces ...string) Object {
	c := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "uid", Generation: 3}}
	c.Spec.Image, c.Spec.WorkloadNamespaces = "registry.example:5000/team/kernels:v1", namespaces
	c.Spec.Distribution = &v1alpha1.CacheDistribution{Type: kind}
	c.Status = v1alpha1.GPUKernelCacheStatus{
		ObservedGeneration: 3, ResolvedDigest: digest, Image: &v1alpha1.CacheImage{Digest: digest, CompressedBytes: 1 << 20, Bytes: 40 << 20},
		Verification: &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictVerified},
	}
	return Of(c.Common())
}

// start is when all Jobs were made.
var start = time.Unix(1e9, 0)

// observed returns namespaces and nodes, after plans were carried out.
func observed(namespaces, nodes string, done ...Plan) Observed {
	w := Observed{Now: start, Namespaces: map[string]bool{}, Claims: map[Key]*corev1.PersistentVolumeClaim{}, Jobs: map[Key]*batchv1.Job{}}
	for _, n := range strings.Fields(namespaces) {
		w.Namespaces[n] = true
	}
	for _, n := range strings.Fields(nodes) {
		w.Nodes = append(w.Nodes, Node{Name: n, Labels: map[string]string{"name": n}})
	}
	for _, p := range done {
		w = w.after(p)
	}
	return w
}

// after returns the objects after a plan was carried out.
func (w Observed) after(p Plan) Observed {
	for _, o := range p.Delete {
		key := Key{o.GetNamespace(), o.GetName()}
		if _, job := o.(*batchv1.Job); job {
			delete(w.Jobs, key)
		} else {
			delete(w.Claims, key)
		}
	}
	for _, m := range p.Mark {
		annotations := w.Claims[Key{m.Claim.Namespace, m.Claim.Name}].Annotations
		annotations[DigestAnnotation], annotations[PathAnnotation] = m.Digest, m.Path
	}
	for _, o := range p.Create {
		key := Key{o.GetNamespace(), o.GetName()}
		switch o := o.(type) {
		case *batchv1.Job:
			o.CreationTimestamp = metav1.NewTime(start)
			w.Jobs[key] = o
		case *corev1.PersistentVolumeClaim:
			o.Status.Phase = corev1.ClaimBound
			w.Claims[key] = o
		}
	}
	return w
}

// finish ends all Jobs.
func (w Observed) finish(how batchv1.JobConditionType, reason string) {
	for _, j := range w.Jobs {
		j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue, Reason: reason, Message: "its condition"}}
	}
}

// brief is a plan in a few words.
func brief(p Plan) string {
	var lines []string
	for _, o := range p.Delete {
		lines = append(lines, fmt.Sprintf("delete %s %s/%s", o.GetObjectKind().GroupVersionKind().Kind, o.GetNamespace(), o.GetName()))
	}
	for _, m := range p.Mark {
		lines = append(lines, fmt.Sprintf("mark %s/%s %.9s", m.Claim.Namespace, m.Claim.Name, m.Digest))
	}
	for _, o := range p.Create {
		lines = append(lines, fmt.Sprintf("create %s %s/%s", o.GetObjectKind().GroupVersionKind().Kind, o.GetNamespace(), o.GetName()))
	}
	for _, v := range p.Volumes {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s/%s %s %.9s: %s", v.Namespace, v.ClaimName, v.Phase, v.Digest, v.Message)))
	}
	for _, m := range p.Missing {
		lines = append(lines, "missing "+m)
	}
	lines = append(lines, p.Messages...)
	for _, s := range p.Stuck {
		lines = append(lines, "stuck: "+s)
	}
	for _, u := range p.Pods {
		lines = append(lines, fmt.Sprintf("pod on %s with %.9s", u.Node, u.Digest))
	}
	return strings.Join(lines, "\n")
}

func want(t *testing.T, p Plan, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(lines, "\n"), brief(p)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// TestROX follows a volume of each namespace from nothing to a moved digest.
func TestROX(t *testing.T) {
	o, w := object(v1alpha1.CacheROXVolume, one, "b", "a", "gone"), observed("a b", "n1 n2")
	p := Make(o, on(), w)
	want(t, p, "create PersistentVolumeClaim a/cache", "create Job a/cache-111111111111",
		"create PersistentVolumeClaim b/cache", "create Job b/cache-111111111111",
		"a/cache Pending : its claim and its Job are being made", "b/cache Pending : its claim and its Job are being made", "missing gone")
	w = w.after(p)
	want(t, Make(o, on(), w), "a/cache Filling :", "b/cache Filling :", "missing gone")
	w.finish(batchv1.JobComplete, "")
	p = Make(o, on(), w)
	want(t, p, "mark a/cache sha256:11", "mark b/cache sha256:11", "a/cache Filled sha256:11:", "b/cache Filled sha256:11:", "missing gone")
	w = w.after(p)
	if p = Make(o, on(), w); !p.Settled() {
		t.Errorf("not settled:\n%s", brief(p))
	}

	o = object(v1alpha1.CacheROXVolume, two, "b", "a", "gone")
	w.Pods = []corev1.Pod{
		podOf("a", "reader", "cache", nil), podOf("b", "ended", "cache", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	p = Make(o, on(), w)
	want(t, p, "delete Job a/cache-111111111111", "delete Job b/cache-111111111111", "mark b/cache ", "create Job b/cache-222222222222",
		"a/cache Filled sha256:11: "+two+" is put there when no pod uses the claim: reader", "b/cache Pending : its Job is being made",
		"missing gone")
	w = w.after(p)
	w.finish(batchv1.JobComplete, "")
	w.Pods = nil
	p = Make(o, on(), w)
	want(t, p, "mark a/cache ", "mark b/cache sha256:22", "create Job a/cache-222222222222", "a/cache Pending : its Job is being made",
		"b/cache Filled sha256:22:", "missing gone")

	o = object(v1alpha1.CacheROXVolume, two, "b")
	want(t, Make(o, on(), w.after(p)), "delete Job a/cache-222222222222", "delete PersistentVolumeClaim a/cache", "b/cache Filled sha256:22:")
}

// podOf is a pod that has a claim.
func podOf(namespace, name, claim string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	if change != nil {
		change(&p)
	}
	return p
}

// TestRWO makes a volume of each node, and lets go of those of nodes that are gone.
func TestRWO(t *testing.T) {
	o := object(v1alpha1.CacheRWOPerNode, one, "a")
	p := Make(o, on(), observed("a", "n1 n2"))
	want(t, p, "create PersistentVolumeClaim a/cache-n1", "create Job a/cache-n1-111111111111",
		"create PersistentVolumeClaim a/cache-n2", "create Job a/cache-n2-111111111111",
		"a/cache-n1 Pending : its claim and its Job are being made", "a/cache-n2 Pending : its claim and its Job are being made")
	want(t, Make(o, on(), observed("a", "n2", p)), "delete Job a/cache-n1-111111111111", "delete PersistentVolumeClaim a/cache-n1",
		"a/cache-n2 Filling :")
	o.Spec.Distribution.NodeSelector = map[string]string{"name": "n1"}
	if got := Make(o, on(), observed("a", "n1 n2")); len(got.Volumes) != 1 || got.Volumes[0].Node != "n1" {
		t.Errorf("with a selector for n1:\n%s", brief(got))
	}
	o.Spec.Distribution.NodeSelector = map[string]string{"name": "n3"}
	want(t, Make(o, on(), observed("a", "n1 n2")), "no node that runs the driver is to have a volume: look at distribution.nodeSelector")

	o = object(v1alpha1.CacheRWOPerNode, one, "a")
	w := observed("a", "n1 n2")
	w.Nodes[0].Caches = []v1alpha1.NodeCache{{Name: "cache", Digest: one, IncompatibleDevices: 2}, {Name: "other", Digest: one}}
	w.Nodes[1].Caches = []v1alpha1.NodeCache{{Name: "cache", Digest: one, IncompatibleDevices: 2, CompatibleDevices: 1}}
	if got := Make(o, on(), w); len(got.Volumes) != 1 || got.Volumes[0].Node != "n2" {
		t.Errorf("with GPUs of n1 that the cache is not for:\n%s", brief(got))
	}
}

// TestUnreportedNode: a node whose AcceleratorNode is gone keeps the volumes that it has, and gets no others. When the node is gone they
// go.
func TestUnreportedNode(t *testing.T) {
	scheme, err := reconciler.Scheme()
	check.Must(t, err)
	accelerator := &v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	objects := []client.Object{accelerator, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	for _, node := range []string{"n1", "n2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	r := Reader{Cached: api, Live: api, Clock: clocktesting.NewFakePassiveClock(start)}
	o := object(v1alpha1.CacheRWOPerNode, one, "a")
	p, err := r.Plan(t.Context(), o, on())
	check.Must(t, err)
	want(t, p, "create PersistentVolumeClaim a/cache-n1", "create Job a/cache-n1-111111111111",
		"a/cache-n1 Pending : its claim and its Job are being made")
	for _, made := range p.Create {
		check.Must(t, api.Create(t.Context(), made))
	}
	check.Must(t, api.Delete(t.Context(), accelerator))
	p, err = r.Plan(t.Context(), o, on())
	check.Must(t, err)
	if len(p.Delete)+len(p.Create) > 0 || len(p.Volumes) != 1 {
		t.Errorf("without a report:\n%s", brief(p))
	}
	check.Must(t, api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	p, err = r.Plan(t.Context(), o, on())
	check.Must(t, err)
	if len(p.Delete) != 2 {
		t.Errorf("without the node:\n%s", brief(p))
	}
}

// TestNothingIsMade: without the option, a verified image or a wish nothing is.
func TestNothingIsMade(t *testing.T) {
	const waits = "no volume is filled before the image is resolved and verified"
	o, w := object(v1alpha1.CacheROXVolume, one, "a"), observed("a", "")
	const off = "stuck: distribution.type ROXVolume: no volumes are made: set " + Switch + " of the chart"
	if got := brief(Make(o, Options{}, w)); !strings.HasPrefix(got, off) {
		t.Errorf("without the option: %s", got)
	}
	for name, change := range map[string]func(*Object){
		"not resolved": func(o *Object) { o.Status.ResolvedDigest = "" },
		"refused":      func(o *Object) { o.Status.Verification.Result = v1alpha1.VerdictRefused },
		"not judged":   func(o *Object) { o.Status.Verification = nil },
		"of another":   func(o *Object) { o.Status.Verification.Digest = two },
		"unknown":      func(o *Object) { o.Status.Image = nil },
		"old status":   func(o *Object) { o.current = false },
	} {
		t.Run(name, func(t *testing.T) {
			o := object(v1alpha1.CacheROXVolume, one, "a")
			change(&o)
			want(t, Make(o, on(), w), "a/cache Pending : it waits for the image to be resolved and verified", waits)
		})
	}
	o.Deleting = true
	want(t, Make(o, on(), w))
	local := object(v1alpha1.CacheNodeLocal, one, "a")
	want(t, Make(local, on(), w))
	want(t, Make(local, Options{}, w))
	o.Deleting = false
	want(t, Make(local, on(), observed("a", "", Make(o, on(), w))), "delete Job a/cache-111111111111", "delete PersistentVolumeClaim a/cache")
}

// TestRevoked keeps the content of a volume when its signature is not accepted any more, and deletes the Job that runs.
func TestRevoked(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	o.Status.Verification.Result = v1alpha1.VerdictRefused
	p := Make(o, on(), w)
	if len(p.Delete) != 1 || len(p.Create)+len(p.Mark) > 0 || p.Volumes[0].Phase != v1alpha1.CacheVolumePending {
		t.Errorf("with a Job that runs:\n%s", brief(p))
	}
	o.current = false
	if p := Make(o, on(), w); len(p.Delete) > 0 {
		t.Errorf("with a status of another spec, which says nothing:\n%s", brief(p))
	}
	o.Namespaces = nil
	if p := Make(o, on(), w); len(p.Delete) != 2 {
		t.Errorf("with a namespace that is not listed any more:\n%s", brief(p))
	}
	o.current, o.Namespaces = true, []string{"a"}
	w.Claims[Key{"a", "cache"}].Annotations[DigestAnnotation] = one
	if p := Make(o, on(), w); p.Volumes[0].Phase != v1alpha1.CacheVolumeFilled || p.Volumes[0].Message == "" {
		t.Errorf("with a volume that is filled:\n%s", brief(p))
	}
}

// TestStrangers keeps claims and Jobs of the name that belong to another owner, such as a cache whose name and node give the same name.
func TestStrangers(t *testing.T) {
	other := object(v1alpha1.CacheRWOPerNode, one, "a")
	other.Name, other.UID = "cache-n", "other"
	w := observed("a", "1 n-1", Make(other, on(), observed("a", "1")))
	p := Make(object(v1alpha1.CacheRWOPerNode, one, "a"), on(), w)
	want(t, p, "create PersistentVolumeClaim a/cache-1", "create Job a/cache-1-111111111111",
		"a/cache-1 Pending : its claim and its Job are being made",
		"a/cache-n-1 Failed : PersistentVolumeClaim cache-n-1 exists and does not belong to this cache: delete it, or rename the cache")

	o := object(v1alpha1.CacheROXVolume, one, "a")
	w = observed("a", "", Make(o, on(), observed("a", "")))
	w.Jobs[Key{"a", "cache-111111111111"}].Labels = nil
	want(t, Make(o, on(), w), "a/cache Failed : Job cache-111111111111 exists and does not belong to this cache: delete it")
	w.Claims[Key{"a", "cache"}].DeletionTimestamp = new(metav1.Now())
	w.Pods = nil
	for _, name := range []string{"p4", "p1", "p2", "p3"} {
		w.Pods = append(w.Pods, podOf("a", name, "cache", nil))
	}
	want(t, Make(o, on(), w), "a/cache Pending : its claim is being deleted, which waits for the pods that use it: p1, p2, p3 and 1 more")
}

// TestJobOfForeignClaim: where an administrator deleted a claim before it was filled, and made another one of its name, no Job of the cache
// goes on to fill that.
func TestJobOfForeignClaim(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	w.Claims[Key{"a", "cache"}].Labels = nil
	const foreign = "a/cache Failed : PersistentVolumeClaim cache exists and does not belong to this cache: delete it, or rename the cache"
	want(t, Make(o, on(), w), "delete Job a/cache-111111111111", foreign)
	o.current = false
	want(t, Make(o, on(), w), "delete Job a/cache-111111111111", foreign, "no volume is filled before the image is resolved and verified")
}

// TestDeletedClaim makes a claim again that an administrator deleted, as messages advise: the pods of its Job keep the claim, and go first.
func TestDeletedClaim(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	w.Claims[Key{"a", "cache"}].DeletionTimestamp = new(metav1.Now())
	const waits = "a/cache Pending : its claim is being deleted, which waits for the pods that use it"
	p := Make(o, on(), w)
	want(t, p, "delete Job a/cache-111111111111", waits)
	w.Jobs[Key{"a", "cache-111111111111"}].DeletionTimestamp = new(metav1.Now())
	want(t, Make(o, on(), w), waits)
	w = w.after(p)
	delete(w.Claims, Key{"a", "cache"})
	want(t, Make(o, on(), w), "create PersistentVolumeClaim a/cache", "create Job a/cache-111111111111",
		"a/cache Pending : its claim and its Job are being made")
}

// TestTooSmall does not fill a claim with what it cannot hold.
func TestTooSmall(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	w.finish(batchv1.JobComplete, "")
	w = w.after(Make(o, on(), w))
	o = object(v1alpha1.CacheROXVolume, two, "a")
	o.Status.Image.Bytes = 400 << 20
	w.Jobs = nil
	const small = "its claim has 66Mi and the image needs 516Mi: delete PersistentVolumeClaim cache, and it is made again"
	want(t, Make(o, on(), w), "a/cache Filled sha256:11: "+small)
	w.Claims[Key{"a", "cache"}].Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	if p := Make(o, on(), w); len(p.Create) != 1 {
		t.Errorf("with a volume that is larger than its claim:\n%s", brief(p))
	}
}

// TestTrouble shows what keeps a Job's pod.
func TestTrouble(t *testing.T) {
	const again = "it is made again after 3600s, or as soon as it is deleted"
	o := object(v1alpha1.CacheROXVolume, one, "a")
	state := func(s corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: s}} }
	}
	for name, test := range map[string]struct {
		pod             func(*corev1.Pod)
		unbound, failed bool
		want            string
	}{
		"starting": {pod: state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}), want: "Filling :"},
		"unschedulable": {unbound: true, pod: func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/3 nodes:\n untolerated taint {gpu: true}.",
			}}
		}, want: "Pending : the claim is not bound: it needs a PersistentVolume with 66Mi, [ReadWriteOnce ReadOnlyMany] " +
			"and its class, from the class's provisioner, whose Events are at the claim, or from an administrator; " +
			"pod p: Unschedulable: 0/3 nodes: untolerated taint {gpu: true}."},
		"no image": {
			pod:  state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}),
			want: "Filling : pod p: ImagePullBackOff: not found",
		},
		"memory": {
			pod:  state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}),
			want: "Filling : pod p: exit 137, OOMKilled",
		},
		"failed": {
			failed: true,
			pod: state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Reason: "Error", Message: "no room\n",
			}}),
			want: "Failed : Job cache-111111111111: DeadlineExceeded: pod p: exit 1, Error: no room; " + again,
		},
		"evicted": {
			pod:  func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" },
			want: "Filling : pod p: Evicted",
		},
		"failed without a pod": {failed: true, want: "" +
			"Failed : Job cache-111111111111: DeadlineExceeded: its condition; " + again},
	} {
		t.Run(name, func(t *testing.T) {
			w := observed("a", "", Make(o, on(), observed("a", "")))
			if test.failed {
				w.finish(batchv1.JobFailed, "DeadlineExceeded")
			}
			if test.unbound {
				w.Claims[Key{"a", "cache"}].Status.Phase = corev1.ClaimPending
			}
			if test.pod != nil {
				p := podOf("a", "p", "cache", test.pod)
				p.Labels = map[string]string{batchv1.JobNameLabel: "cache-111111111111"}
				w.Pods = []corev1.Pod{p}
			}
			want(t, Make(o, on(), w), "a/cache "+test.want)
		})
	}
}

// TestNewTemplate makes a Job again that an administrator mends by podTemplate, and no other.
func TestNewTemplate(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	o.Spec.PodTemplate = &v1alpha1.CachePodTemplate{Spec: v1alpha1.CachePodSpec{Tolerations: []corev1.Toleration{{Key: "gpu"}}}}
	p := Make(o, on(), w)
	want(t, p, "delete Job a/cache-111111111111", "a/cache Pending : its Job was made from another specification, and is made again")
	w.Jobs[Key{"a", "cache-111111111111"}].DeletionTimestamp = new(metav1.Now())
	want(t, Make(o, on(), w), "a/cache Pending : its Job is being deleted, and is made again")
	w = w.after(p)
	want(t, Make(o, on(), w), "create Job a/cache-111111111111", "a/cache Pending : its Job is being made")
}

// TestPath makes the files for the path that the object says, and for another one when no pod uses them.
func TestPath(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	w.finish(batchv1.JobComplete, "")
	w = w.after(Make(o, on(), w))
	o.Spec.Mount = &v1alpha1.CacheMount{Path: "/cache"}
	job := JobName("cache", one, "/cache")
	w.Pods = []corev1.Pod{podOf("a", "reader", "cache", nil)}
	want(t, Make(o, on(), w), "delete Job a/cache-111111111111",
		"a/cache Filled sha256:11: what is for mount.path /cache is put there when no pod uses the claim: reader")
	w.Pods = nil
	p := Make(o, on(), w)
	want(t, p, "delete Job a/cache-111111111111", "mark a/cache ", "create Job a/"+job, "a/cache Pending : its Job is being made")
	w = w.after(p)
	args := w.Jobs[Key{"a", job}].Spec.Template.Spec.Containers[0].Args
	if at := slices.Index(args, "--mount-path"); at < 0 || args[at+1] != "/cache" {
		t.Errorf("args %v", args)
	}
	w.finish(batchv1.JobComplete, "")
	w = w.after(Make(o, on(), w))
	want(t, Make(o, on(), w), "a/cache Filled sha256:11:")
	o.Spec.Mount = nil
	w.Pods = []corev1.Pod{podOf("a", "reader", "cache", nil)}
	want(t, Make(o, on(), w), "delete Job a/"+job, "a/cache Filled sha256:11: "+
		"what is for the producer's path, without mount.path, is put there when no pod uses the claim: reader")
}

// TestUnknownContent: a claim whose content a failed Job began to replace is not written to while a pod uses it, and one that was never
// filled is.
func TestUnknownContent(t *testing.T) {
	o, w := object(v1alpha1.CacheROXVolume, one, "a"), observed("a", "")
	fails := func() {
		t.Helper()
		w = w.after(Make(o, on(), w))
		w.finish(batchv1.JobFailed, "BackoffLimitExceeded")
		clear(w.Jobs) // deleted some time after it failed
	}
	fails()
	w.Pods = []corev1.Pod{podOf("a", "reader", "cache", nil)}
	want(t, Make(o, on(), w), "create Job a/cache-111111111111", "a/cache Pending : its Job is being made")
	w = w.after(Make(o, on(), w))
	w.finish(batchv1.JobComplete, "")
	w = w.after(Make(o, on(), w))
	clear(w.Jobs)
	w.Pods = nil

	o = object(v1alpha1.CacheROXVolume, two, "a")
	fails()
	w.Pods = []corev1.Pod{podOf("a", "reader", "cache", nil)}
	want(t, Make(o, on(), w), "a/cache Failed : sha256:2222222222222222222222222222222222222222222222222222222222222222 is put there when no "+
		"pod uses the claim: reader")
	w.Pods = nil
	want(t, Make(o, on(), w), "create Job a/cache-222222222222", "a/cache Pending : its Job is being made")
}

// TestOneJobAtATime: while a Job, or a pod of one, may still write another digest into a claim, the next is not made, whether the claim was
// filled before or not.
func TestOneJobAtATime(t *testing.T) {
	for _, filled := range []bool{false, true} {
		o, w := object(v1alpha1.CacheROXVolume, one, "a"), observed("a", "")
		first := Make(o, on(), w)
		w = w.after(first)
		if filled {
			w.Claims[Key{"a", "cache"}].Annotations[DigestAnnotation] = ""
		}
		o = object(v1alpha1.CacheROXVolume, two, "a")
		const waits = "a/cache Pending : its Job is made when what still writes there has ended: Job cache-111111111111"
		p := Make(o, on(), w)
		want(t, p, "delete Job a/cache-111111111111", waits)
		w.Jobs[Key{"a", "cache-111111111111"}].DeletionTimestamp = new(metav1.Now())
		want(t, Make(o, on(), w), waits)
		w = w.after(p)
		w.Pods = []corev1.Pod{podOf("a", "cache-111111111111-x", "cache", func(p *corev1.Pod) {
			p.Labels = map[string]string{UIDLabel: "uid", batchv1.JobNameLabel: "cache-111111111111"}
		})}
		want(t, Make(o, on(), w), "a/cache Pending : its Job is made when what still writes there has ended: pod cache-111111111111-x")
		w.Pods[0].Status.Phase = corev1.PodFailed
		want(t, Make(o, on(), w), "create Job a/cache-222222222222", "a/cache Pending : its Job is being made")
	}
}

// TestPodOutlastsItsJob: a Job that somebody deleted without its pod is made again when the pod has ended.
func TestPodOutlastsItsJob(t *testing.T) {
	o, w := object(v1alpha1.CacheROXVolume, one, "a"), observed("a", "")
	w = w.after(Make(o, on(), w))
	clear(w.Jobs)
	w.Pods = []corev1.Pod{podOf("a", "cache-111111111111-x", "cache", func(p *corev1.Pod) {
		p.Labels = map[string]string{UIDLabel: "uid", batchv1.JobNameLabel: "cache-111111111111"}
	})}
	want(t, Make(o, on(), w), "a/cache Pending : its Job is made when what still writes there has ended: pod cache-111111111111-x")
	w.Pods[0].Status.Phase = corev1.PodFailed
	want(t, Make(o, on(), w), "create Job a/cache-111111111111", "a/cache Pending : its Job is being made")
}

// TestUsers counts the pods that use the content of a claim, and no others.
func TestUsers(t *testing.T) {
	o := object(v1alpha1.CacheRWOPerNode, one, "a", "b")
	w := observed("a b", "n1 n2", Make(o, on(), observed("a b", "n1 n2")))
	on1 := func(change ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
			for _, do := range change {
				do(p)
			}
		}
	}
	labelled := func(p *corev1.Pod) { p.Labels = map[string]string{UIDLabel: "uid"} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	w.Pods = []corev1.Pod{
		podOf("a", "user", "cache-n1", on1()), podOf("a", "second", "cache-n1", on1()), podOf("a", "waits", "cache-n1", nil),
		podOf("a", "ended", "cache-n1", on1(ended)), podOf("a", "fills", "cache-n1", on1(labelled)), podOf("a", "other", "other", on1()),
		podOf("b", "stranger", "cache-n1", on1()), podOf("c", "elsewhere", "cache-n1", on1()),
	}
	if p := Make(o, on(), w); len(p.Pods) > 0 {
		t.Errorf("claims that have nothing: %v", p.Pods)
	}
	w.finish(batchv1.JobComplete, "")
	w.Claims[Key{"b", "cache-n1"}].Labels = nil
	w = w.after(Make(o, on(), w))
	got := Make(o, on(), w).Pods
	if diff := cmp.Diff([]User{{"n1", one}, {"n1", one}}, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	o = object(v1alpha1.CacheRWOPerNode, two, "a", "b")
	if diff := cmp.Diff(got, Make(o, on(), w).Pods); diff != "" {
		t.Errorf("with a tag that moved (-want +got):\n%s", diff)
	}
}

// TestNewClaim fills a claim that was deleted and made again: the Job that is still there filled the earlier one.
func TestNewClaim(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	w.finish(batchv1.JobComplete, "")
	w = w.after(Make(o, on(), w))
	delete(w.Claims, Key{"a", "cache"})
	p := Make(o, on(), w)
	want(t, p, "delete Job a/cache-111111111111", "a/cache Pending : its Job filled an earlier claim, and is made again")
	w.Jobs[Key{"a", "cache-111111111111"}].DeletionTimestamp = new(metav1.Now())
	want(t, Make(o, on(), w), "a/cache Pending : its Job filled an earlier claim, and is made again")
	want(t, Make(o, on(), w.after(p)), "create PersistentVolumeClaim a/cache", "create Job a/cache-111111111111",
		"a/cache Pending : its claim and its Job are being made")

	w = observed("a", "", Make(o, on(), observed("a", "")))
	w.Claims[Key{"a", "cache"}].Status.Phase = corev1.ClaimLost
	want(t, Make(o, on(), w), "a/cache Failed : its PersistentVolume is gone: delete PersistentVolumeClaim cache, and it is made again")
}

// TestStuck reports what does not pass by itself.
func TestStuck(t *testing.T) {
	o := object(v1alpha1.CacheROXVolume, one, "a")
	w := observed("a", "", Make(o, on(), observed("a", "")))
	pod := podOf("a", "p", "cache", func(p *corev1.Pod) {
		p.Labels = map[string]string{batchv1.JobNameLabel: "cache-111111111111"}
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "untolerated taint {gpu: true}",
		}}
	})
	w.Pods = []corev1.Pod{pod}
	const message = "pod p: Unschedulable: untolerated taint {gpu: true}"
	want(t, Make(o, on(), w), "a/cache Filling : "+message)
	w.Now = start.Add(time.Minute)
	want(t, Make(o, on(), w), "a/cache Filling : "+message, "stuck: volume claim a/cache: "+message)
	w.Pods = nil
	const none = "Job cache-111111111111 has no pod: its Events say why"
	want(t, Make(o, on(), w), "a/cache Filling : "+none, "stuck: volume claim a/cache: "+none)
	w.Jobs[Key{"a", "cache-111111111111"}].Status.Active = 1
	want(t, Make(o, on(), w), "a/cache Filling :")
}

// TestNames wants names that the API takes, that say what they are of, and that differ where what they are of does.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 200) + "."
	for _, test := range []struct{ cache, node, want string }{
		{"cache", "", "cache"},
		{"cache", "node-1.example", "cache-node-1.example"},
		{long + "b", strings.Repeat("n", 60), ""},
		{long + "c", strings.Repeat("n", 60), ""},
		{strings.Repeat("a", 253), "n", ""},
		{strings.Repeat("a", 192) + ".b", strings.Repeat("n", 59), ""},
	} {
		got := ClaimName(test.cache, test.node)
		if test.want != "" && got != test.want {
			t.Errorf("claim of %s on %s: got %s, want %s", test.cache, test.node, got, test.want)
		}
		if faults := validation.IsDNS1123Subdomain(got); len(faults) > 0 {
			t.Errorf("claim %s: %v", got, faults)
		}
		job := JobName(got, one, "")
		if faults := append(validation.IsDNS1123Subdomain(job), validation.IsValidLabelValue(job)...); len(faults) > 0 {
			t.Errorf("job %s: %v", job, faults)
		}
		for _, other := range []string{JobName(got, two, ""), JobName(got, one, "/a"), JobName(got, two, "/a"), JobName(got, one, "/b")} {
			if job == other || len(other) > validation.LabelValueMaxLength {
				t.Errorf("job %s is of two digests or paths, or too long: %s", job, other)
			}
		}
	}
	if ClaimName(long+"b", strings.Repeat("n", 60)) == ClaimName(long+"c", strings.Repeat("n", 60)) {
		t.Error("two long names meet")
	}
	if ClaimName(strings.Repeat("a", 250), "node1") == ClaimName(strings.Repeat("a", 250), "node2") {
		t.Error("two nodes of a long name meet")
	}
	if JobName(long+"b", one, "") == JobName(long+"c", one, "") {
		t.Error("Jobs of two long names meet")
	}
	// The bound between the two forms.
	if got := ClaimName(strings.Repeat("a", 250), "nn"); got != strings.Repeat("a", 250)+"-nn" {
		t.Errorf("253 characters: got %s", got)
	}
}

func TestCapacity(t *testing.T) {
	for name, test := range map[string]struct {
		image *v1alpha1.CacheImage
		want  string
	}{
		"unknown":       {nil, "16Mi"},
		"empty":         {&v1alpha1.CacheImage{}, "16Mi"},
		"says its size": {&v1alpha1.CacheImage{CompressedBytes: 1 << 20, Bytes: 100 << 20}, "141Mi"},
		"guessed":       {&v1alpha1.CacheImage{CompressedBytes: 10 << 20}, "66Mi"},
		"rounded":       {&v1alpha1.CacheImage{Bytes: 1}, "17Mi"},
		"nonsense":      {&v1alpha1.CacheImage{Bytes: -5}, "16Mi"},
	} {
		if got := Capacity(test.image); got.Cmp(resource.MustParse(test.want)) != 0 {
			t.Errorf("%s: got %s, want %s", name, got.String(), test.want)
		}
	}
}
