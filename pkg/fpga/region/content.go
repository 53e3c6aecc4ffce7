// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"regexp"
	"sync/atomic"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Content is what is known of a region between claims.
type Content struct {
	// Version is of the file's form.
	Version int `json:"version"`
	// Unknown: a programming was begun and its end was not seen, so the region may hold anything.
	Unknown bool `json:"unknown,omitempty"`
	// Digest is that of the file that was programmed and AFU what the region showed afterwards. Empty: not programmed by Fettle.
	Digest string `json:"digest,omitempty"`
	AFU    string `json:"afu,omitempty"`
	// BootID is the boot in which that was seen: what a card holds after a power cycle is another matter.
	BootID string `json:"bootID,omitempty"`
	// Namespace is the last tenant's, whose traces may be in the region. Empty: nobody's, or wiped. severalTenants: of more than one.
	Namespace string `json:"namespace,omitempty"`
	// Claim is the UID of the claim that used it last and has not given it back.
	Claim string `json:"claim,omitempty"`
}

const contentVersion = 1

// severalTenants stands for namespaces that none is: whoever comes next is another tenant. No namespace has that name.
const severalTenants = "*"

// Contents are the files of all regions of a node, in one directory.
type Contents struct {
	fs   disk.FS
	dir  string
	made atomic.Bool // durably
}

// OpenContents takes a directory, which Make makes.
func OpenContents(fsys disk.FS, dir string) *Contents { return &Contents{fs: fsys, dir: dir} }

// Make makes the directory where it is missing, so that a power loss cannot take it, and the marks in it, away again. It comes before
// the first step.
func (c *Contents) Make() error {
	if c.made.Load() {
		return nil
	}
	err := disk.MkdirAll(c.fs, c.dir, 0o700)
	if err == nil {
		err = c.fs.SyncDir(filepath.Dir(c.dir))
	}
	if err != nil {
		return fmt.Errorf("make the directory of regions: %w", err)
	}
	c.made.Store(true)
	return nil
}

// Destroy removes the directory with all that is known.
func (c *Contents) Destroy() error {
	c.made.Store(false)
	entries, err := c.fs.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, disk.RemoveIfThere(c.fs, filepath.Join(c.dir, e.Name())))
	}
	return errors.Join(err, disk.RemoveIfThere(c.fs, c.dir))
}

//nolint:gochecknoglobals // a constant that Go cannot express as one
var deviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func (c *Contents) path(device string) (string, error) {
	if !deviceName.MatchString(device) {
		return "", fmt.Errorf("device name %q: want lower-case letters, digits and dashes", device)
	}
	return filepath.Join(c.dir, device+".json"), nil
}

// Read returns what is known of a region: nothing, where nothing was ever done to it. A file that cannot be understood means that the
// region may hold anything.
func (c *Contents) Read(device string) (Content, error) {
	path, err := c.path(device)
	if err != nil {
		return Content{}, err
	}
	data, err := c.fs.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Content{Version: contentVersion}, nil
	}
	if err != nil {
		return Content{}, fmt.Errorf("read what region %s holds: %w", device, err)
	}
	return parse(data), nil
}

func parse(data []byte) Content {
	var content Content
	body, whole := checked(data)
	if !whole || json.Unmarshal(body, &content) != nil || content.Version != contentVersion {
		return Content{Version: contentVersion, Unknown: true}
	}
	return content
}

// withChecksum is a file's line: a checksum (CRC-32C), a blank and the content. One bit more or less, and another tenant's traces would
// be one's own.
func withChecksum(body []byte) []byte {
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)), body)
}

// checked takes a file's content out of it, if it is as it was written.
func checked(file []byte) (body []byte, whole bool) {
	const head = len("01234567 ")
	if len(file) <= head {
		return nil, false
	}
	body = file[head : len(file)-1]
	return body, string(withChecksum(body)) == string(file)
}

// write is durable when it returns.
func (c *Contents) write(device string, content Content) error {
	path, err := c.path(device)
	if err != nil {
		return err
	}
	content.Version = contentVersion
	data, err := json.Marshal(content)
	if err == nil {
		err = disk.ReplaceDurably(c.fs, path, withChecksum(data), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note what region %s holds: %w", device, err)
	}
	return nil
}
