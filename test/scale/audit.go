// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditPolicy has the API server write each call of the controller, once it is answered, and none else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: Metadata, users: ["` + controllerUser + `"]}
- {level: None}
`

// audit is what the API server wrote of the controller's calls.
type audit struct {
	policy, log string
	// read is how far the log was read, rest the begin of a line that is not whole yet.
	read int64
	rest []byte
	// calls are all that were read, last is when the last of them was made. Watches and Leases are not in it.
	calls tally
	last  time.Time
}

func newAudit(dir string) (*audit, error) {
	a := &audit{policy: filepath.Join(dir, "audit.yaml"), log: filepath.Join(dir, "audit.log"), calls: tally{}}
	if err := os.WriteFile(a.policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write the audit policy: %w", err)
	}
	return a, nil
}

// arguments are those of the API server.
func (a *audit) arguments() map[string]string {
	return map[string]string{"audit-policy-file": a.policy, "audit-log-path": a.log}
}

// update reads what was written since the last time.
func (a *audit) update() error {
	f, err := os.Open(a.log)
	if err != nil {
		return fmt.Errorf("read what the controller asked for: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(a.read, io.SeekStart); err != nil {
		return err
	}
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadBytes('\n')
		a.read += int64(len(line))
		if a.rest = append(a.rest, line...); err != nil {
			return nil // the end of the file: the rest of the line comes later
		}
		if err := a.note(bytes.TrimSpace(a.rest)); err != nil {
			return err
		}
		a.rest = a.rest[:0]
	}
}

func (a *audit) note(line []byte) error {
	var event auditapi.Event
	if err := json.Unmarshal(line, &event); err != nil {
		return fmt.Errorf("a line of the audit log: %w", err)
	}
	if event.ObjectRef == nil || event.Verb == "watch" || event.ObjectRef.Resource == "leases" {
		return nil
	}
	kind := call{event.Verb, event.ObjectRef.Resource}
	if event.ObjectRef.Subresource != "" {
		kind.resource += "/" + event.ObjectRef.Subresource
	}
	a.calls[kind]++
	if event.StageTimestamp.After(a.last) {
		a.last = event.StageTimestamp.Time
	}
	return nil
}
