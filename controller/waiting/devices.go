// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

// Devices knows by which classes and extended resources pods get our devices.
type Devices struct {
	all       []*resourceapi.DeviceClass
	classes   map[string]bool
	resources map[corev1.ResourceName]bool
	// bytes is what the classes take.
	bytes int
}

// ReadDevices finds the classes of our devices, and their extended resources. If the classes are too large, the error is ErrTooMuch.
func ReadDevices(ctx context.Context, live client.Reader) (*Devices, error) {
	r := &pageReader{Reader: live, left: snapshotBytes}
	classes, err := pages(ctx, r, &resourceapi.DeviceClassList{}, all[*resourceapi.DeviceClass])
	if err != nil {
		return nil, fmt.Errorf("list classes: %w", err)
	}
	d := &Devices{all: classes, classes: map[string]bool{}, resources: map[corev1.ResourceName]bool{}, bytes: snapshotBytes - r.left}
	for _, class := range classes {
		if !isOurs(class) {
			continue
		}
		d.classes[class.Name] = true
		d.resources[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = true
		if class.Spec.ExtendedResourceName != nil {
			d.resources[corev1.ResourceName(*class.Spec.ExtendedResourceName)] = true
		}
	}
	return d, nil
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

// Asker is a pod that asks for our devices, with the claims and templates that it names.
type Asker struct {
	Pod       *corev1.Pod
	claims    []*resourceapi.ResourceClaim
	templates []*resourceapi.ResourceClaimTemplate
	// TooLarge says that not all of them are known, since they are larger than the controller keeps.
	TooLarge bool
	// left is how many bytes more may be kept.
	left int
}

// keep counts an object of a pod.
func (a *Asker) keep(size int) bool {
	if a.left -= size; a.left < 0 {
		a.TooLarge = true
	}
	return !a.TooLarge
}

// Asker returns a pod that asks for our devices, with the claims and templates that it names. It returns nil for one that asks for none.
func (d *Devices) Asker(ctx context.Context, live client.Reader, pod *corev1.Pod) (*Asker, error) {
	a := &Asker{Pod: pod, left: askerBytes}
	asks := slices.ContainsFunc(extended(pod), func(name corev1.ResourceName) bool { return d.resources[name] })
	for i := range pod.Spec.ResourceClaims {
		if a.TooLarge && asks {
			break
		}
		asked, err := d.askedBy(ctx, live, a, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		asks = asks || asked
	}
	if !asks {
		return nil, nil //nolint:nilnil // most pods ask for none
	}
	return a, nil
}

// askedBy reads a claim of a pod, or the template of one that was not made yet, and says whether it asks for our devices.
func (d *Devices) askedBy(ctx context.Context, live client.Reader, a *Asker, of *corev1.PodResourceClaim) (asks bool, err error) {
	name, _, err := resourceclaim.Name(a.Pod, of)
	switch {
	case err == nil && name != nil:
		key := types.NamespacedName{Namespace: a.Pod.Namespace, Name: *name}
		err = one(ctx, live, &resourceapi.ResourceClaimList{}, key, func(c *resourceapi.ResourceClaim) {
			asks = d.askedIn(&c.Spec)
			if c = trimClaim(c); a.keep(c.Size()) {
				a.claims = append(a.claims, c)
			}
		})
	case of.ResourceClaimTemplateName != nil && err != nil:
		key := types.NamespacedName{Namespace: a.Pod.Namespace, Name: ptr.Deref(of.ResourceClaimTemplateName, "")}
		err = one(ctx, live, &resourceapi.ResourceClaimTemplateList{}, key, func(t *resourceapi.ResourceClaimTemplate) {
			asks = d.askedIn(&t.Spec.Spec)
			if t = trimTemplate(t); a.keep(t.Size()) {
				a.templates = append(a.templates, t)
			}
		})
	default:
		err = nil // it is known to need none, or names nothing
	}
	return asks, err
}

// one reads an object by a list, which the controller has the right to. It may not exist.
func one[T client.Object](ctx context.Context, live client.Reader, list client.ObjectList, key types.NamespacedName, each func(T)) error {
	listing := reconciler.Listing{
		Reader: live, List: list, Page: 1,
		Options: []client.ListOption{client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name}},
	}
	err := listing.Read(ctx, func() {}, func(o runtime.Object) error {
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("list has a %T", o)
		}
		each(object)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %s of a waiting pod: %w", key, err)
	}
	return nil
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

// looked is how many pods' claims are read in a round. Most clusters have fewer pods that wait.
const looked = 50

// Askers returns those of the first pods that ask for our devices, most at most. It calls none with those that do not.
func (d *Devices) Askers(
	ctx context.Context, live client.Reader, pods []*corev1.Pod, most int, none func(*corev1.Pod),
) (out []Asker, err error) {
	for _, pod := range pods[:min(len(pods), looked)] {
		if len(out) == most {
			break
		}
		a, err := d.Asker(ctx, live, pod)
		switch {
		case err != nil:
			return nil, err
		case a == nil:
			none(pod)
		default:
			out = append(out, *a)
		}
	}
	return out, nil
}
