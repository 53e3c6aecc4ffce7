// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/trust"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/signed"
)

const repo = "team/cache"

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// site is a registry and a resolver of objects in it.
type site struct {
	*signed.Registry
	resolver artifacts.Resolver
	api      client.Client
	now      time.Time
}

func newSite(t *testing.T, referrers bool) *site {
	t.Helper()
	r := signed.Start(t, referrers)
	registry, err := registry.NewClient(registry.Config{PlainHTTP: []string{r.Host}, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	services := reconciler.Services{Client: api, Live: api, Namespace: "fettle"}
	return &site{Registry: r, now: start, api: api, resolver: artifacts.NewResolver(services, registry)}
}

// object is a GPUKernelCache of the namespace a.
func (s *site) object(image string) object {
	o := &v1alpha1.GPUKernelCache{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "kernels", UID: "1", Generation: 1}}
	o.Spec.Image = s.Host + "/" + image
	return object{o.Common(), "fettle"}
}

// kind is how the pipeline treats caches. Its policies are those that a test gives.
func kind() *artifacts.Kind {
	k := (&resolver{}).kind(Options{Interval: 10 * time.Minute, Policies: func(context.Context) ([]*trust.Policy, error) { return nil, nil }})
	return &k
}

// look is one round.
func (s *site) look(t *testing.T, o object, policies ...*trust.Policy) {
	t.Helper()
	c := &cache{object: o}
	out, err := s.resolver.Resolve(t.Context(), kind(), c, policies)
	if err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(time.Hour)
	artifacts.Record(kind(), c, out, s.now)
	observe(o, surroundings{}, s.now)
}

// policy is for all images of the registry.
func policy(t *testing.T, generation int64, mode v1alpha1.VerificationMode, keys ...signed.Key) *trust.Policy {
	t.Helper()
	return policyOf(t, "", generation, mode, keys...)
}

func policyOf(t *testing.T, uid types.UID, generation int64, mode v1alpha1.VerificationMode, keys ...signed.Key) *trust.Policy {
	t.Helper()
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "team", UID: uid, Generation: generation}}
	p.Spec.Images, p.Spec.Mode = []string{"127.0.0.1:*/**"}, mode
	for i, k := range keys {
		p.Spec.Authorities = append(p.Spec.Authorities, v1alpha1.TrustAuthority{
			Name: []string{"release", "ci"}[i], Key: &v1alpha1.TrustKey{PEM: k.PEM(t)},
		})
	}
	compiled := trust.Load(p, nil)
	if compiled.Fault() != nil {
		t.Fatal(compiled.Fault())
	}
	return compiled
}

// broken is a policy that does not compile.
func broken(generation int64) *trust.Policy {
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "broken", Generation: generation}}
	p.Spec.Images, p.Spec.Mode = []string{"127.0.0.1:*/**"}, v1alpha1.VerificationSkip
	p.Spec.Authorities = []v1alpha1.TrustAuthority{{Name: "release", Key: &v1alpha1.TrustKey{PEM: "-----BEGIN PUBLIC KEY-----\nno\n"}}}
	return trust.Load(p, nil)
}

func text(o object, kind string) string {
	c := meta.FindStatusCondition(o.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

// want compares the conditions Resolved, Verified and Ready and the phase.
func want(t *testing.T, what string, o object, resolved, verified, ready string, phase v1alpha1.CachePhase) {
	t.Helper()
	got := []string{
		text(o, v1alpha1.ConditionResolved), text(o, v1alpha1.ConditionVerified), text(o, v1alpha1.ConditionReady), string(o.Status.Phase),
	}
	if diff := cmp.Diff([]string{resolved, verified, ready, string(phase)}, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s\n%+v", what, diff, o.Status.Conditions)
	}
}

func TestLook(t *testing.T) {
	for name, referrers := range map[string]bool{"referrers": true, "tags": false} {
		t.Run(name, func(t *testing.T) {
			s, key, other := newSite(t, referrers), signed.NewKey(t), signed.NewKey(t)
			d := s.Image(t, repo, "v3", "one", signed.Labels("90"))
			s.SignV3(t, repo, d, key)
			o := s.object(repo + ":v3")
			s.look(t, o, policy(t, 4, "", key))
			want(t, "signed v3", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
			verdict := &v1alpha1.ImageVerdict{
				Digest: d.String(), Result: v1alpha1.VerdictVerified, Policies: []v1alpha1.PolicyReference{{Name: "team", Generation: 4}},
				Formats: []v1alpha1.SignatureFormat{v1alpha1.SignatureCosignV3}, Signers: o.Status.Verification.Signers,
			}
			if diff := cmp.Diff(verdict, o.Status.Verification); diff != "" || len(verdict.Signers) != 1 {
				t.Errorf("signers %v, verification (-want +got):\n%s", verdict.Signers, diff)
			}
			image := o.Status.Image
			if image.Digest != d.String() || image.Type != "Triton" || image.Bytes != 7 || image.CompressedBytes < 50 ||
				!cmp.Equal(image.Targets, []string{"cuda sm_90"}) || o.Status.ResolvedDigest != d.String() {
				t.Errorf("image %+v of %s", image, o.Status.ResolvedDigest)
			}

			d2 := s.Image(t, repo, "v2", "two", nil)
			s.SignV2(t, repo, d2, key)
			o = s.object(repo + ":v2")
			s.look(t, o, policy(t, 1, "", other, key))
			want(t, "signed v2, by one of two", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
			if image := o.Status.Image; image.Type != "" || image.Targets != nil || image.Bytes != 0 {
				t.Errorf("an image without labels says %+v", image)
			}

			s.look(t, o, policy(t, 1, "", other))
			want(t, "another key", o, "True Resolved", "False Refused", "False Refused", v1alpha1.CacheError)
			v := o.Status.Verification
			for _, word := range []string{"TrustPolicy team", "0 of 1 signers among release", d2.String()} {
				if v.Result != v1alpha1.VerdictRefused || !strings.Contains(v.Message, word) {
					t.Errorf("the verdict does not say %q: %+v", word, v)
				}
			}
			s.look(t, o, policy(t, 1, v1alpha1.VerificationWarn, other))
			want(t, "warned", o, "True Resolved", "False Warned", "True Ready", v1alpha1.CachePending)
			o.Spec.Verification = &v1alpha1.CacheVerification{Mode: v1alpha1.VerificationEnforce}
			s.look(t, o, policy(t, 1, v1alpha1.VerificationWarn, other))
			want(t, "the object is stricter", o, "True Resolved", "False Refused", "False Refused", v1alpha1.CacheError)
			o.Spec.Verification = nil
			s.look(t, o, policy(t, 1, v1alpha1.VerificationSkip, other))
			want(t, "skipped", o, "True Resolved", "Unknown Skipped", "True Ready", v1alpha1.CachePending)
			s.look(t, o)
			want(t, "no policy", o, "Unknown NoTrustPolicy", "False NoTrustPolicy", "False NoTrustPolicy", v1alpha1.CacheError)
			s.look(t, o, broken(1), policy(t, 1, "", key))
			want(t, "an invalid policy", o,
				"Unknown TrustPolicyInvalid", "False TrustPolicyInvalid", "False TrustPolicyInvalid", v1alpha1.CacheError)
			if m := o.Status.Verification.Message; !strings.Contains(m, "TrustPolicy broken") || !strings.Contains(m, "pem") {
				t.Errorf("the verdict does not name the fault: %s", m)
			}
		})
	}
}

// TestIndex: what is verified is what the reference means, and what is read is the image below it.
func TestIndex(t *testing.T) {
	s, key := newSite(t, true), signed.NewKey(t)
	images := map[string]artifact.Digest{"amd64": s.Image(t, repo, "", "x", signed.Labels("90")), "arm64": s.Image(t, repo, "", "y", nil)}
	index := s.Index(t, repo, "both", images)
	s.SignV3(t, repo, index, key)
	o := s.object(repo + ":both")
	s.look(t, o, policy(t, 1, "", key))
	want(t, "index", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	if o.Status.ResolvedDigest != index.String() || o.Status.Verification.Digest != index.String() || o.Status.Image.Digest == index.String() {
		t.Errorf("status %+v", o.Status)
	}
}

// TestOutage: silence takes nothing away, and an answer does.
func TestOutage(t *testing.T) {
	s, key, other := newSite(t, true), signed.NewKey(t), signed.NewKey(t)
	first := s.Image(t, repo, "v1", "one", signed.Labels("90"))
	s.SignV3(t, repo, first, key)
	o := s.object(repo + ":v1")
	s.Down.Store(true)
	good := policy(t, 1, "", key)
	s.look(t, o, good)
	want(t, "never up", o, "False RegistryUnavailable", "Unknown NotResolved", "False RegistryUnavailable", v1alpha1.CachePending)
	s.Down.Store(false)
	s.look(t, o, good)
	want(t, "up", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	s.Down.Store(true)
	s.look(t, o, good)
	want(t, "down", o, "Unknown RegistryUnavailable", "True Verified", "True Ready", v1alpha1.CachePending)
	o.SetGeneration(2)
	o.Spec.Retention = &v1alpha1.CacheRetention{Policy: v1alpha1.CacheRetentionKeep}
	s.look(t, o, good)
	want(t, "another spec of the same image", o, "Unknown RegistryUnavailable", "True Verified", "True Ready", v1alpha1.CachePending)
	if o.Status.ObservedGeneration != 2 || o.Status.ResolvedDigest != first.String() {
		t.Errorf("status %+v", o.Status)
	}
	s.look(t, o, good, policy(t, 2, "", other))
	want(t, "more policies while it is down", o,
		"Unknown RegistryUnavailable", "Unknown RegistryUnavailable", "False RegistryUnavailable", v1alpha1.CachePending)
	s.look(t, o)
	want(t, "no policy while it is down", o, "Unknown NoTrustPolicy", "False NoTrustPolicy", "False NoTrustPolicy", v1alpha1.CacheError)
	s.look(t, o, policy(t, 3, v1alpha1.VerificationSkip))
	want(t, "no signature is checked", o, "Unknown RegistryUnavailable", "Unknown Skipped", "True Ready", v1alpha1.CachePending)
	o.SetGeneration(3)
	o.Spec.Verification = &v1alpha1.CacheVerification{Mode: v1alpha1.VerificationEnforce}
	s.look(t, o, policy(t, 3, v1alpha1.VerificationSkip))
	want(t, "the object wants more", o,
		"Unknown RegistryUnavailable", "Unknown RegistryUnavailable", "False RegistryUnavailable", v1alpha1.CachePending)
	s.Down.Store(false)
	s.look(t, o, good)
	want(t, "up again", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	s.Delete(t, repo, "v1")
	s.look(t, o, good)
	want(t, "gone", o, "False NotFound", "Unknown NotResolved", "False NotFound", v1alpha1.CacheError)
	if o.Status.ResolvedDigest != "" || o.Status.Image != nil || o.Status.Verification != nil ||
		!cmp.Equal(o.Status.PreviousDigests, []string{first.String()}) {
		t.Errorf("status %+v", o.Status)
	}
	o.Spec.Image = s.Host + "/" + repo + ":v2"
	s.Image(t, repo, "v2", "two", nil)
	s.Down.Store(true)
	s.look(t, o, good)
	want(t, "another image while it is down", o, "False RegistryUnavailable", "Unknown NotResolved", "False RegistryUnavailable",
		v1alpha1.CachePending)
}

// TestPolicyMadeAgainUnseen: the verdict of a policy that was deleted and made again while no controller ran does not stand, though name
// and generation are those of before. A verdict of a version that wrote no UIDs stands.
func TestPolicyMadeAgainUnseen(t *testing.T) {
	s, key, other := newSite(t, true), signed.NewKey(t), signed.NewKey(t)
	s.SignV3(t, repo, s.Image(t, repo, "v1", "one", signed.Labels("90")), key)
	o := s.object(repo + ":v1")
	s.look(t, o, policyOf(t, "first", 1, "", key))
	want(t, "up", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	s.Down.Store(true)
	s.look(t, o, policyOf(t, "first", 1, "", key))
	want(t, "down", o, "Unknown RegistryUnavailable", "True Verified", "True Ready", v1alpha1.CachePending)
	o.Status.Verification.Policies[0].UID = ""
	s.look(t, o, policyOf(t, "first", 1, "", key))
	want(t, "a verdict of before", o, "Unknown RegistryUnavailable", "True Verified", "True Ready", v1alpha1.CachePending)
	o.Status.Verification.Policies[0].UID = "first"
	s.look(t, o, policyOf(t, "second", 1, "", other))
	want(t, "made again", o,
		"Unknown RegistryUnavailable", "Unknown RegistryUnavailable", "False RegistryUnavailable", v1alpha1.CachePending)
}

// TestNotACache: an image that no node could use is refused before its signatures are checked.
func TestNotACache(t *testing.T) {
	s, key := newSite(t, true), signed.NewKey(t)
	s.Image(t, repo, "lies", "x", map[string]string{"cache.triton.image/summary": "{"})
	s.Index(t, repo, "nothing", nil)
	for image, reason := range map[string]string{
		repo + ":lies": "NotACache", repo + ":nothing": "NotACache", repo + ":never": "NotFound", "private/cache:v1": "Unauthorized",
	} {
		o := s.object(image)
		s.look(t, o, policy(t, 1, "", key))
		want(t, image, o, "False "+reason, "Unknown NotResolved", "False "+reason, v1alpha1.CacheError)
	}
}

// TestPullSecrets: the object's secrets are used, and granted as long as it names them.
func TestPullSecrets(t *testing.T) {
	s, key := newSite(t, true), signed.NewKey(t)
	s.SignV3(t, "private/cache", s.Image(t, "private/cache", "v1", "x", nil), key)
	o := s.object("private/cache:v1")
	o.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	s.look(t, o, policy(t, 1, "", key))
	want(t, "no secret", o, "False PullSecretUnavailable", "Unknown NotResolved", "False PullSecretUnavailable", v1alpha1.CacheError)
	config, err := json.Marshal(map[string]any{"auths": map[string]any{
		s.Host: map[string]string{"username": fpgaregistry.User, "password": fpgaregistry.Password},
	}})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
	}
	if err := s.api.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	s.look(t, o, policy(t, 1, "", key))
	want(t, "with its secret", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	role := &rbacv1.Role{}
	if err := s.api.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "fettle.dev:gpukernelcache:kernels"}, role); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pull"}, role.Rules[0].ResourceNames); diff != "" {
		t.Error(diff)
	}
	o.SetGeneration(2)
	o.Spec.ImagePullSecrets = nil
	s.look(t, o, policy(t, 1, "", key))
	want(t, "without again", o, "False Unauthorized", "Unknown NotResolved", "False Unauthorized", v1alpha1.CacheError)
	if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(role), role); err == nil {
		t.Error("the Role is still there")
	}
}

// TestRefusedUnasked: what the policies refuse in any case is refused without a packet to the host that the object names, and what was
// known of the image stays.
func TestRefusedUnasked(t *testing.T) {
	s, key := newSite(t, true), signed.NewKey(t)
	o := s.object(repo + ":v1")
	for name, c := range map[string]struct {
		policies []*trust.Policy
		reason   string
	}{
		"no policy":        {nil, "NoTrustPolicy"},
		"for others":       {[]*trust.Policy{policyFor(t, "other.example/**")}, "NoTrustPolicy"},
		"does not compile": {[]*trust.Policy{broken(1)}, "TrustPolicyInvalid"},
		"one of two":       {[]*trust.Policy{policy(t, 1, v1alpha1.VerificationSkip, key), broken(1)}, "TrustPolicyInvalid"},
	} {
		before := s.Connections()
		s.look(t, o, c.policies...)
		want(t, name, o, "False "+c.reason, "False "+c.reason, "False "+c.reason, v1alpha1.CacheError)
		if n := s.Connections() - before; n != 0 {
			t.Errorf("%s: %d connections", name, n)
		}
	}
	d := s.Image(t, repo, "v1", "one", nil)
	s.SignV3(t, repo, d, key)
	s.look(t, o, policy(t, 1, "", key))
	want(t, "asked", o, "True Resolved", "True Verified", "True Ready", v1alpha1.CachePending)
	before := s.Connections()
	s.look(t, o)
	want(t, "asked no more", o, "Unknown NoTrustPolicy", "False NoTrustPolicy", "False NoTrustPolicy", v1alpha1.CacheError)
	if n := s.Connections() - before; n != 0 || o.Status.ResolvedDigest != d.String() {
		t.Errorf("%d connections, status %+v", n, o.Status)
	}
}

// policyFor is a policy for some images that looks at no signature.
func policyFor(t *testing.T, images string) *trust.Policy {
	t.Helper()
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "others", Generation: 1}}
	p.Spec.Images, p.Spec.Mode = []string{images}, v1alpha1.VerificationSkip
	return trust.Load(p, nil)
}

// TestOneReason: a tenant's object says the same whatever keeps the controller from an answer, and one of the cluster says what it is.
func TestOneReason(t *testing.T) {
	s := newSite(t, true)
	skip := policy(t, 1, v1alpha1.VerificationSkip)
	s.Around(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "a page of somebody's", http.StatusNotFound)
		})
	})
	message := func(o object) string {
		s.look(t, o, skip)
		return meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionResolved).Message
	}
	page := s.object(repo + ":v1")
	got := message(page)
	want(t, "a page", page, "False RegistryUnavailable", "Unknown NotResolved", "False RegistryUnavailable", v1alpha1.CachePending)
	closed := s.object(repo + ":v1")
	nobody := check.ClosedAddress(t)
	closed.Spec.Image = nobody + "/" + repo + ":v1"
	if other := strings.ReplaceAll(message(closed), nobody, s.Host); other != got {
		t.Errorf("a page: %s\na closed port: %s", got, other)
	}
	words := func(m string) string { return strings.ReplaceAll(m, s.Host, "") } // the port may have any digits
	for _, word := range []string{"404", "page", "refused", "http"} {
		if strings.Contains(words(got), word) {
			t.Errorf("the tenant reads %q: %s", word, got)
		}
	}
	cluster := &v1alpha1.ClusterGPUKernelCache{ObjectMeta: metav1.ObjectMeta{Name: "kernels", UID: "2", Generation: 1}}
	cluster.Spec.Image = s.Host + "/" + repo + ":v1"
	if m := message(object{cluster.Common(), "fettle"}); !strings.Contains(words(m), "404") {
		t.Errorf("the administrator reads %s", m)
	}
}
