// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/signed"
)

// court is a lab with policies and a clock.
type court struct {
	*lab
	time *clocktesting.FakePassiveClock
}

func newCourt(t *testing.T) *court {
	t.Helper()
	c := &court{lab: newLab(t, twoRegions()...), time: clocktesting.NewFakePassiveClock(time.Now())}
	c.restart()
	return c
}

// restart judges as a new process does.
func (c *court) restart() {
	c.judge = newJudge(&c.Config, filepath.Join(c.dir, verdictsDir))
	c.judge.clock = c.time
}

// rule puts a policy for a repository of the registry.
func (c *court) rule(name, repository string, generation int64, mode v1alpha1.VerificationMode, keys ...signed.Key) *v1alpha1.TrustPolicy {
	c.t.Helper()
	p := &v1alpha1.TrustPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: generation}}
	p.Spec.Images, p.Spec.Mode = []string{c.Host + "/" + repository}, mode
	for _, k := range keys {
		p.Spec.Authorities = append(p.Spec.Authorities, v1alpha1.TrustAuthority{Name: "release", Key: &v1alpha1.TrustKey{PEM: k.PEM(c.t)}})
	}
	c.put(p)
	return p
}

// programs plans a claim of a class with a policy that names a bitstream.
func (c *court) programs(policy, bitstream string) error {
	c.t.Helper()
	claim := fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), `"policy":{`+policy+`}`)
	_, err := c.plan(fpgaOwn(claim, `"bitstream":{`+bitstream+`}`))
	return err
}

// forbids wants a refusal by a policy.
func (c *court) forbids(what string, err error, words ...string) {
	c.t.Helper()
	refused, ok := errors.AsType[*claim.RefusedError](err)
	if !ok || refused.Reason != claim.ReasonForbiddenByPolicy {
		c.t.Fatalf("%s: got %v, want a refusal", what, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			c.t.Errorf("%s: %q is not in: %v", what, word, err)
		}
	}
}

// passes wants no error.
func (c *court) passes(what string, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

const byName = `"name":"nlb3"`

// both are a class that lists everything of the test, and one that requires signatures too.
func (c *court) both() (open, strict string) {
	open = `"allowedBitstreams":["team-a/*"],"allowedRegistries":["` + c.Host + `"]`
	return open, open + `,"requireSignature":true`
}

// TestJudged: signatures of both formats count for objects and references alike; a policy that enforces refuses what is not signed,
// whatever the class says; a class that requires a signature wants one that a policy verified.
func TestJudged(t *testing.T) {
	for _, format := range []string{"CosignV2", "CosignV3"} {
		t.Run(format, func(t *testing.T) {
			c, key := newCourt(t), signed.NewKey(t)
			image := c.image("team/nlb3", shell, nlb3)
			c.put(c.object("team-a", "nlb3", image))
			ref := `"ref":"` + c.Host + `/team/nlb3@` + image.Manifest + `"`
			open, strict := c.both()
			sign := func(key signed.Key) {
				if format == "CosignV2" {
					c.SignV2(t, "team/nlb3", digest(t, image.Manifest), key)
				} else {
					c.SignV3(t, "team/nlb3", digest(t, image.Manifest), key)
				}
			}
			for name, bitstream := range map[string]string{"object": byName, "reference": ref} {
				c.passes(name+" without a policy", c.programs(open, bitstream))
				c.forbids(name+" without a policy", c.programs(strict, bitstream), "requireSignature", noPolicy)
			}
			c.rule("skip", "**", 1, v1alpha1.VerificationSkip)
			for name, bitstream := range map[string]string{"object": byName, "reference": ref} {
				c.passes(name+" that is skipped", c.programs(open, bitstream))
				c.forbids(name+" that is skipped", c.programs(strict, bitstream), "requireSignature", "TrustPolicy skip")
			}
			c.rule("release", "team/*", 1, v1alpha1.VerificationWarn, key)
			for name, bitstream := range map[string]string{"object": byName, "reference": ref} {
				c.passes(name+" that is warned of", c.programs(open, bitstream))
				c.forbids(name+" that is warned of", c.programs(strict, bitstream), "requireSignature", "no signature")
			}
			c.rule("release", "team/*", 2, v1alpha1.VerificationEnforce, key)
			for name, bitstream := range map[string]string{"object": byName, "reference": ref} {
				c.forbids(name+" that is not signed", c.programs(open, bitstream), "TrustPolicy release (generation 2)", "no signature")
			}
			sign(signed.NewKey(t))
			c.restart()
			c.forbids("a stranger's signature", c.programs(open, byName), "authority release")
			sign(key)
			c.restart()
			for name, bitstream := range map[string]string{"object": byName, "reference": ref} {
				c.passes("signed "+name, c.programs(open, bitstream))
				c.passes("signed "+name, c.programs(strict, bitstream))
			}
			c.rule("release", "team/*", 3, v1alpha1.VerificationEnforce, signed.NewKey(t))
			c.forbids("another key", c.programs(strict, byName), "TrustPolicy release (generation 3)")
			c.forbids("another key", c.programs(open, ref), "TrustPolicy release (generation 3)")
		})
	}
}

// TestVerdictIsKept: a bitstream that was judged costs no request, also in the next process and while the registry is down. Without a
// policy no registry is asked for signatures at all.
func TestVerdictIsKept(t *testing.T) {
	c, key := newCourt(t), signed.NewKey(t)
	image := c.image("team/nlb3", shell, nlb3)
	c.put(c.object("team-a", "nlb3", image))
	c.SignV3(t, "team/nlb3", digest(t, image.Manifest), key)
	open, strict := c.both()
	c.passes("fetched", c.programs(open, byName))
	free := func(what, class string) {
		t.Helper()
		before := c.Requests.Load()
		c.passes(what, c.programs(class, byName))
		if n := c.Requests.Load() - before; n != 0 {
			t.Errorf("%s: %d requests", what, n)
		}
	}
	free("without a policy", open)
	c.rule("release", "team/*", 1, v1alpha1.VerificationEnforce, key)
	c.passes("verified", c.programs(strict, byName))
	c.Down.Store(true)
	free("again", strict)
	c.restart()
	free("after a restart", strict)
	c.rule("release", "team/*", 2, v1alpha1.VerificationEnforce, key)
	err := c.programs(strict, byName)
	wants(t, err, errNotVerified, "FPGABitstream team-a/nlb3")
	if reasonOf(err) != reasonBitstream {
		t.Errorf("reason %s", reasonOf(err))
	}
	c.Down.Store(false)
	c.passes("after the outage", c.programs(strict, byName))
}

// TestRefusalIsOneTenants: the refusal of one namespace's object is not another's, of the same image: it names the object, and may be for
// want of a pull secret that the other has.
func TestRefusalIsOneTenants(t *testing.T) {
	c := newCourt(t)
	image := c.image("team/nlb3", shell, nlb3)
	other := c.object("team-b", "secret-project", image)
	other.Spec.Image = c.Host + "/team/nlb3:v1"
	c.put(other)
	c.put(c.object("team-a", "nlb3", image))
	c.rule("release", "team/*", 1, v1alpha1.VerificationEnforce, signed.NewKey(t))
	theirs, err := c.bitstreams.find(t.Context(), "team-b", &v1alpha1.BitstreamSource{Name: "secret-project"}, shell)
	check.Must(t, err)
	wants(t, c.judge.check(t.Context(), theirs), errRefused, "team-b/secret-project")
	open, _ := c.both()
	err = c.programs(open, byName)
	c.forbids("an object of the same image", err, "FPGABitstream team-a/nlb3", "no signature")
	if strings.Contains(err.Error(), "secret-project") {
		t.Errorf("a namespace reads another's name: %v", err)
	}
}

// TestRefusalIsRemembered: kubelet, which asks again and again, costs the registry nothing for a while; then a new signature counts.
func TestRefusalIsRemembered(t *testing.T) {
	for mode, refused := range map[v1alpha1.VerificationMode]bool{v1alpha1.VerificationEnforce: true, v1alpha1.VerificationWarn: false} {
		c, key := newCourt(t), signed.NewKey(t)
		image := c.image("team/nlb3", shell, nlb3)
		c.put(c.object("team-a", "nlb3", image))
		open, strict := c.both()
		c.passes("fetched", c.programs(open, byName))
		c.rule("release", "team/*", 1, mode, key)
		c.forbids("unsigned", c.programs(strict, byName), "no signature")
		c.SignV3(t, "team/nlb3", digest(t, image.Manifest), key)
		before := c.Requests.Load()
		c.forbids("at once", c.programs(strict, byName), "no signature")
		if n := c.Requests.Load() - before; n != 0 {
			t.Errorf("%s: %d requests", mode, n)
		}
		c.time.SetTime(c.time.Now().Add(outcomeTTL))
		c.Down.Store(true)
		if err := c.programs(open, byName); refused != errors.Is(err, errNotVerified) {
			t.Errorf("%s: while the registry is down: %v", mode, err)
		}
		c.Down.Store(false)
		c.passes("later", c.programs(strict, byName))
	}
}

// TestWarningWithoutVerdict: a warning is still remembered when its record is gone, as when tenants named more images than are kept. The
// bitstream is judged again.
func TestWarningWithoutVerdict(t *testing.T) {
	c, key := newCourt(t), signed.NewKey(t)
	c.put(c.object("team-a", "nlb3", c.image("team/nlb3", shell, nlb3)))
	open, strict := c.both()
	c.rule("release", "team/*", 1, v1alpha1.VerificationWarn, key)
	c.passes("warned of", c.programs(open, byName))
	check.Must(t, c.judge.verdicts.Keep(func(string) bool { return false }))
	c.passes("warned of again", c.programs(open, byName))
	check.Must(t, c.judge.verdicts.Keep(func(string) bool { return false }))
	c.forbids("warned of again", c.programs(strict, byName), "requireSignature", "no signature")
}

// TestReferenceIsRefusedUnasked: a reference that no signature would save sends no packet to the host that the tenant chose.
func TestReferenceIsRefusedUnasked(t *testing.T) {
	c := newCourt(t)
	image := c.image("team/nlb3", shell, nlb3)
	ref := `"ref":"` + c.Host + `/team/nlb3@` + image.Manifest + `"`
	open, strict := c.both()
	quiet := func(what, class string, words ...string) {
		t.Helper()
		before := c.Requests.Load()
		c.forbids(what, c.programs(class, ref), words...)
		if n := c.Requests.Load() - before; n != 0 {
			t.Errorf("%s: %d requests", what, n)
		}
	}
	quiet("a class that requires a signature where no policy is", strict, "requireSignature", noPolicy)
	p := c.rule("broken", "team/*", 1, v1alpha1.VerificationEnforce)
	p.Spec.Authorities = []v1alpha1.TrustAuthority{{Name: "release", Key: &v1alpha1.TrustKey{PEM: "none"}}}
	c.put(p)
	quiet("a policy that does not compile", open, "TrustPolicy broken")
	p.Spec.Images = []string{c.Host + "/other/*"}
	p.Generation++
	c.put(p)
	c.passes("a policy for others", c.programs(open, ref))
}

// TestVerdictIsOfARepository: what one repository has signatures of is not signed in another, although the node has the file.
func TestVerdictIsOfARepository(t *testing.T) {
	c, key := newCourt(t), signed.NewKey(t)
	alice, mallory := c.image("alice/nlb3", shell, nlb3), c.image("mallory/nlb3", shell, nlb3)
	c.SignV3(t, "alice/nlb3", digest(t, alice.Manifest), key)
	c.rule("release", "**", 1, v1alpha1.VerificationEnforce, key)
	open, _ := c.both()
	c.passes("alice's", c.programs(open, `"ref":"`+c.Host+`/alice/nlb3@`+alice.Manifest+`"`))
	c.forbids("mallory's", c.programs(open, `"ref":"`+c.Host+`/mallory/nlb3@`+mallory.Manifest+`"`), "mallory/nlb3", "no signature")
}

// TestSignedFile: a signature of the artifact says nothing of a file that is not in it, whatever the status says.
func TestSignedFile(t *testing.T) {
	c, key := newCourt(t), signed.NewKey(t)
	image, other := c.image("team/nlb3", shell, nlb3), c.image("team/nlb3", shell, nlb0)
	c.SignV3(t, "team/nlb3", digest(t, image.Manifest), key)
	c.rule("release", "team/*", 1, v1alpha1.VerificationEnforce, key)
	forged := image
	forged.Layer, forged.Size = other.Layer, other.Size
	c.put(c.object("team-a", "nlb3", forged))
	open, _ := c.both()
	c.forbids("another file", c.programs(open, byName), other.Layer, "does not have it")
	c.rule("warning", "team/*", 1, v1alpha1.VerificationWarn, signed.NewKey(t))
	c.forbids("another file, with a warning beside", c.programs(open, byName), other.Layer, "does not have it")
}

// TestRefusedByController: what the controller found refused is not asked for again, and not fetched.
func TestRefusedByController(t *testing.T) {
	c := newCourt(t)
	object := c.object("team-a", "nlb3", c.image("team/nlb3", shell, nlb3))
	object.Status.Verification = &v1alpha1.ImageVerdict{
		Digest: object.Status.Digest, Result: v1alpha1.VerdictRefused, Message: "no signature by release",
		Policies: []v1alpha1.PolicyReference{{Name: "release", Generation: 1}},
	}
	c.put(object)
	c.rule("release", "team/*", 1, v1alpha1.VerificationEnforce, signed.NewKey(t))
	open, _ := c.both()
	before := c.Requests.Load()
	c.forbids("refused", c.programs(open, byName), "no signature by release")
	if n := c.Requests.Load() - before; n != 0 {
		t.Errorf("%d requests", n)
	}
	c.rule("release", "team/*", 2, v1alpha1.VerificationSkip)
	c.passes("by another policy than the controller asked", c.programs(open, byName))
	files := c.bitstreams.filesOf(asUnstructured(t, object), []string{shell})
	if len(files) > 0 {
		t.Errorf("fetched ahead: %v", files)
	}
	object.Status.Verification.Digest = digestOf([]byte("an earlier one"))
	if files := c.bitstreams.filesOf(asUnstructured(t, object), []string{shell}); len(files) != 1 {
		t.Errorf("files to fetch ahead: %v", files)
	}
}

// TestHostFileIsUnsigned: no policy is for a file on the node, and a class that requires a signature refuses it.
func TestHostFileIsUnsigned(t *testing.T) {
	c := newCourt(t)
	c.stage("srv/nlb3.gbs", []byte("x"))
	c.put(onHost("staged", v1alpha1.HostBitstream{Path: "/srv/nlb3.gbs", Digest: digestOf([]byte("x"))}))
	b := &bitstream{identity: claim.Bitstream{Kind: v1alpha1.KindClusterFPGABitstream, Name: "staged", Vouched: true}}
	check.Must(t, c.judge.check(t.Context(), b))
	if b.identity.Vouched || b.identity.VouchedDetail != noSignature {
		t.Errorf("%+v", b.identity)
	}
}

// TestPolicyOfNamespaces: a policy for the objects of some namespaces is not for those of the cluster.
func TestPolicyOfNamespaces(t *testing.T) {
	c := newCourt(t)
	image := c.image("team/nlb3", shell, nlb3)
	c.put(c.object("team-a", "nlb3", image))
	c.put(c.clusterObject("nlb3", image))
	p := c.rule("release", "team/*", 1, v1alpha1.VerificationEnforce, signed.NewKey(t))
	p.Spec.Namespaces = []string{"team-a"}
	open, _ := c.both()
	c.forbids("the namespace's", c.programs(open, byName), "no signature")
	c.passes("the cluster's", c.programs(open, byName+`,"kind":"ClusterFPGABitstream"`))
}

// TestBlankIsJudged: a blank image that a policy refuses wipes nothing. A claim that needs none goes without.
func TestBlankIsJudged(t *testing.T) {
	c, key := newCourt(t), signed.NewKey(t)
	c.put(c.object("team-a", "nlb3", c.image("team/nlb3", shell, nlb3)))
	c.putBlank()
	c.rule("release", "team/blank", 1, v1alpha1.VerificationEnforce, key)
	open, _ := c.both()
	c.passes("not needed", c.programs(open, byName))
	wipes := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), `"policy":{`+open+`}`), `"onRelease":"Blank"`)
	_, err := c.plan(wipes)
	wants(t, err, errRefused, "the blank image: ClusterFPGABitstream blank is refused")
	blank, err := c.bitstreams.blank(t.Context(), shell, func(context.Context, *bitstream) error { return nil })
	check.Must(t, err)
	c.SignV2(t, "team/blank", digest(t, blank.manifest), key)
	c.restart()
	_, err = c.plan(wipes)
	check.Must(t, err)
}
