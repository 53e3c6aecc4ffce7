// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// verification records that an object's credentials could read its image and that policies accepted the signatures. It holds for these
// versions of the object and of the policies.
type verification struct {
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// Digest is the digest that the object resolved to, Tree that of the image for this node's platform.
	Digest artifact.Digest `json:"digest"`
	Tree   artifact.Digest `json:"tree"`
	// Repository is the image's. Policies has all that applied to it, and Mode is the mode that the object asked for beside them.
	Repository string                    `json:"repository"`
	Policies   []policyVersion           `json:"policies,omitempty"`
	Mode       v1alpha1.VerificationMode `json:"mode,omitempty"`
}

// policyVersion is a version of a policy.
type policyVersion struct {
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// PublicRoot is the digest of the public trusted root, which has no generation. It is empty if the policy does not use that root.
	PublicRoot string `json:"publicRoot,omitempty"`
}

// matches reports whether the verification is of this version of the object.
func (g *verification) matches(o *object) bool {
	return g != nil && g.UID == o.GetUID() && g.Generation == o.GetGeneration() && g.Digest.String() == o.Status.ResolvedDigest
}

// verifications keeps verifications in memory, and in files so that they outlive the process.
type verifications struct {
	dir string

	mu    sync.Mutex
	byUID map[types.UID]*verification
}

// get returns the verification of an object, nil if there is none. A file that cannot be read counts as none, and is written again.
func (g *verifications) get(uid types.UID) *verification {
	g.mu.Lock()
	defer g.mu.Unlock()
	if found, asked := g.byUID[uid]; asked {
		return found
	}
	var found *verification
	if name, err := g.file(uid); err == nil {
		if data, err := os.ReadFile(name); err == nil {
			var read verification
			if json.Unmarshal(data, &read) == nil && read.UID == uid {
				found = &read
			}
		}
	}
	g.byUID[uid] = found
	return found
}

// sameImage returns another object's verification of the same image by the same policies, nil if there is none. Its result holds for this
// object too, whose own credentials could read the image.
func (g *verifications) sameImage(asked *verification) *verification {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, known := range g.byUID {
		if known != nil && known.Digest == asked.Digest && known.Repository == asked.Repository && known.Mode == asked.Mode &&
			slices.Equal(known.Policies, asked.Policies) {
			return known
		}
	}
	return nil
}

// from reports whether a verification record says that a repository has the tree's image.
func (g *verifications) from(repository string, tree artifact.Digest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, known := range g.byUID {
		if known != nil && known.Repository == repository && known.Tree == tree {
			return true
		}
	}
	return false
}

// save keeps a verification. If the file cannot be written, the image is verified again after a restart.
func (g *verifications) save(found *verification) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byUID[found.UID] = found
	name, err := g.file(found.UID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(found)
	if err != nil {
		return fmt.Errorf("encode the verification of a cache: %w", err)
	}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return fmt.Errorf("save the verification of a cache: %w", err)
	}
	if err := disk.Replace(disk.OS{}, name, data, 0o600); err != nil {
		return fmt.Errorf("save the verification of a cache: %w", err)
	}
	return nil
}

// forgetDeleted forgets every object but those with the given UIDs.
func (g *verifications) forgetDeleted(uids map[types.UID]bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.byUID, func(uid types.UID, _ *verification) bool { return !uids[uid] })
	entries, err := os.ReadDir(g.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if uid := types.UID(strings.TrimSuffix(entry.Name(), ".json")); !uids[uid] {
			err = errors.Join(err, os.Remove(filepath.Join(g.dir, entry.Name())))
		}
	}
	return err
}

// file returns the path of an object's verification. It refuses a UID that is not a plain name.
func (g *verifications) file(uid types.UID) (string, error) {
	if uid == "" || strings.Trim(strings.ToLower(string(uid)), "0123456789abcdefghijklmnopqrstuvwxyz-") != "" {
		return "", fmt.Errorf("%q is no UID", uid)
	}
	return filepath.Join(g.dir, string(uid)+".json"), nil
}

// policyVersions returns the versions of the policies that apply to an object's image, and all policies.
func (f *Feature) policyVersions(ctx context.Context, o *object, ref artifact.Reference) ([]policyVersion, []*trust.Policy, error) {
	all, err := f.objects.policies(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	policies := f.trusted.All(all)
	var versions []policyVersion
	for i, p := range policies {
		if p.Applies(ref, o.GetNamespace()) {
			version := policyVersion{Name: all[i].Name, UID: all[i].UID, Generation: all[i].Generation}
			if root := p.PublicRoot(); !root.IsZero() {
				version.PublicRoot = root.String()
			}
			versions = append(versions, version)
		}
	}
	return versions, policies, nil
}

// currentVerification returns the verification of an object, nil if there is none for the present versions of object and policies.
func (f *Feature) currentVerification(ctx context.Context, o *object, ref artifact.Reference) (*verification, error) {
	found := f.verified.get(o.GetUID())
	if !found.matches(o) {
		return nil, nil //nolint:nilnil // documented above
	}
	versions, _, err := f.policyVersions(ctx, o, ref)
	if err != nil || !slices.Equal(versions, found.Policies) {
		return nil, err
	}
	return found, nil
}
