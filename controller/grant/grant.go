// SPDX-License-Identifier: Apache-2.0

package bitstream

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
)

// Grants writes the Roles that let the kubelet plugin read the pull secrets of bitstreams, each by its name.
type Grants struct {
	// Live does not read from a cache; the controller may not list Roles.
	Live   client.Reader
	Client client.Writer
	// Namespace and Account are the kubelet plugin's.
	Namespace, Account string
	// Labels are put on what is made.
	Labels map[string]string
}

// GrantName is the name of an object's Role and RoleBinding. Only RBAC allows colons in names.
func GrantName(o Object) string {
	return v1alpha1.DriverName + ":" + strings.ToLower(o.Kind) + ":" + o.GetName()
}

// meta is the head of both. The owner is of the cluster, or of the same namespace, so that both go when it does.
func (g Grants) meta(o Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.SecretNamespace, Name: GrantName(o), Labels: g.Labels,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: o.Kind, Name: o.GetName(), UID: o.GetUID(), Controller: ptr.To(true),
		}},
	}
}

// Role lets its holder read the object's secrets, and no other.
func (g Grants) Role(o Object) *rbacv1.Role {
	secrets := slices.Sorted(slices.Values(o.Secrets))
	return &rbacv1.Role{ObjectMeta: g.meta(o), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: secrets, Verbs: []string{"get"},
	}}}
}

// Binding gives the Role to the kubelet plugin.
func (g Grants) Binding(o Object) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: g.meta(o),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: GrantName(o)},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: g.Namespace, Name: g.Account}},
	}
}

// Ensure brings Role and binding to what the object's secrets ask for: none where it names none.
func (g Grants) Ensure(ctx context.Context, o Object) error {
	var err error
	switch {
	case len(o.Secrets) > 0:
		if err = g.ensureRole(ctx, o); err == nil {
			err = g.ensureBinding(ctx, o)
		}
	case o.Status.ObservedGeneration != o.GetGeneration(): // the spec may have named some until now
		err = g.Revoke(ctx, o)
	}
	if apierrors.IsForbidden(err) {
		return forbidden(o)
	}
	return err
}

func (g Grants) ensureRole(ctx context.Context, o Object) error {
	want, live := g.Role(o), &rbacv1.Role{}
	found, err := g.find(ctx, o, live, "Role")
	if err != nil {
		return err
	}
	if !found {
		return wrap("create", "Role", want, g.Client.Create(ctx, want))
	}
	if equality.Semantic.DeepEqual(live.Rules, want.Rules) {
		return nil
	}
	live.Rules = want.Rules
	return wrap("update", "Role", want, g.Client.Update(ctx, live))
}

func (g Grants) ensureBinding(ctx context.Context, o Object) error {
	want, live := g.Binding(o), &rbacv1.RoleBinding{}
	found, err := g.find(ctx, o, live, "RoleBinding")
	if err != nil {
		return err
	}
	if found && live.RoleRef != want.RoleRef { // which cannot be changed
		if err := g.Client.Delete(ctx, live, same(live)); client.IgnoreNotFound(err) != nil {
			return wrap("replace", "RoleBinding", want, err)
		}
		found = false
	}
	if !found {
		return wrap("create", "RoleBinding", want, g.Client.Create(ctx, want))
	}
	if equality.Semantic.DeepEqual(live.Subjects, want.Subjects) {
		return nil
	}
	live.Subjects = want.Subjects
	return wrap("update", "RoleBinding", want, g.Client.Update(ctx, live))
}

// find reads one of the two. One of the name that is not the object's is left alone.
func (g Grants) find(ctx context.Context, o Object, live client.Object, kind string) (bool, error) {
	key := client.ObjectKey{Namespace: o.SecretNamespace, Name: GrantName(o)}
	if err := g.Live.Get(ctx, key, live); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	if owner := metav1.GetControllerOf(live); owner == nil || owner.UID != o.GetUID() {
		return false, fmt.Errorf("%w: %s %s is not of this %s; delete it, unless it goes by itself with what it belonged to",
			errPullSecret, kind, key, o.Kind)
	}
	return true, nil
}

// Revoke removes both, the binding first. Where the controller may not look, it has made none, or an administrator wants them kept.
func (g Grants) Revoke(ctx context.Context, o Object) error {
	var faults []error
	for _, part := range []struct {
		kind string
		live client.Object
	}{{"RoleBinding", &rbacv1.RoleBinding{}}, {"Role", &rbacv1.Role{}}} {
		found, err := g.find(ctx, o, part.live, part.kind)
		if apierrors.IsForbidden(err) || errors.Is(err, errPullSecret) {
			continue
		}
		if err == nil && found {
			err = wrap("delete", part.kind, part.live, client.IgnoreNotFound(g.Client.Delete(ctx, part.live, same(part.live))))
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
