// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// protocolVersion is that of requests and answers. The supervisor is updated later than the plugin, so a change that an older supervisor
// would misunderstand needs a new number, and the plugin then says that the supervisor is too old.
const protocolVersion = 1

const (
	maxRequest = 64 << 10
	maxAnswer  = 1 << 20
	// patience limits the writing and reading of one question and its answer, beside the time that the supervisor thinks.
	patience = 5 * time.Second
)

// operation is what a request asks for.
type operation string

const (
	opRun  operation = "run"
	opStop operation = "stop"
	opList operation = "list"
)

// request is what the plugin writes: one JSON object, after which it closes its side.
type request struct {
	Version int       `json:"version"`
	Op      operation `json:"op"`
	// Daemon is that of opRun.
	Daemon *Daemon `json:"daemon,omitempty"`
	// ID is that of opStop.
	ID string `json:"id,omitempty"`
}

// answer is what the supervisor writes: one JSON object, after which it closes.
type answer struct {
	Version int      `json:"version"`
	Daemons []Status `json:"daemons,omitempty"`
	// Memory says that daemons can have their directories in MemoryDir. Supervisors of earlier versions leave it out.
	Memory bool   `json:"memory,omitempty"`
	Error  string `json:"error,omitempty"`
	// Fault is the kind of the error, where the plugin distinguishes it.
	Fault fault `json:"fault,omitempty"`
}

type fault string

const (
	faultConflict fault = "conflict"
	faultInvalid  fault = "invalid"
)

// State is how far a daemon is.
type State string

// The states of a daemon.
const (
	// Starting: its process runs and does not answer yet.
	Starting State = "starting"
	// Ready: it answers, with the limits that it was given.
	Ready State = "ready"
	// Stalled: it was ready, and does not answer any more. Its clients may still compute, so it is not ended.
	Stalled State = "stalled"
	// Dead: its process ended. It is started again after a pause.
	Dead State = "dead"
	// Stopping: it is being ended.
	Stopping State = "stopping"
)

// Status is what the supervisor says of a daemon.
type Status struct {
	ID    string `json:"id"`
	State State  `json:"state"`
	// Devices are those of the Daemon. Supervisors of the first releases leave them out.
	Devices []string `json:"devices,omitempty"`
	// Memory says that its directories are in MemoryDir.
	Memory bool `json:"memory,omitempty"`
	// Reason says why it is not ready: the last line of its log.
	Reason string `json:"reason,omitempty"`
	// Restarts counts how often it was started again since the supervisor started.
	Restarts int `json:"restarts,omitempty"`
}

// parseRequest reads a request strictly: it comes from the plugin of this or another version, and nothing of it is guessed.
func parseRequest(data []byte) (*request, error) {
	var r request
	if err := parseStrictly(data, &r); err != nil {
		return nil, fmt.Errorf("parse the request: %w", err)
	}
	if r.Version != protocolVersion {
		return nil, fmt.Errorf("the request has version %d, this supervisor knows %d: delete its pod, which updates it",
			r.Version, protocolVersion)
	}
	switch {
	case r.Op == opRun && r.Daemon != nil && r.ID == "":
		return &r, r.Daemon.Validate()
	case r.Op == opStop && r.Daemon == nil:
		return &r, validID(r.ID)
	case r.Op == opList && r.Daemon == nil && r.ID == "":
		return &r, nil
	}
	return nil, fmt.Errorf("request %q: want run with a daemon, stop with an id, or list", r.Op)
}

func validID(id string) error {
	if !ids.MatchString(id) {
		return fmt.Errorf("MPS daemon %q %w: it has no valid id", id, ErrInvalid)
	}
	return nil
}

// parseAnswer reads an answer. Fields that a later supervisor added are left out.
func parseAnswer(data []byte) (*answer, error) {
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("parse the answer: %w", err)
	}
	if a.Version != protocolVersion {
		return nil, fmt.Errorf("the supervisor answers with version %d, want %d: delete its pod, which updates it", a.Version, protocolVersion)
	}
	return &a, nil
}

// parseStrictly reads one JSON value, without unknown fields and with nothing behind it.
func parseStrictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind it")
	}
	return nil
}

// ParseDaemon reads a daemon as strictly as a request.
func ParseDaemon(data []byte) (*Daemon, error) {
	var d Daemon
	if err := parseStrictly(data, &d); err != nil {
		return nil, fmt.Errorf("parse an MPS daemon: %w", err)
	}
	return &d, d.Validate()
}

// readAll reads everything up to a limit.
func readAll(r io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("more than %d bytes", most)
	}
	return data, nil
}
