// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/signed"
)

// The one who is believed without a key.
const (
	ciIssuer  = "https://issuer.example"
	ciSubject = "builder@team.example"
)

// refusing is a registry with what the cases of TestCacheRefusals need.
type refusing struct {
	*signed.Registry
	key  signed.Key
	ci   signed.World
	host string // the tree of a machine with MI300X
}

// files are a cache's for one GPU.
func (r *refusing) files(arch string, warp int) map[string]string {
	return signed.Triton("/home/builder/.triton/cache", "hip", arch, warp)
}

// push makes an image that nobody signed.
func (r *refusing) push(t *testing.T, name string) artifact.Digest {
	t.Helper()
	files := r.files(`"gfx942"`, 64)
	files["TEXT/text"] = name
	return r.Files(t, "team/"+name, "v1", files, nil)
}

func (r *refusing) ref(name string) string { return r.Host + "/team/" + name + ":v1" }

// policy is a file with a TrustPolicy that believes the key and the one identity.
func (r *refusing) policy(t *testing.T, images string, world signed.World) string {
	t.Helper()
	data, err := yaml.Marshal(&v1alpha1.TrustPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindTrustPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: "kernels"},
		Spec: v1alpha1.TrustPolicySpec{Images: []string{images}, Authorities: []v1alpha1.TrustAuthority{
			{Name: "release", Key: &v1alpha1.TrustKey{PEM: r.key.PEM(t)}},
			world.Authority(t, "ci", v1alpha1.TrustIdentity{Issuer: ciIssuer, Subject: ciSubject}),
		}},
	})
	check.Must(t, err)
	name := filepath.Join(t.TempDir(), "policy.yaml")
	check.Must(t, os.WriteFile(name, data, 0o600))
	return name
}

// TestCacheRefusals: whoever asks why an image is of no use is told the object, the field and the reason.
func TestCacheRefusals(t *testing.T) {
	for _, referrers := range []bool{true, false} {
		r := &refusing{signed.Start(t, referrers), signed.NewKey(t), signed.NewWorld(t), filepath.Join(t.TempDir(), "host")}
		wants(t, 0, "", "machine", "expand", "../../test/machines/8xmi300x.txtar", r.host)
		policy := r.policy(t, "127.0.0.1:*/team/*", r.ci)
		for _, c := range refusals() {
			t.Run(c.name, func(t *testing.T) {
				d := c.push(t, r)
				args := slices.Concat(c.args, []string{r.ref(c.name), "--plain-http"})
				switch c.args[1] {
				case "verify":
					args = append(args, "--policy", policy)
				case "extract":
					args = slices.Concat(c.args, []string{r.ref(c.name), filepath.Join(t.TempDir(), "out"), "--plain-http", "--policy", policy})
				case "check":
					args = append(args, "--root", r.host)
				}
				status, stdout, stderr := call(t, args...)
				if status != 1 {
					t.Fatalf("fettle %s: status %d:\n%s%s", strings.Join(args, " "), status, stdout, stderr)
				}
				if c.args[1] == "verify" {
					c.want = append(c.want, d.String())
				}
				for _, word := range c.want {
					if !strings.Contains(stdout+stderr, word) {
						t.Errorf("fettle %s does not say %q:\n%s%s", strings.Join(args, " "), word, stdout, stderr)
					}
				}
			})
		}
	}
}

// refusal is one image, what somebody does with it, and what he is told.
type refusal struct {
	name string
	push func(*testing.T, *refusing) artifact.Digest
	args []string
	want []string
}

func refusals() []refusal {
	verify, look, extract := []string{"cache", "verify"}, []string{"cache", "check"}, []string{"cache", "extract"}
	inspect := []string{"cache", "inspect", "--files"}
	tampered := func(name string) func(*testing.T, *refusing) artifact.Digest {
		return func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			d := r.push(t, name)
			r.SignV3(t, "team/"+name, d, r.key)
			r.Around(signed.Tampered(func(digest string) bool { return digest == r.LayerOf(d) }))
			t.Cleanup(func() { r.Around(nil) })
			return d
		}
	}
	byCI := func(name, issuer, subject string) func(*testing.T, *refusing) artifact.Digest {
		return func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			d := r.push(t, name)
			r.SignKeyless(t, "team/"+name, d, signed.Identity{World: r.ci, Issuer: issuer, Subject: subject})
			return d
		}
	}
	const policy, digest = "TrustPolicy kernels", "layer 1: not what was declared by the rule on digest"
	return []refusal{
		{"arch", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			return r.Files(t, "team/arch", "v1", r.files(`"gfx90a"`, 64), nil)
		}, look, []string{"amd-0000-05-00-0  no", "add_kernel.json", "for hip gfx90a", "(hip gfx942) is another"}},
		{"warp", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			return r.Files(t, "team/warp", "v1", r.files(`"gfx942"`, 32), nil)
		}, look, []string{"amd-0000-05-00-0  no", "add_kernel.json", "for warps of 32", "have 64"}},
		{"unsigned", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			return r.push(t, "unsigned")
		}, verify, []string{policy, "0 of 1 signers among release (key sha256:", "ci (keyless)", "the repository has no signature of it"}},
		{"other-key-v3", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			d := r.push(t, "other-key-v3")
			r.SignV3(t, "team/other-key-v3", d, signed.NewKey(t))
			return d
		}, verify, []string{policy, "CosignV3 sha256:", "authority release (key sha256:", "), key: failed to verify signature"}},
		{"other-key-v2", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			d := r.push(t, "other-key-v2")
			r.SignV2(t, "team/other-key-v2", d, signed.NewKey(t))
			return d
		}, verify, []string{policy, "CosignV2 sha256:", "authority release (key sha256:", "), key: failed to verify signature"}},
		{"issuer", byCI("issuer", "https://other.example", ciSubject), verify, []string{
			policy, "authority ci (keyless), keyless.identities: ", ciIssuer, "https://other.example",
		}},
		{"subject", byCI("subject", ciIssuer, "somebody@team.example"), verify, []string{
			policy, "authority ci (keyless), keyless.identities: ", ciSubject, "somebody@team.example",
		}},
		{"world", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			d := r.push(t, "world")
			r.SignKeyless(t, "team/world", d, signed.Identity{World: signed.NewWorld(t), Issuer: ciIssuer, Subject: ciSubject})
			return d
		}, verify, []string{policy, "authority ci (keyless), trustedRoot: "}},
		{"sbom", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			d := r.push(t, "sbom")
			r.AttestV3(t, "team/sbom", d, r.key, signed.SBOMPredicate)
			return d
		}, verify, []string{policy, "authority release (key sha256:", "predicate type", signed.SBOMPredicate, signed.SignPredicate}},
		{"tampered", tampered("tampered"), extract, []string{digest, "expected sha256:"}},
		{"tampered-files", tampered("tampered-files"), inspect, []string{digest, "expected sha256:"}},
		{"tampered-check", tampered("tampered-check"), look, []string{digest, "expected sha256:"}},
		{"moved", func(t *testing.T, r *refusing) artifact.Digest {
			t.Helper()
			r.SignV3(t, "team/moved", r.push(t, "moved"), r.key)
			return r.Files(t, "team/moved", "v1", r.files(`"gfx942"`, 64), nil)
		}, verify, []string{policy, "the repository has no signature of it"}},
	}
}
