// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// policyFlags say whom to believe.
type policyFlags struct {
	files           list
	root, namespace string
	as              string
}

func (a *arguments) policies() *policyFlags {
	p := &policyFlags{}
	a.Var(&p.files, "policy", "`file` with a TrustPolicy, or several; may be repeated")
	a.StringVar(&p.root, "trusted-root", "", "`file` with the trusted root of policies that have none of their own, in JSON")
	a.StringVarP(&p.namespace, "namespace", "n", "", "`namespace` of the object that refers to the image; unset: an object of the cluster")
	a.StringVar(&p.as, "as", "", "`repository` that oci:DIR is taken to be of, REGISTRY/REPOSITORY, which decides which policies are for it")
	a.where("namespace", unless(isNamespace))
	a.where("as", unless(func(text string) error {
		if !namesRegistry(text) {
			return errors.New("want REGISTRY/REPOSITORY, with a registry that has a dot or a port")
		}
		_, err := artifact.ParseReference(text)
		return err
	}))
	return p
}

// reference is the repository that policies are asked about.
func (p *policyFlags) reference(place artifactPlace) (artifact.Reference, error) {
	switch {
	case place.dir == "" && p.as != "":
		return artifact.Reference{}, errors.New("--as is for oci:DIR; REF has a repository")
	case place.dir == "":
		return place.remote, nil
	case p.as == "":
		return artifact.Reference{}, errors.New("a directory has no repository, by which policies are chosen: say with --as which it will have")
	}
	return artifact.ParseReference(p.as)
}

// judge asks the policies about what the source resolves to. They hold at the mirrors of the registries' configuration, as in the cluster.
func (p *policyFlags) judge(ctx context.Context, source imageSource, a *access) (artifact.Descriptor, trust.Verdict, error) {
	policies, err := p.load(a)
	if err != nil {
		return artifact.Descriptor{}, trust.Verdict{}, err
	}
	d, err := source.Resolve(ctx)
	if err != nil {
		return d, trust.Verdict{}, err
	}
	verdict, err := trust.Judge(ctx, source, d.Digest, trust.Object{Namespace: p.namespace}, policies)
	return d, verdict, err
}

func (p *policyFlags) load(a *access) ([]*trust.Policy, error) {
	registries, err := registry.LoadConfig(a.registries)
	if err != nil {
		return nil, err
	}
	var root []byte
	if p.root != "" {
		if root, err = os.ReadFile(p.root); err != nil {
			return nil, fmt.Errorf("read the trusted root: %w", err)
		}
	}
	var all []*trust.Policy
	for _, name := range p.files {
		objects, err := readPolicies(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, object := range objects {
			policy, err := trust.Compile(object, root)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, policy.AtMirrors(registries.Mirrors.Names()))
		}
	}
	return all, nil
}

// readPolicies reads a file of TrustPolicies and nothing else: an object that is passed over would be a policy that is not asked.
func readPolicies(name string) ([]*v1alpha1.TrustPolicy, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []*v1alpha1.TrustPolicy
	for _, d := range manifest.Split(data) {
		document, err := manifest.JSON(d.Text)
		if err != nil {
			return nil, err
		}
		var head metav1.TypeMeta
		if err := json.Unmarshal(document, &head); err != nil {
			return nil, manifest.WithoutTypes(err)
		}
		if head.APIVersion != v1alpha1.GroupVersion.String() || head.Kind != "TrustPolicy" {
			return nil, fmt.Errorf("got %s %s, want %s TrustPolicy", orNone(head.APIVersion), orNone(head.Kind), v1alpha1.GroupVersion)
		}
		policy := &v1alpha1.TrustPolicy{}
		if err := yaml.UnmarshalStrict(document, policy); err != nil {
			return nil, manifest.WithoutTypes(err)
		}
		all = append(all, policy)
	}
	if len(all) == 0 {
		return nil, errors.New("want a TrustPolicy")
	}
	return all, nil
}

// policyVerdict is what one policy says.
type policyVerdict struct {
	Policy     string                 `json:"policy,omitempty"`
	Result     v1alpha1.VerdictResult `json:"result"`
	Signatures []policySignature      `json:"signatures,omitempty"`
	Message    string                 `json:"message,omitempty"`
}

type policySignature struct {
	Format    v1alpha1.SignatureFormat `json:"format"`
	Authority string                   `json:"authority"`
	Signer    string                   `json:"signer"`
	Time      *time.Time               `json:"time,omitempty"`
}

func verdicts(v trust.Verdict) []policyVerdict {
	var all []policyVerdict
	for _, r := range v.Results {
		one := policyVerdict{Policy: r.Policy, Result: v1alpha1.VerdictVerified}
		for _, s := range r.Signatures {
			signature := policySignature{Format: s.Format, Authority: s.Authority, Signer: s.Signer.String()}
			if !s.LogTime.IsZero() {
				signature.Time = new(s.LogTime.UTC())
			}
			one.Signatures = append(one.Signatures, signature)
		}
		all = append(all, one)
	}
	for _, name := range v.Skipped {
		all = append(all, policyVerdict{Policy: name, Result: v1alpha1.VerdictSkipped, Message: "the policy looks at no signature"})
	}
	for _, err := range v.Warnings {
		one := policyVerdict{Result: v1alpha1.VerdictWarned, Message: err.Error()}
		var refusal *trust.Refusal
		if errors.As(err, &refusal) {
			one.Policy = refusal.Policy
		}
		all = append(all, one)
	}
	return all
}

// policyLines shows what the policies said.
func policyLines(all []policyVerdict, line func(name, value string)) {
	for _, p := range all {
		line("POLICY", fmt.Sprintf("%s: %s", p.Policy, p.Result))
		for _, s := range p.Signatures {
			text := fmt.Sprintf("%s by %s of authority %s", s.Format, s.Signer, s.Authority)
			if s.Time != nil {
				text += " at " + s.Time.Format(time.RFC3339)
			}
			line("SIGNED", text)
		}
		line("WARNING", p.Message)
	}
}
