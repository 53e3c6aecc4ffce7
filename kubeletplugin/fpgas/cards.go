// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/disk"
)

// cardsFile is the file, in the directory of the regions' content files, of what is known of cards.
const cardsFile = "cards"

// cards know the card of each region that the node has shown. A region that its driver does not show now is on its card all the same: a
// claim may have it, and it reaches what is in the card's memory when it is back.
type cards struct {
	path string

	mu sync.Mutex
	// of has the cards by the names of regions, saved what of that is in the file.
	of, saved map[string]string
	// unread: the disk did not give the file yet, which may tell of regions that the machine does not show now.
	unread bool
	// emptied: the node was retired, and gets no file before a claim is planned.
	emptied bool
}

// openCards reads the file. One that the disk does not give is read again before it is replaced. One that says nothing is as none.
func openCards(path string) *cards {
	c := &cards{path: path, of: map[string]string{}, unread: true}
	_ = c.read() // note tells of it
	return c
}

// read adds what the file says to what is known. What the machine has shown meanwhile is newer. The caller has locked mu.
func (c *cards) read() error {
	data, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.unread = false
	if json.Unmarshal(data, &c.saved) != nil {
		c.saved = nil
	}
	for name, card := range c.saved {
		if _, known := c.of[name]; !known {
			c.of[name] = card
		}
	}
	return nil
}

// note remembers the card of each region that the machine shows. It returns the cards of the known regions that it does not show, by name.
func (c *cards) note(ctx context.Context, devices []device.Device) (hidden map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := map[string]bool{}
	for i := range devices {
		if d := &devices[i]; d.Region != nil {
			shown[d.Name], c.of[d.Name] = true, d.Region.Card
		}
	}
	if c.unread {
		if err := c.read(); err != nil {
			klog.FromContext(ctx).Error(err, "It is not known on which card each region is that the machine does not show: read again")
		}
	}
	for name, card := range c.of {
		if !shown[name] {
			if hidden == nil {
				hidden = map[string]string{}
			}
			hidden[name] = card
		}
	}
	c.save(ctx)
	return hidden
}

// keep has the file on a node that was emptied and serves again.
func (c *cards) keep(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.emptied {
		c.emptied = false
		c.save(ctx)
	}
}

// empty gives up the file, which its caller removes.
func (c *cards) empty() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread, c.emptied, c.saved = false, true, nil
}

// save writes the file if it says something else. The caller has locked mu.
func (c *cards) save(ctx context.Context) {
	if c.unread || c.emptied || maps.Equal(c.of, c.saved) {
		return
	}
	data, err := json.Marshal(c.of)
	if err == nil {
		err = disk.MkdirAll(disk.OS{}, filepath.Dir(c.path), 0o700)
	}
	if err == nil {
		err = disk.ReplaceDurably(disk.OS{}, c.path, append(data, '\n'), 0o600)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note on which card each region is, which the plugin needs after a restart")
		return
	}
	c.saved = maps.Clone(c.of)
}

// siblings lists the other regions of a region's card, sorted.
func (c *cards) siblings(name string) (others []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, known := c.of[name]
	for other, card := range c.of {
		if known && card == own && other != name {
			others = append(others, other)
		}
	}
	slices.Sort(others)
	return others
}
