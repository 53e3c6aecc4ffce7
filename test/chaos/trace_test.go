// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// trace is what happened, for whoever has to explain a violation.
type trace struct {
	mu    sync.Mutex
	begin time.Time
	// lines are the last ones; file has all of them where it was asked for.
	lines []string
	file  io.Writer
}

func (t *trace) note(format string, args ...any) {
	const most = 200_000
	t.mu.Lock()
	defer t.mu.Unlock()
	line := fmt.Sprintf("%9.3f ", time.Since(t.begin).Seconds()) + fmt.Sprintf(format, args...)
	if t.lines = append(t.lines, line); len(t.lines) > most {
		t.lines = slices.Clone(t.lines[most/2:])
	}
	if t.file != nil {
		fmt.Fprintln(t.file, line)
	}
}

// about returns what happened last to a claim, or to the last claims of a device or directory, and to the plugins meanwhile.
func (t *trace) about(subject string) string {
	const claims, last = 3, 40
	t.mu.Lock()
	defer t.mu.Unlock()
	words := []string{"fault:", "plugin "}
	name, _, ok := strings.Cut(subject, "#")
	if ok {
		words = append(words, name+"#")
	}
	device := path.Base(subject)
	for i := len(t.lines) - 1; i >= 0 && !ok && len(words) < 2+claims; i-- {
		if fields := strings.Fields(t.lines[i]); strings.Contains(t.lines[i], "is allocated") && strings.Contains(t.lines[i], device) {
			words = append(words, fields[1]) // after the time
		}
	}
	var found []string
	for i := len(t.lines) - 1; i >= 0 && len(found) < last; i-- {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(t.lines[i], word) }) {
			found = append(found, t.lines[i])
		}
	}
	slices.Reverse(found)
	return strings.Join(found, "\n")
}
