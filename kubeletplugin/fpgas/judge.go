// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
	"github.com/fettle-dev/fettle/pkg/trust"
)

var (
	// errRefused: a TrustPolicy refuses the bitstream.
	errRefused = errors.New("is refused")
	// errNotVerified: the registry does not say who signed the bitstream.
	errNotVerified = errors.New("is not verified yet")
)

const (
	// noPolicy is why a bitstream without a policy for its repository counts as unsigned.
	noPolicy = "no TrustPolicy is for it"
	// noSignature is why a file on the host counts as unsigned.
	noSignature = "files on the nodes have no signatures"

	// outcomeTTL is how long a refusal or a warning is remembered. kubelet retries every few seconds, and each retry would ask the registry.
	outcomeTTL = 30 * time.Second
	// maxVerdicts and maxOutcomes limit what is kept, since tenants choose the images.
	maxVerdicts, maxOutcomes = 1024, 1024
)

// verdict records that these versions of policies let an image pass. It holds for whoever refers to the image, as far as the same policies
// are for them.
type verdict struct {
	Repository string                  `json:"repository"`
	Digest     artifact.Digest         `json:"digest"`
	Policies   []trustpolicies.Version `json:"policies"`
	// Manifest and File are of the bitstream in the image.
	Manifest string `json:"manifest"`
	File     string `json:"file"`
	// Result is Verified, Warned or Skipped. Message says why, if it is not Verified.
	Result  v1alpha1.VerdictResult `json:"result"`
	Message string                 `json:"message,omitempty"`
}

// key returns a digest of what was judged, and by which policies.
func (v *verdict) key() string {
	judged := *v
	judged.Result, judged.Message = "", ""
	data, err := json.Marshal(judged)
	if err != nil {
		return "" // has no file, and is judged again
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// outcome is a refusal, or a warning without an error, that need not be asked for again until a time.
type outcome struct {
	err   error
	until time.Time
}

// judge asks the TrustPolicies about bitstreams.
type judge struct {
	policies    *trustpolicies.Reader
	client      *registry.Client
	credentials func(ctx context.Context, namespace string, names []string) (*registry.Keychain, error)
	verdicts    *trustpolicies.Records[verdict]
	clock       clock.PassiveClock

	mu       sync.Mutex
	outcomes map[string]outcome
}

func newJudge(c *Config, dir string) *judge {
	return &judge{
		policies: c.Policies, client: c.Artifacts.Client, credentials: c.Artifacts.Credentials, clock: c.Clock,
		verdicts: trustpolicies.NewRecords(dir, (*verdict).key), outcomes: map[string]outcome{},
	}
}

// check has the policies judge a bitstream and notes in its identity whether one verified its signatures. It returns an error if a policy
// refuses the bitstream, or if there is no answer. A bitstream that no policy is for passes without a verdict, and no registry is asked.
func (j *judge) check(ctx context.Context, b *bitstream) error {
	if b.fetch == nil {
		b.identity.Vouched, b.identity.VouchedDetail = false, noSignature
		return nil
	}
	policies, versions, err := j.policies.For(ctx, b.signed, b.namespace)
	if err != nil {
		return fmt.Errorf("%s %w: %w", &b.identity, errNotVerified, err)
	}
	if len(policies) == 0 {
		b.identity.Vouched, b.identity.VouchedDetail = false, noPolicy
		return nil
	}
	if b.refused != nil && slices.EqualFunc(b.refused.Policies, versions, isOf) {
		return fmt.Errorf("%s %w: %s", &b.identity, errRefused, b.refused.Message)
	}
	asked := &verdict{
		Repository: b.signed.Repository(), Digest: b.signed.Digest(), Policies: versions, Manifest: b.manifest, File: b.fetch.Digest,
	}
	found, err := j.find(ctx, b, asked, policies)
	if err != nil {
		return err
	}
	b.identity.Vouched, b.identity.VouchedDetail = found.Result == v1alpha1.VerdictVerified, found.Message
	return nil
}

// isOf reports whether a policy that the controller asked is of this version. The controller may lag behind the node.
func isOf(asked v1alpha1.PolicyReference, v trustpolicies.Version) bool {
	return asked.Is(v1alpha1.PolicyReference{Name: v.Name, UID: v.UID, Generation: v.Generation, PublicRoot: v.PublicRoot})
}

// find returns the verdict that was asked for, from the records or from the registry. The registry is asked again after a warning, since
// somebody may have signed the bitstream meanwhile; if it is down, the warning stands.
func (j *judge) find(ctx context.Context, b *bitstream, asked *verdict, policies []*trust.Policy) (*verdict, error) {
	key := asked.key()
	found := j.verdicts.Get(key)
	key += " of " + b.identity.String() // others have other pull secrets, and a refusal names the object
	if found != nil && found.Result != v1alpha1.VerdictWarned {
		return found, nil
	}
	switch err, holds := j.recent(key); {
	case holds && err != nil:
		return nil, err
	case holds && found != nil: // else the record of the warning is gone
		return found, nil
	}
	err := j.ask(ctx, b, asked, policies)
	switch {
	case errors.Is(err, errNotVerified) && found != nil:
		return found, nil
	case errors.Is(err, errNotVerified):
		return nil, err
	case err != nil:
		j.remember(key, err)
		return nil, err
	case asked.Result == v1alpha1.VerdictWarned:
		j.remember(key, nil)
	}
	if err := errors.Join(j.verdicts.Save(asked), j.verdicts.Trim(maxVerdicts)); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save a verification: the bitstream is verified again after a restart", "bitstream", &b.identity)
	}
	return asked, nil
}

// ask asks the registry for signatures and completes the verdict.
func (j *judge) ask(ctx context.Context, b *bitstream, v *verdict, policies []*trust.Policy) error {
	if err := artifact.CheckNetwork(ctx); err != nil {
		return fmt.Errorf("%s %w: %w", &b.identity, errNotVerified, err)
	}
	keys, err := j.credentials(ctx, b.fetch.SecretsIn, b.fetch.Secrets)
	if err != nil {
		return fmt.Errorf("%s %w: %w", &b.identity, errNotVerified, err)
	}
	source := j.client.TenantSource(b.signed, keys)
	judged, err := trust.Judge(ctx, source, b.signed.Digest(), trust.Object{Namespace: b.namespace}, policies)
	if err != nil {
		return judgeError(b, err)
	}
	if len(judged.Results) > 0 { // also beside a warning, which is about another policy
		err = checkSigned(ctx, source, b)
	}
	switch v.Result = judged.Result(); v.Result {
	case v1alpha1.VerdictVerified:
	case v1alpha1.VerdictWarned:
		v.Message = errors.Join(judged.Warnings...).Error()
	default:
		v.Message = "signatures are not checked: that is the mode of TrustPolicy " + strings.Join(judged.Skipped, ", ")
	}
	if err != nil {
		return judgeError(b, err)
	}
	return nil
}

// judgeError wraps err as a refusal, or as no answer if a retry may help.
func judgeError(b *bitstream, err error) error {
	if artifact.IsRetryable(err) && !errors.Is(err, trust.ErrRefused) {
		return fmt.Errorf("%s %w: %w", &b.identity, errNotVerified, err)
	}
	return fmt.Errorf("%s %w: %w", &b.identity, errRefused, err)
}

// checkSigned follows the signed digest to the file that is programmed. The signature is of the artifact's manifest or index, while the
// file's digest is what the controller wrote into the status.
func checkSigned(ctx context.Context, source *registry.Source, b *bitstream) error {
	images, err := oci.List(ctx, source, artifact.Descriptor{Digest: b.signed.Digest()})
	if err != nil {
		return err
	}
	for i := range images {
		if images[i].Manifest.String() == b.manifest && images[i].Layer.Digest.String() == b.fetch.Digest {
			return nil
		}
	}
	return fmt.Errorf("the file %s of manifest %s is %w: the signed artifact %s does not have it",
		b.fetch.Digest, b.manifest, trust.ErrRefused, b.signed.Digest())
}

// recent returns the outcome that was remembered last, nil for a warning. It no longer holds after a while.
func (j *judge) recent(key string) (err error, holds bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	last, found := j.outcomes[key]
	return last.err, found && j.clock.Now().Before(last.until)
}

// remember keeps a refusal, or nil for a warning.
func (j *judge) remember(key string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.outcomes) >= maxOutcomes {
		clear(j.outcomes)
	}
	j.outcomes[key] = outcome{err, j.clock.Now().Add(outcomeTTL)}
}
