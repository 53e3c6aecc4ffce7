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

// verification is what the node found out of an object: that its credentials read the image, and who signed it. It holds for the object and
// the policies as they were.
type verification struct {
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// Digest is what the object resolved to, Tree the image in it that this node has.
	Digest artifact.Digest `json:"digest"`
	Tree   artifact.Digest `json:"tree"`
	// Repository is the image's. Policies were all that are for it, and Mode what the object asked for beside them.
	Repository string                    `json:"repository"`
	Policies   []policyVersion           `json:"policies,omitempty"`
	Mode       v1alpha1.VerificationMode `json:"mode,omitempty"`
}

// policyVersion is a policy as it was.
type policyVersion struct {
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// PublicRoot is the digest of the public trusted root, empty where the policy does not ask it. Its file is no object with a generation.
	PublicRoot string `json:"publicRoot,omitempty"`
}

// of says whether it is still of the object.
func (g *verification) of(o *object) bool {
	return g != nil && g.UID == o.GetUID() && g.Generation == o.GetGeneration() && g.Digest.String() == o.Status.ResolvedDigest
}

// verifications are kept in memory, and in files so that they outlive the process.
type verifications struct {
	dir string

	mu    sync.Mutex
	known map[types.UID]*verification
}

// get is the grant of an object, nil where there is none. A file that cannot be read counts as none: it is made anew.
func (g *verifications) get(uid types.UID) *verification {
	g.mu.Lock()
	defer g.mu.Unlock()
	if found, asked := g.known[uid]; asked {
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
	g.known[uid] = found
	return found
}

// like is another object's grant of the same image, by the same policies: what it says of the image holds for this object as well, once it
// was seen that it may read it. Nil: there is none.
func (g *verifications) like(asked *verification) *verification {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, known := range g.known {
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
	for _, known := range g.known {
		if known != nil && known.Repository == repository && known.Tree == tree {
			return true
		}
	}
	return false
}

// put notes a grant. What is not noted on the disk is only found out again after a restart.
func (g *verifications) put(found *verification) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known[found.UID] = found
	name, err := g.file(found.UID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(found)
	if err != nil {
		return fmt.Errorf("encode what was found of a cache: %w", err)
	}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return fmt.Errorf("note what was found of a cache: %w", err)
	}
	if err := disk.Replace(disk.OS{}, name, data, 0o600); err != nil {
		return fmt.Errorf("note what was found of a cache: %w", err)
	}
	return nil
}

// sweep forgets the objects that are gone.
func (g *verifications) sweep(there map[types.UID]bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.known, func(uid types.UID, _ *verification) bool { return !there[uid] })
	entries, err := os.ReadDir(g.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if uid := types.UID(strings.TrimSuffix(entry.Name(), ".json")); !there[uid] {
			err = errors.Join(err, os.Remove(filepath.Join(g.dir, entry.Name())))
		}
	}
	return err
}

// file is where the grant of an object is. Nothing but a plain name is taken from a UID.
func (g *verifications) file(uid types.UID) (string, error) {
	if uid == "" || strings.Trim(strings.ToLower(string(uid)), "0123456789abcdefghijklmnopqrstuvwxyz-") != "" {
		return "", fmt.Errorf("%q is no UID", uid)
	}
	return filepath.Join(g.dir, string(uid)+".json"), nil
}

// applying are the versions of the policies that are for an object's image.
func (f *Feature) applying(ctx context.Context, o *object, ref artifact.Reference) ([]policyVersion, []*trust.Policy, error) {
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

// granted is the grant of an object that holds for everything as it is now, nil where there is none.
func (f *Feature) granted(ctx context.Context, o *object, ref artifact.Reference) (*verification, error) {
	found := f.verified.get(o.GetUID())
	if !found.of(o) {
		return nil, nil //nolint:nilnil // documented above
	}
	versions, _, err := f.applying(ctx, o, ref)
	if err != nil || !slices.Equal(versions, found.Policies) {
		return nil, err
	}
	return found, nil
}
