// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// Buffer keeps what is written, and may be read meanwhile. Its zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Served is the address at which one of our programs, whose log this is, says that it serves something, "" as long as it does not.
func (b *Buffer) Served(what string) string {
	_, after, _ := strings.Cut(b.String(), fmt.Sprintf(`"Serving" what=%q address="`, what))
	address, _, whole := strings.Cut(after, `"`)
	if !whole {
		return ""
	}
	return address
}

// String returns all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
