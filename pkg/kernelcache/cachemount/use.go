// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/step"
)

// StepKind is the step that mounts a cache for a claim, and takes it away.
const StepKind = "cache.mount"

// treeMounts is where images are mounted, once for all claims, as if it were a claim's name: a UID has no such form.
const treeMounts = "trees"

// treeName is that of the mount of an image.
func treeName(d artifact.Digest) string { return path.Join(treeMounts, d.Hex()) }

// Use is a cache as one claim has it. It is what is decided, recorded, and the parameters of the step.
type Use struct {
	// Kind, Namespace, Name and UID are the object's.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Digest is what the object resolved to, Tree the image that the node has.
	Digest artifact.Digest `json:"digest"`
	Tree   artifact.Digest `json:"tree"`
	// Owner is what the tree is kept for: the claim's UID. Key tells its caches apart.
	Owner string `json:"owner"`
	Key   string `json:"key"`
	// Reference is where the tree comes from, should it have been evicted. Secrets are pull secrets in the namespace SecretsIn.
	Reference string   `json:"reference"`
	SecretsIn string   `json:"secretsIn,omitempty"`
	Secrets   []string `json:"secrets,omitempty"`
	// Type is what the cache is taken for, Want the directory that somebody asked for. Both decide how it is mounted.
	Type   kernelcache.Type `json:"type,omitempty"`
	Want   string           `json:"want,omitempty"`
	Access Access           `json:"access"`
	// Bytes is how much the claim may add.
	Bytes int64 `json:"bytes"`
	// Fill is what the plugin makes in memory for the claim, and Size what the tree takes in the store. Versions that did not limit either
	// recorded neither.
	Fill   Fill              `json:"fill,omitzero"`
	Size   int64             `json:"size,omitempty"`
	Mounts []Mount           `json:"mounts,omitempty"`
	Env    []kernelcache.Env `json:"env,omitempty"`
}

// Mount is one directory of a cache and its place in containers.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// String names the object.
func (u *Use) String() string {
	if u.Namespace == "" {
		return u.Kind + " " + u.Name
	}
	return u.Kind + " " + u.Namespace + "/" + u.Name
}

// name is that of one of the mounts.
func (u *Use) name(i int) string { return path.Join(u.Owner, u.Key+"-"+strconv.Itoa(i)) }

// Step is the step that gives the claim the cache.
func (u *Use) Step() (step.Step, error) {
	raw, err := json.Marshal(u)
	if err != nil {
		return step.Step{}, fmt.Errorf("encode step %s: %w", StepKind, err)
	}
	return step.Step{Kind: StepKind, Target: u.Key, Params: raw}, nil
}

// NewKey returns what tells the claim's caches apart, and one that is mounted in another way from the same.
func (u *Use) NewKey() string {
	text := fmt.Sprintln(u.Kind, u.Namespace, u.Name, u.Tree, u.Want, u.Access, u.Bytes)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Access is how a claim has a cache. Its values are those of the API's CacheAccess.
type Access string

// The ways to have a cache.
const (
	// Overlay is a view that the claim may write to.
	Overlay Access = "Overlay"
	// ReadOnly is the cache itself.
	ReadOnly Access = "ReadOnly"
	// Seed is memory of the claim with a link for each file: for pods with a user namespace, which takes no mount of an overlay.
	Seed Access = "Seed"
)

var (
	// ErrRefused is about a cache that a claim cannot have as things are.
	ErrRefused = errors.New("is refused")
	// ErrNotReady is about a cache that it may have later.
	ErrNotReady = errors.New("is not ready")
)
