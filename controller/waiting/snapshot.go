// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/pkg/plan/judge"
	"github.com/fettle-dev/fettle/pkg/plan/podspec"
)

const (
	// snapshotBytes bounds what is of no namespace in a snapshot, tenantBytes what is of namespaces, and podsBytes the pods of a round, all in
	// the API's binary form: tenants make objects as large as the API server takes them, and an object takes some four times as much in
	// memory. A cluster with larger objects of its own is not explained.
	snapshotBytes = 8 << 20
	tenantBytes   = 8 << 20
	podsBytes     = 8 << 20
	// pageSize is how many objects are asked for at once that no tenant makes.
	pageSize = 100
)

// ErrTooMuch ends the reading of objects.
var ErrTooMuch = errors.New("the objects are larger than the controller keeps")

// onNode selects the pods of a node. The API server has an index of pods by spec.nodeName.
func onNode(name string) client.ListOption {
	return client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("spec.nodeName", name)}
}

// PodsOn lists the pods of nodes. If they are too large, the error is ErrTooMuch.
func PodsOn(ctx context.Context, live client.Reader, nodes []string) ([]*corev1.Pod, error) {
	r, of := &pageReader{Reader: live, left: podsBytes}, tenants{left: podsBytes}
	lists := make([][]*corev1.Pod, len(nodes))
	for i, node := range nodes {
		if err := ofTenants(ctx, r, &of, &corev1.PodList{}, &lists[i], trimPod, barePod, onNode(node)); err != nil {
			return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
		}
	}
	of.log(ctx, "Pods of namespaces that have too large ones are known by their requests only")
	return slices.Concat(lists...), nil
}

// Pending lists the pods without a node that may wait for devices. If they are too large, those of the namespaces with the largest are left
// out.
func Pending(ctx context.Context, live client.Reader) ([]*corev1.Pod, error) {
	r, of := &pageReader{Reader: live, left: podsBytes}, tenants{left: podsBytes}
	var pods []*corev1.Pod
	none := func(*corev1.Pod) *corev1.Pod { return nil }
	trim := func(pod *corev1.Pod) *corev1.Pod {
		if !mayWait(pod) {
			return nil
		}
		return trimPod(pod)
	}
	if err := ofTenants(ctx, r, &of, &corev1.PodList{}, &pods, trim, none, onNode("")); err != nil {
		return nil, fmt.Errorf("list pods without a node: %w", err)
	}
	of.log(ctx, "Waiting pods of namespaces that have too large ones are not looked at")
	return pods, nil
}

// mayWait says whether a pod may wait for devices.
func mayWait(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		(pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "") && (len(pod.Spec.ResourceClaims) > 0 || len(extended(pod)) > 0)
}

// extended lists the extended resources of a pod, which may stand for devices.
func extended(pod *corev1.Pod) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Requests {
			if strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/") ||
				strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) {
				out = append(out, name)
			}
		}
	}
	return out
}

// cached is a snapshot that serves several rounds.
type cached struct {
	taken    time.Time
	snapshot *plan.Snapshot
	// expressions are for the features of version.
	expressions *judge.Expressions
	version     string
	devices     *Devices
}

// read returns a snapshot that is not too old, and nil for a cluster that is too large.
func (c *cached) read(ctx context.Context, e *explainer, now time.Time) (*plan.Snapshot, error) {
	if c.snapshot != nil && now.Sub(c.taken) < snapshotAge {
		return c.snapshot, nil
	}
	version, err := e.Version()
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its version: %w", err)
	}
	s, err := ReadSnapshot(ctx, e.Live)
	if errors.Is(err, ErrTooMuch) {
		return nil, nil //nolint:nilnil // a cluster that is too large has no snapshot, which is no error
	}
	if err != nil {
		return nil, err
	}
	s.Version = version
	if c.expressions == nil || c.version != version {
		set, _, err := gates.For(version, nil)
		if err != nil {
			return nil, err
		}
		c.expressions, c.version = judge.NewExpressions(set.Features()), version
	}
	c.taken, c.snapshot = now, s
	c.devices = NewDevices(s)
	return s, nil
}

// expire forgets a snapshot that is too old.
func (c *cached) expire(now time.Time) {
	if now.Sub(c.taken) >= snapshotAge {
		c.snapshot, c.devices = nil, nil
	}
}

// Devices knows by which classes and extended resources pods get our devices.
type Devices struct {
	claims    map[types.NamespacedName]*resourceapi.ResourceClaim
	templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	classes   map[string]bool
	resources map[corev1.ResourceName]bool
}

// NewDevices finds the classes of our devices in a snapshot, and their extended resources.
func NewDevices(s *plan.Snapshot) *Devices {
	d := &Devices{
		claims: make(map[types.NamespacedName]*resourceapi.ResourceClaim, len(s.Claims)), classes: map[string]bool{},
		templates: make(map[types.NamespacedName]*resourceapi.ResourceClaimTemplate, len(s.Templates)), resources: map[corev1.ResourceName]bool{},
	}
	for _, claim := range s.Claims {
		d.claims[client.ObjectKeyFromObject(claim)] = claim
	}
	for _, template := range s.Templates {
		d.templates[client.ObjectKeyFromObject(template)] = template
	}
	for _, class := range s.Classes {
		if !isOurs(class) {
			continue
		}
		d.classes[class.Name] = true
		d.resources[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = true
		if class.Spec.ExtendedResourceName != nil {
			d.resources[corev1.ResourceName(*class.Spec.ExtendedResourceName)] = true
		}
	}
	return d
}

// isOurs says whether a class is one of Fettle's, or selects its driver.
func isOurs(class *resourceapi.DeviceClass) bool {
	return named(class.Name) || nameDriver(class.Spec.Selectors)
}

// nameDriver says whether a selector has the name of Fettle's driver in it, by which admission knows it, too.
func nameDriver(selectors []resourceapi.DeviceSelector) bool {
	return slices.ContainsFunc(selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && strings.Contains(s.CEL.Expression, v1alpha1.DriverName)
	})
}

// named says whether a class has a name of Fettle's, also if it does not exist.
func named(class string) bool { return strings.HasSuffix(class, "."+v1alpha1.DriverName) }

// AskedBy says whether a pod asks for our devices.
func (d *Devices) AskedBy(pod *corev1.Pod) bool {
	if slices.ContainsFunc(extended(pod), func(name corev1.ResourceName) bool { return d.resources[name] }) {
		return true
	}
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(of corev1.PodResourceClaim) bool {
		if name, _, err := resourceclaim.Name(pod, &of); err == nil && name != nil {
			claim := d.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}]
			if claim != nil && d.askedIn(&claim.Spec) {
				return true
			}
		}
		template := d.templates[types.NamespacedName{Namespace: pod.Namespace, Name: ptr.Deref(of.ResourceClaimTemplateName, "")}]
		return template != nil && d.askedIn(&template.Spec.Spec)
	})
}

// askedIn says whether a request of a claim, or an alternative of one, asks for our devices.
func (d *Devices) askedIn(spec *resourceapi.ResourceClaimSpec) bool {
	asks := func(class string, selectors []resourceapi.DeviceSelector) bool {
		return d.classes[class] || named(class) || nameDriver(selectors)
	}
	return slices.ContainsFunc(spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && asks(r.Exactly.DeviceClassName, r.Exactly.Selectors) ||
			slices.ContainsFunc(r.FirstAvailable, func(sub resourceapi.DeviceSubRequest) bool { return asks(sub.DeviceClassName, sub.Selectors) })
	})
}

// ReadSnapshot reads what decides about devices. Pods are left out: what they use of CPU and memory is not judged. If the objects of the
// cluster are too large, the error is ErrTooMuch. If those of tenants are, namespaces are left out, those with the largest first, but for
// the devices that their claims have.
func ReadSnapshot(ctx context.Context, live client.Reader) (*plan.Snapshot, error) {
	s := &plan.Snapshot{}
	r, of := &pageReader{Reader: live, left: snapshotBytes}, tenants{left: tenantBytes}
	var errs [8]error
	s.Nodes, errs[0] = pages[*corev1.Node](ctx, r, &corev1.NodeList{})
	s.Namespaces, errs[1] = pages[*corev1.Namespace](ctx, r, &corev1.NamespaceList{})
	s.Slices, errs[2] = pages[*resourceapi.ResourceSlice](ctx, r, &resourceapi.ResourceSliceList{})
	s.Classes, errs[3] = pages[*resourceapi.DeviceClass](ctx, r, &resourceapi.DeviceClassList{})
	s.TaintRules, errs[4] = taintRules(ctx, r)
	errs[5] = ofTenants(ctx, r, &of, &corev1.ResourceQuotaList{}, &s.Quotas, trimQuota,
		func(*corev1.ResourceQuota) *corev1.ResourceQuota { return nil })
	errs[6] = ofTenants(ctx, r, &of, &resourceapi.ResourceClaimList{}, &s.Claims, trimClaim, bareClaim)
	errs[7] = ofTenants(ctx, r, &of, &resourceapi.ResourceClaimTemplateList{}, &s.Templates, trimTemplate,
		func(*resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplate { return nil })
	of.log(ctx, "Namespaces with too large claims, templates or quotas are left out")
	return s, errors.Join(errs[:]...)
}

// pageReader lists objects until they are too many bytes.
type pageReader struct {
	client.Reader
	left int
}

// keep drops the managed fields of an object, and counts the rest.
func (r *pageReader) keep(object client.Object) error {
	object.SetManagedFields(nil)
	r.left -= sizeOf(object)
	if r.left < 0 {
		return ErrTooMuch
	}
	return nil
}

// pages lists objects. With ErrTooMuch it returns those that it kept.
func pages[T client.Object](ctx context.Context, r *pageReader, list client.ObjectList, options ...client.ListOption) ([]T, error) {
	var out []T
	left := r.left
	begin := func() { out, r.left = nil, left }
	err := reconciler.Pages(ctx, r, list, pageSize, begin, func(o runtime.Object) error {
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("list has a %T", o)
		}
		if err := r.keep(object); err != nil {
			return err
		}
		out = append(out, object)
		return nil
	}, options...)
	return out, err
}

// taintRules lists the DeviceTaintRules in the newest version that is served: v1 since Kubernetes 1.37. Their fields are the same in all. A
// cluster that serves none has none.
func taintRules(ctx context.Context, r *pageReader) ([]*resourceapi.DeviceTaintRule, error) {
	for _, version := range []string{"v1", "v1beta2", "v1alpha3"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: resourceapi.GroupName, Version: version, Kind: "DeviceTaintRuleList"})
		objects, err := pages[*unstructured.Unstructured](ctx, r, list)
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list DeviceTaintRules of %s: %w", version, err)
		}
		out := make([]*resourceapi.DeviceTaintRule, len(objects))
		for i, o := range objects {
			out[i] = &resourceapi.DeviceTaintRule{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out[i]); err != nil {
				return nil, fmt.Errorf("read DeviceTaintRule %s: %w", o.GetName(), err)
			}
			if err := r.keep(out[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, nil
}

// Repelling lists the pods with a node that require an anti-affinity in more than their node, on all nodes but the given ones: they may
// keep pods from nodes that have none of them. Only what keeps others away is kept. What of that is too large counts as unknown.
func Repelling(ctx context.Context, live client.Reader, but []string) ([]*corev1.Pod, error) {
	r, of := &pageReader{Reader: live, left: podsBytes}, tenants{left: podsBytes}
	repelling := func(kept func(*corev1.Pod) *corev1.Pod) func(*corev1.Pod) *corev1.Pod {
		return func(pod *corev1.Pod) *corev1.Pod {
			if pod.Spec.NodeName == "" || slices.Contains(but, pod.Spec.NodeName) || podspec.Ended(pod) || !repelsAfar(pod) {
				return nil
			}
			out := kept(pod)
			out.Spec.Containers, out.Spec.ResourceClaims, out.Status.ResourceClaimStatuses = nil, nil, nil
			return out
		}
	}
	var out []*corev1.Pod
	if err := ofTenants(ctx, r, &of, &corev1.PodList{}, &out, repelling(placedPod), repelling(barePod)); err != nil {
		return nil, fmt.Errorf("list pods with an anti-affinity: %w", err)
	}
	return out, nil
}

// repelsAfar says whether a pod may keep others from other nodes than its own.
func repelsAfar(pod *corev1.Pod) bool {
	return slices.ContainsFunc(podspec.AntiAffinity(pod), func(t podspec.Term) bool { return t.Key != corev1.LabelHostname })
}
