// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Content is what Fettle knows about a region between claims.
type Content struct {
	// Version is the version of the file's format.
	Version int `json:"version"`
	// Unknown: a programming began and Fettle did not see its end, so the region may hold anything.
	Unknown bool `json:"unknown,omitempty"`
	// Digest is the digest of the programmed file. AFU is the id that the region showed afterwards. Both are empty if Fettle did not program
	// it.
	Digest string `json:"digest,omitempty"`
	AFU    string `json:"afu,omitempty"`
	// BootID is the boot in which the region showed that. After a power cycle a card may hold something else.
	BootID string `json:"bootID,omitempty"`
	// Namespace is the UID of the last tenant's namespace, whose traces may be in the region, see [Claim.Tenant]. A name would hand the
	// traces to a namespace that was deleted and made again. It is empty if there are none, as after wiping, and severalTenants if there are
	// traces of more than one. Versions before wrote the name, which counts as another tenant.
	Namespace string `json:"namespace,omitempty"`
	// Memory is the UID of a namespace beside Namespace whose data may be in the card's memory, as after wiping with an image that clears
	// none. It is empty if there is none, and severalTenants if there are more. Files of versions before this field count as without it.
	Memory string `json:"memory,omitempty"`
	// Cleared: the card's memory was cleared through another of its regions since Namespace used this one, so that its traces are in the
	// region's logic alone. Versions before this field ignore it, and clear once more.
	Cleared bool `json:"cleared,omitempty"`
	// Claim is the UID of the claim that used the region last and has not been released.
	Claim string `json:"claim,omitempty"`
}

const contentVersion = 1

// severalTenants stands for several namespaces, so that every next claim counts as another tenant. No namespace has that UID.
const severalTenants = "*"

// Contents is the directory with the content files of all regions of a node.
type Contents struct {
	fs   disk.FS
	dir  string
	made atomic.Bool // durably
}

// OpenContents uses a directory, which Make creates.
func OpenContents(fsys disk.FS, dir string) *Contents { return &Contents{fs: fsys, dir: dir} }

// Make creates the directory durably if it is missing, so that no power loss removes it and the files in it. Callers call it before the
// first step.
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

// Destroy removes the directory and its files, but for those that tell of traces: these outlast Fettle, and without the file the next
// claim, of whatever namespace, would get them.
func (c *Contents) Destroy() error {
	c.made.Store(false)
	entries, err := c.fs.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	kept := false
	for _, e := range entries {
		if device, ok := strings.CutSuffix(e.Name(), suffix); ok && deviceName.MatchString(device) {
			content, readErr := c.Read(device)
			if err = errors.Join(err, readErr); readErr != nil || content.ForeignTo("") {
				kept = true
				continue
			}
		}
		err = errors.Join(err, disk.RemoveIfThere(c.fs, filepath.Join(c.dir, e.Name())))
	}
	if kept {
		return err
	}
	return errors.Join(err, disk.RemoveIfThere(c.fs, c.dir))
}

// Distrust notes that claims use regions of a card without Fettle's programming, so that what the files say of them is not true any more.
// A region without a file stays without one.
func (c *Contents) Distrust(devices ...string) error {
	for _, device := range devices {
		path, err := c.path(device)
		if err != nil {
			return err
		}
		if _, err := c.fs.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		content, err := c.Read(device)
		if err != nil {
			return err
		}
		now := content
		now.Digest, now.AFU, now.Namespace, now.Memory, now.Cleared = "", "", severalTenants, "", false
		if now == content {
			continue
		}
		if err := c.write(device, now); err != nil {
			return err
		}
	}
	return nil
}

// suffix ends the name of a content file.
const suffix = ".json"

//nolint:gochecknoglobals // a constant that Go cannot express as one
var deviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func (c *Contents) path(device string) (string, error) {
	if !deviceName.MatchString(device) {
		return "", fmt.Errorf("device name %q: want lower-case letters, digits and dashes", device)
	}
	return filepath.Join(c.dir, device+suffix), nil
}

// Read returns what is known about a region. It returns an empty Content for a region that Fettle never touched. If it cannot understand
// the file, the region counts as unknown.
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
		return Content{Version: contentVersion, Unknown: true, Memory: severalTenants}
	}
	return content
}

// withChecksum makes the line of a file: a checksum (CRC-32C), a blank and the content. One flipped bit could otherwise hide that the
// traces are another tenant's.
func withChecksum(body []byte) []byte {
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)), body)
}

// checked returns the content of a file. whole is false if the checksum does not fit.
func checked(file []byte) (body []byte, whole bool) {
	const head = len("01234567 ")
	if len(file) <= head {
		return nil, false
	}
	body = file[head : len(file)-1]
	return body, string(withChecksum(body)) == string(file)
}

// write replaces the file of a region durably. If the disk has no room for another file, which must keep no claim from ending, it writes
// over the one that is there.
func (c *Contents) write(device string, content Content) error {
	path, err := c.path(device)
	if err != nil {
		return err
	}
	content.Version = contentVersion
	if content.Memory == content.Namespace && !content.Cleared { // cleared, Namespace does not stand for data in the memory
		content.Memory = ""
	}
	data, err := json.Marshal(content)
	if err == nil {
		err = disk.ReplaceDurably(c.fs, path, withChecksum(data), 0o600)
	}
	if disk.NoRoom(err) {
		if overErr := c.overwrite(path, withChecksum(data)); overErr != nil {
			err = errors.Join(err, overErr)
		} else {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("note what region %s holds: %w", device, err)
	}
	return nil
}

// overwrite writes over a file. If the power goes meanwhile, the checksum does not fit, and the region counts as unknown.
func (c *Contents) overwrite(path string, data []byte) error {
	f, err := c.fs.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return c.fs.SyncDir(c.dir)
}
