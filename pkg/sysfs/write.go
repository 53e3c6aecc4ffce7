// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Writer writes attributes of a host tree. It is apart from Tree, so that what only reads cannot have side effects.
type Writer struct {
	root *os.Root
}

// OpenWriter opens the host tree at root for writing attributes.
func OpenWriter(root string) (*Writer, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open host tree: %w", err)
	}
	return &Writer{root: r}, nil
}

// Close releases the root.
func (w *Writer) Close() error { return w.root.Close() }

// WriteAttr writes value to an attribute in one write, which is what the kernel parses. An attribute that is not there is
// fs.ErrNotExist: it is never created, and what it held is not cut off first.
func (w *Writer) WriteAttr(name, value string) error {
	f, err := w.root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return failed("write", name, err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return failed("write", name, err)
	}
	return nil
}

func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
