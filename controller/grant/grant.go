// SPDX-License-Identifier: Apache-2.0

// Package grant writes the Roles that let the kubelet plugin read the Secrets and ConfigMaps that objects name, each by its name.
// Kubernetes lets the controller grant only rights that it holds itself, so an administrator decides in which namespaces that works.
package grant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
)

// ErrForeign marks a Role or RoleBinding of the name that belongs to another object. It is not changed.
var ErrForeign = errors.New("is not of this object; delete it, unless it goes by itself with what it belonged to")

// Request lists what the kubelet plugin has to read for an object.
type Request struct {
	// Owner is the object, and Kind is its kind. It is of the cluster or of the same namespace, so that the Role is deleted with it.
	Owner client.Object
	Kind  string
	// Resource is secrets or configmaps. Namespace and Names say which.
	Resource, Namespace string
	Names               []string
}

// Name is the name of the Role and of the RoleBinding. Only RBAC allows colons in names.
func (r Request) Name() string {
	return v1alpha1.DriverName + ":" + strings.ToLower(r.Kind) + ":" + r.Owner.GetName()
}

// Writer writes Roles and RoleBindings.
type Writer struct {
	// Live must not read from a cache: the controller may not list Roles.
	Live   client.Reader
	Client client.Writer
	// Namespace and Account are the kubelet plugin's.
	Namespace, Account string
	// Labels are those of the Roles and RoleBindings.
	Labels map[string]string
}

// NewWriter returns the writer of the Roles that the controller makes and an uninstall removes.
func NewWriter(live client.Reader, c client.Writer, namespace string) Writer {
	return Writer{
		Live: live, Client: c, Namespace: namespace, Account: names.PluginAccount,
		Labels: map[string]string{names.ManagedByLabel: names.Controller},
	}
}

// meta returns the metadata of the Role and the RoleBinding.
func (w Writer) meta(r Request) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: r.Namespace, Name: r.Name(), Labels: w.Labels,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: r.Kind, Name: r.Owner.GetName(), UID: r.Owner.GetUID(), Controller: ptr.To(true),
		}},
	}
}

// Role returns the Role: it lets its holder read the named objects, and nothing else.
func (w Writer) Role(r Request) *rbacv1.Role {
	sorted := slices.Sorted(slices.Values(r.Names))
	return &rbacv1.Role{ObjectMeta: w.meta(r), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{r.Resource}, ResourceNames: slices.Compact(sorted), Verbs: []string{"get"},
	}}}
}

// Binding returns the RoleBinding, which gives the Role to the kubelet plugin.
func (w Writer) Binding(r Request) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: w.meta(r),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.Name()},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.Namespace, Name: w.Account}},
	}
}

// Ensure creates or updates the Role and its binding. The API server forbids that if the controller may not read the objects itself.
func (w Writer) Ensure(ctx context.Context, r Request) error {
	if err := w.ensureRole(ctx, r); err != nil {
		return err
	}
	return w.ensureBinding(ctx, r)
}

func (w Writer) ensureRole(ctx context.Context, r Request) error {
	want, live := w.Role(r), &rbacv1.Role{}
	found, err := w.find(ctx, r, live, "Role")
	if err != nil {
		return err
	}
	if !found {
		return wrap("create", "Role", want, w.Client.Create(ctx, want))
	}
	if equality.Semantic.DeepEqual(live.Rules, want.Rules) {
		return nil
	}
	live.Rules = want.Rules
	return wrap("update", "Role", want, w.Client.Update(ctx, live))
}

func (w Writer) ensureBinding(ctx context.Context, r Request) error {
	want, live := w.Binding(r), &rbacv1.RoleBinding{}
	found, err := w.find(ctx, r, live, "RoleBinding")
	if err != nil {
		return err
	}
	if found && live.RoleRef != want.RoleRef { // the field cannot be changed
		if err := w.Client.Delete(ctx, live, same(live)); client.IgnoreNotFound(err) != nil {
			return wrap("replace", "RoleBinding", want, err)
		}
		found = false
	}
	if !found {
		return wrap("create", "RoleBinding", want, w.Client.Create(ctx, want))
	}
	if equality.Semantic.DeepEqual(live.Subjects, want.Subjects) {
		return nil
	}
	live.Subjects = want.Subjects
	return wrap("update", "RoleBinding", want, w.Client.Update(ctx, live))
}

// find reads the Role or the RoleBinding. If another object owns it, the error is [ErrForeign].
func (w Writer) find(ctx context.Context, r Request, live client.Object, kind string) (bool, error) {
	key := client.ObjectKey{Namespace: r.Namespace, Name: r.Name()}
	if err := w.Live.Get(ctx, key, live); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	if owner := metav1.GetControllerOf(live); owner == nil || owner.UID != r.Owner.GetUID() {
		return false, fmt.Errorf("%s %s %w", kind, key, ErrForeign)
	}
	return true, nil
}

// Revoke deletes both, the binding first. If the controller may not read them, it made none, or an administrator wants them kept.
func (w Writer) Revoke(ctx context.Context, r Request) error {
	var faults []error
	for _, part := range []struct {
		kind string
		live client.Object
	}{{"RoleBinding", &rbacv1.RoleBinding{}}, {"Role", &rbacv1.Role{}}} {
		found, err := w.find(ctx, r, part.live, part.kind)
		if apierrors.IsForbidden(err) || errors.Is(err, ErrForeign) {
			continue
		}
		if err == nil && found {
			err = wrap("delete", part.kind, part.live, client.IgnoreNotFound(w.Client.Delete(ctx, part.live, same(part.live))))
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func same(o client.Object) client.DeleteOption { return client.Preconditions{UID: ptr.To(o.GetUID())} }

func wrap(verb, kind string, o client.Object, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", verb, kind, client.ObjectKeyFromObject(o), err)
	}
	return nil
}
