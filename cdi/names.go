// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// SecretSize is the length of a node's secret in bytes.
const SecretSize = 32

// secretFile is the name of the file with the secret, in hexadecimal digits, in the plugin's state directory.
const (
	secretFile = "cdi-secret"
	secretMode = 0o600
)

// hashLength is the length of a device name without its prefix, in hexadecimal digits: 128 bits.
const hashLength = 32

// A name begins with a letter, since one that begins with a digit needs version 0.5.0 of the specification. Names that begin with x have no
// secret in them: an earlier version made them.
const secretPrefix = "n"

// tenantKind keeps pseudonyms of tenants apart from names of devices: no kind of device has this name.
const tenantKind = "tenant"

// Names names CDI devices with a secret of the node. Some runtimes give a container every device that its environment names, so
// only the plugin, kubelet and the runtime may know a name.
type Names struct{ secret [SecretSize]byte }

// NewNames returns the names of a node with this secret.
func NewNames(secret [SecretSize]byte) *Names { return &Names{secret} }

// OpenNames reads the node's secret from a directory, or makes one if there is none or its file is damaged. The caller makes sure that only
// one process does so at a time. A new secret changes no name that a record has. The error of a damaged file comes with usable names.
func OpenNames(fsys disk.FS, dir string) (*Names, error) {
	path := filepath.Join(dir, secretFile)
	secret, readErr := readSecret(fsys, path)
	if readErr == nil {
		return NewNames(secret), nil
	}
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, fmt.Errorf("make the node's secret for CDI names: %w", err)
	}
	content := []byte(hex.EncodeToString(secret[:]) + "\n")
	if err := disk.ReplaceDurably(fsys, path, content, secretMode); err != nil {
		return nil, fmt.Errorf("keep the node's secret for CDI names: %w", err)
	}
	if errors.Is(readErr, fs.ErrNotExist) {
		readErr = nil
	}
	return NewNames(secret), readErr
}

// readSecret refuses a file that others can read, since they may have read it.
func readSecret(fsys disk.FS, path string) (secret [SecretSize]byte, err error) {
	info, err := fsys.Lstat(path)
	if err != nil {
		return secret, fmt.Errorf("read the node's secret for CDI names: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&^secretMode != 0 {
		return secret, fmt.Errorf("%s has mode %s, expected a file with %#o: a new secret replaces it", path, info.Mode(), secretMode)
	}
	data, err := fsys.ReadFile(path)
	if err != nil {
		return secret, fmt.Errorf("read the node's secret for CDI names: %w", err)
	}
	raw, err := hex.DecodeString(strings.TrimSuffix(string(data), "\n"))
	if err != nil || len(raw) != SecretSize {
		return secret, fmt.Errorf("%s is damaged, expected %d hexadecimal digits: a new secret replaces it", path, 2*SecretSize)
	}
	return [SecretSize]byte(raw), nil
}

// RemoveSecret removes the secret from a directory.
func RemoveSecret(fsys disk.FS, dir string) error {
	return disk.RemoveIfThere(fsys, filepath.Join(dir, secretFile))
}

// Tenant returns a pseudonym of a tenant. It stays the same as long as the node has its secret, and another node has another. Without the
// secret nobody learns the tenant from it, not even by trying names.
func (n *Names) Tenant(tenant string) string {
	mac := hmac.New(sha256.New, n.secret[:])
	fmt.Fprintf(mac, "%s\n", tenantKind)
	mac.Write([]byte(tenant))
	return hex.EncodeToString(mac.Sum(nil))[:hashLength]
}

// name returns the unqualified name for the content of a spec. Names of different kinds, or of different claims, differ.
func (n *Names) name(kind, uid string, content []byte) string {
	mac := hmac.New(sha256.New, n.secret[:])
	fmt.Fprintf(mac, "%s\n%s\n", kind, uid)
	mac.Write(content)
	return secretPrefix + hex.EncodeToString(mac.Sum(nil))[:hashLength]
}
