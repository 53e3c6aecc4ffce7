// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/controller/pairs"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/trust"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/signed"
)

// judged is a registry with signatures, and a resolver of bitstreams in it.
type judged struct {
	*signed.Registry
	resolver artifacts.Resolver
	kind     artifacts.Kind
	scratch  *Scratch
}

func newJudged(t *testing.T, referrers bool) *judged {
	t.Helper()
	r := signed.Start(t, referrers)
	client, err := registry.NewClient(registry.Config{PlainHTTP: []string{r.Host}, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	services := reconciler.Services{Client: api, Live: api, Namespace: "fettle"}
	return &judged{
		Registry: r, resolver: artifacts.NewResolver(services, client), scratch: NewScratch(t.TempDir()),
		kind: artifacts.Kind{PolicyOptional: true, ReadTimeout: time.Minute, Interval: time.Minute},
	}
}

// look takes a bitstream through the pipeline once. It returns the condition Verified.
func (j *judged) look(t *testing.T, b *v1alpha1.FPGABitstream, policies ...*trust.Policy) metav1.Condition {
	t.Helper()
	o := &object{CommonFPGABitstream: b.Common(), resolver: &resolver{namespace: "fettle", scratch: j.scratch}}
	out, err := j.resolver.Resolve(t.Context(), &j.kind, o, policies)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil {
		artifacts.Record(&j.kind, o, out, start)
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionVerified); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (j *judged) object(tag string) *v1alpha1.FPGABitstream {
	b := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nlb0", Generation: 1}}
	b.Spec.Image = j.Host + "/" + repo + ":" + tag
	return b
}

func policyOf(t *testing.T, name string, mode v1alpha1.VerificationMode, keys ...signed.Key) *trust.Policy {
	t.Helper()
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	p.Spec.Images, p.Spec.Mode = []string{"127.0.0.1:*/team/**"}, mode
	for _, k := range keys {
		p.Spec.Authorities = append(p.Spec.Authorities, v1alpha1.TrustAuthority{Name: "release", Key: &v1alpha1.TrustKey{PEM: k.PEM(t)}})
	}
	compiled, err := trust.Compile(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// TestSigned judges every format of bitstreams with both formats of signatures, in registries with and without a list of referrers.
func TestSigned(t *testing.T) {
	for name, referrers := range map[string]bool{"referrers": true, "tags": false} {
		t.Run(name, func(t *testing.T) {
			j, key, stranger := newJudged(t, referrers), signed.NewKey(t), signed.NewKey(t)
			enforce := policyOf(t, "enforce", v1alpha1.VerificationEnforce, key)
			raw := `{"format":"rbf","id":"` + nlb0 + `","interfaceID":"` + shell + `"}`
			for _, f := range []struct {
				tag, config, file string
				format            fpga.Format
			}{
				{"gbs", "{}", "nlb0.gbs", fpga.GBS},
				{"card-signed", "{}", "nlb0-signed.gbs", fpga.GBS},
				{"aocx", "{}", "vector.aocx", fpga.AOCX},
				{"xclbin", "{}", "hello.xclbin", fpga.Xclbin},
				{"rbf", raw, "nlb0.rbf", fpga.RBF},
				{"bin", strings.Replace(raw, "rbf", "bin", 1), "nlb0.rbf", fpga.BIN},
			} {
				t.Run(f.tag, func(t *testing.T) {
					d, err := artifact.ParseDigest(j.Push(t, repo, f.tag, fpgaregistry.Bitstream{
						Config: f.config, Format: f.format, File: file(t, f.file),
					}).Digest)
					if err != nil {
						t.Fatal(err)
					}
					b := j.object(f.tag)
					expect := func(what string, got metav1.Condition, status metav1.ConditionStatus, reason, message string) {
						t.Helper()
						if got.Status != status || got.Reason != reason || !strings.Contains(got.Message, message) {
							t.Errorf("%s: %+v", what, got)
						}
					}
					expect("without a policy", j.look(t, b), "Unknown", "NoTrustPolicy", "no TrustPolicy is for")
					if v := b.Status.Verification; v != nil {
						t.Errorf("a verdict without a policy: %+v", v)
					}
					expect("unsigned", j.look(t, b, enforce), "False", "Refused", "no signature")
					j.SignV3(t, repo, d, stranger)
					expect("a stranger's", j.look(t, b, enforce), "False", "Refused", "authority release")
					j.SignV2(t, repo, d, key)
					expect("cosign 2", j.look(t, b, enforce), "True", "Verified", d.String())
					v := b.Status.Verification
					if v == nil || v.Digest != d.String() || v.Policies[0].Name != "enforce" || v.Formats[0] != v1alpha1.SignatureCosignV2 {
						t.Errorf("verdict %+v", v)
					}
					j.SignV2(t, repo, d, stranger) // in the place of the good one
					j.SignV3(t, repo, d, key)
					expect("cosign 3", j.look(t, b, enforce), "True", "Verified", d.String())
					expect("skipped", j.look(t, b, policyOf(t, "skip", v1alpha1.VerificationSkip)), "Unknown", "Skipped", "TrustPolicy skip")
					expect("warned", j.look(t, b, policyOf(t, "warn", v1alpha1.VerificationWarn, signed.NewKey(t))), "False", "Warned", "authority")
					expect("the policy is gone", j.look(t, b), "Unknown", "NoTrustPolicy", "no TrustPolicy is for")
					if v := b.Status.Verification; v != nil {
						t.Errorf("a verdict of a policy that is gone: %+v", v)
					}
				})
			}
		})
	}
}

// TestVerdictInAnOutage: while the registry is down, the verdict stands as long as the policies are the same.
func TestVerdictInAnOutage(t *testing.T) {
	j, key := newJudged(t, true), signed.NewKey(t)
	d, err := artifact.ParseDigest(j.Push(t, repo, "v1", fpgaregistry.Bitstream{
		Config: "{}", Format: fpga.GBS, File: file(t, "nlb0.gbs"),
	}).Digest)
	if err != nil {
		t.Fatal(err)
	}
	j.SignV3(t, repo, d, key)
	b, enforce := j.object("v1"), policyOf(t, "enforce", v1alpha1.VerificationEnforce, key)
	if got := j.look(t, b, enforce); got.Reason != "Verified" {
		t.Fatalf("%+v", got)
	}
	j.Down.Store(true)
	if got := j.look(t, b, enforce); got.Reason != "Verified" || b.Status.Digest != d.String() {
		t.Errorf("%+v", got)
	}
	if got := j.look(t, b, enforce, policyOf(t, "more", v1alpha1.VerificationEnforce, signed.NewKey(t))); got.Status != "Unknown" ||
		got.Reason != "RegistryUnavailable" || b.Status.Verification != nil {
		t.Errorf("another policy: %+v, %+v", got, b.Status.Verification)
	}
}

// TestPinnedAndUnjudged: nothing is asked again of a digest that was read, until a policy is for it.
func TestPinnedAndUnjudged(t *testing.T) {
	j, key := newJudged(t, true), signed.NewKey(t)
	pushed := j.Push(t, repo, "v1", fpgaregistry.Bitstream{Config: "{}", Format: fpga.GBS, File: file(t, "nlb0.gbs")})
	b := j.object("v1")
	b.Spec.Image = j.Host + "/" + repo + "@" + pushed.Digest
	j.look(t, b)
	j.Down.Store(true)
	if got := j.look(t, b); got.Reason != "NoTrustPolicy" || !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionResolved) {
		t.Errorf("asked again: %+v", b.Status.Conditions)
	}
	if got := j.look(t, b, policyOf(t, "enforce", v1alpha1.VerificationEnforce, key)); got.Reason != "RegistryUnavailable" {
		t.Errorf("not asked for signatures: %+v", got)
	}
}

// atOnce is a queue that notes what comes at once.
type atOnce struct {
	reconciler.RequestQueue
	keys []string
}

func (q *atOnce) Add(r reconcile.Request) { q.keys = append(q.keys, r.String()) }

// TestOnPolicies: a policy queues the bitstreams that it is for.
func TestOnPolicies(t *testing.T) {
	object := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nlb0", UID: "1"}}
	object.Spec.Image = "registry.example/team/nlb0:v1"
	elsewhere := object.DeepCopy()
	elsewhere.Name, elsewhere.Spec.Image = "elsewhere", "registry.example/other/nlb0:v1"
	c := newCounter(t, object, elsewhere)
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Images = []string{"registry.example/team/*"} // to be for an image, it need not be valid
	var q atOnce
	(&resolver{client: c.client}).onPolicies(pairs.OfNamespaces).Create(t.Context(), event.CreateEvent{Object: p}, &q)
	if len(q.keys) != 1 || q.keys[0] != "team-a/nlb0" {
		t.Errorf("queued %v", q.keys)
	}
}
