// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Kind is what an operation does.
type Kind string

// The kinds of operation. Open is a read: it changes nothing. Call is a request to the API server, Effect anything else given to
// Injector.Do.
const (
	Create   Kind = "create" // an open that may create or truncate
	Write    Kind = "write"
	Truncate Kind = "truncate"
	Chmod    Kind = "chmod"
	Chown    Kind = "chown"
	Mkdir    Kind = "mkdir"
	Symlink  Kind = "symlink"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	Sync     Kind = "sync"
	Datasync Kind = "datasync"
	SyncDir  Kind = "syncdir"
	SyncFS   Kind = "syncfs"
	Call     Kind = "call"
	Effect   Kind = "effect"

	Open     Kind = "open"
	ReadFile Kind = "readfile"
	ReadDir  Kind = "readdir"
	Stat     Kind = "stat"
	Readlink Kind = "readlink"
)

// Read says whether the kind changes nothing.
func (k Kind) Read() bool { return slices.Contains([]Kind{Open, ReadFile, ReadDir, Stat, Readlink}, k) }

// Sync says whether the kind makes something durable.
func (k Kind) Sync() bool { return k == Sync || k == Datasync || k == SyncDir || k == SyncFS }

// Op is one operation, with enough to do it again.
type Op struct {
	// N counts from 1 in the order of arrival: reads for themselves, everything else together. Sync counts the syncs among them.
	N    int  `json:"n"`
	Sync int  `json:"sync,omitempty"`
	Kind Kind `json:"kind"`
	// Path is absolute. A call has its method and URL, an effect what Do was given.
	Path string `json:"path,omitempty"`
	// To is where a rename moves it, or what a symbolic link points to.
	To string `json:"to,omitempty"`
	// Handle tells open files apart.
	Handle int         `json:"handle,omitempty"`
	Flag   int         `json:"flag,omitempty"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	UID    int         `json:"uid,omitempty"`
	GID    int         `json:"gid,omitempty"`
	Size   int64       `json:"size,omitempty"`
	// Data is what was written. Before a write it is what is to be written.
	Data []byte `json:"data,omitempty"`
	// Off is where a write goes that says so. Nil: where the file is, or at its end.
	Off *int64 `json:"off,omitempty"`
	// Site is where the code called, innermost first: see Syncs.
	Site string `json:"site,omitempty"`
	// Done says that it took effect: of a write, for Data.
	Done bool `json:"done,omitempty"`
	// Fault is what was injected, Error what the caller got.
	Fault string `json:"fault,omitempty"`
	Error string `json:"error,omitempty"`

	err error
}

// String is a line for failure messages.
func (o Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s %s", o.N, o.Kind, o.Path)
	if o.To != "" {
		fmt.Fprintf(&b, " -> %s", o.To)
	}
	if o.Kind == Write {
		fmt.Fprintf(&b, " (%d bytes)", len(o.Data))
	}
	if o.Fault != "" {
		fmt.Fprintf(&b, " [%s]", o.Fault)
	}
	if o.Error != "" {
		fmt.Fprintf(&b, ": %s", o.Error)
	}
	return b.String()
}

// Log is what happened, in that order.
type Log []Op

// ReadLog reads what Injector.LogTo wrote. The last line may be torn, if the process was killed from outside.
func ReadLog(path string) (Log, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	if end := bytes.LastIndexByte(data, '\n'); end+1 < len(data) {
		data = data[:end+1]
	}
	var log Log
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		var op Op
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("read the log %s, line %d: %w", path, len(log)+1, err)
		}
		log = append(log, op)
	}
	return log, lines.Err()
}

// Changes is how many operations there were that are not reads: the points at which a run can be cut.
func (l Log) Changes() int { return l.count(func(k Kind) bool { return !k.Read() }) }

// Reads is how many reads there were.
func (l Log) Reads() int { return l.count(Kind.Read) }

func (l Log) count(counts func(Kind) bool) int {
	n := 0
	for i := range l {
		if counts(l[i].Kind) {
			n = max(n, l[i].N)
		}
	}
	return n
}

// Before is the log up to the n-th change, without it, as if the process had been killed there.
func (l Log) Before(n int) Log {
	for i := range l {
		if !l[i].Kind.Read() && l[i].N >= n {
			return l[:i]
		}
	}
	return l
}

// String has a line for each operation.
func (l Log) String() string {
	var b strings.Builder
	for i := range l {
		fmt.Fprintln(&b, l[i])
	}
	return b.String()
}
