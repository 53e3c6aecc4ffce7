// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/fettle-dev/fettle/pkg/container"
)

// A file is lines of JSON in pairs: a head that says how long the body is and what its checksum is, and the body. The first body is
// the record as it was created, each further one a Change. The first head also names the format.
//
//	{"format":2,"reader":2,"length":345,"crc32c":"1a2b3c4d"}
//	{"namespace":...}
//	{"length":21,"crc32c":"5e6f7a8b"}
//	{"phase":"prepared"}
//
// Behind them is room for later changes: zeros, which mean nothing. A change that is written there does not make the file longer, so its
// sync costs no more than its own bytes.
//
// Version 1 is not read: no release wrote it. Version 3 has additions of features; version 4 keeps the decisions that they follow from in
// one place; version 5 says what parts of a card take of it, where a device was, and which namespace the claim's was. A record without any
// is still written as version 2, so that an older plugin can serve its claim. A record of version 4 has its decisions in both places, so
// that a plugin that reads version 3 serves it. Version 5 raises no reader: an older plugin serves the claim without what it does not know.
// It must be told so: in a record of its own version a member that it does not know is damage.
const (
	// FormatVersion is the newest version that this package writes.
	FormatVersion = 5
	// addedVersion is the oldest version whose reader understands additions. plainVersion is the version of a record without any. A reader
	// ignores members that it does not know, so a change that an older plugin must not ignore raises the number.
	decisionsVersion = 4
	addedVersion     = 3
	plainVersion     = 2
)

// versions returns the version of a record and the oldest version whose reader understands it.
func (r *Record) versions() (format, reader int) {
	switch {
	case len(r.Decisions) > 0:
		format, reader = decisionsVersion, addedVersion
	case slices.ContainsFunc(r.Devices, func(d Device) bool { return d.Added != nil }):
		format, reader = addedVersion, addedVersion
	default:
		format, reader = plainVersion, plainVersion
	}
	newer := func(d Device) bool { return len(d.Consumes) > 0 || d.Place != (container.Place{}) }
	if r.NamespaceUID != "" || slices.ContainsFunc(r.Devices, newer) {
		format = FormatVersion
	}
	return format, reader
}

// ErrForeign is returned for a file that only a newer version of Fettle understands. The plugin leaves the claim and its devices alone.
var ErrForeign = errors.New("was written by a newer Fettle: upgrade this node's plugin again")

// ErrDamaged is returned for a file that no version of Fettle can have written.
var ErrDamaged = errors.New("is damaged")

type head struct {
	Format int    `json:"format,omitempty"`
	Reader int    `json:"reader,omitempty"`
	Length int    `json:"length"`
	CRC32C string `json:"crc32c"`
}

func castagnoli(data []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}

// encodeFrame returns a head and a body.
func encodeFrame(h head, body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	h.Length, h.CRC32C = len(data), castagnoli(data)
	out, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return append(append(append(out, '\n'), data...), '\n'), nil
}

// encode returns the content of a new file.
func encode(r *Record) ([]byte, error) {
	format, reader := r.versions()
	whole, err := r.withGiven()
	if err != nil {
		return nil, err
	}
	data, err := encodeFrame(head{Format: format, Reader: reader}, whole)
	if err != nil {
		return nil, fmt.Errorf("encode the record of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	return data, nil
}

// withRoom adds room for two changes of each step and for the changes of the phase.
func withRoom(data []byte, r *Record) []byte {
	const change, block = 80, 4096
	length := len(data) + change*(2*len(r.Steps)+4)
	length += block - 1 - (length-1)%block
	return append(data, make([]byte, length-len(data))...)
}

// decode reads the file of the claim uid. It drops a torn end, since the write of it never succeeded.
func decode(data []byte, uid string) (*Record, error) {
	first, body, rest, err := cutFrame(data)
	if min(first.Format, first.Reader) > FormatVersion { // even if the rest breaks the rules of this version
		return nil, fmt.Errorf("%w (its format %d needs a reader of %d, this is %d)", ErrForeign, first.Format, first.Reader, FormatVersion)
	}
	if err == nil && first.Format == 0 {
		err = errors.New("begins with a change")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: no head: %w", ErrDamaged, err)
	}
	strict := first.Format <= FormatVersion
	r := new(Record)
	if err := unmarshal(body, r, strict); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if r.UID != uid {
		return nil, fmt.Errorf("%w: holds claim %q, its name says %q", ErrDamaged, r.UID, uid)
	}
	if err := errors.Join(r.checkNew(), r.moveDecisions()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return r, r.replay(data, rest, strict)
}

// replay applies the changes of a file up to a torn end. A power loss may lose changes that were not synced, in any order, and leaves zeros
// in their place. No frame has zeros, and nothing after them was synced.
func (r *Record) replay(data, rest []byte, strict bool) error {
	room := len(rest)
	rest = bytes.TrimRight(rest, "\x00")
	data = data[:len(data)-room+len(rest)]
	for len(rest) > 0 {
		_, body, after, err := cutFrame(rest)
		if err != nil && !isTorn(rest) {
			return fmt.Errorf("%w: byte %d: %w", ErrDamaged, len(data)-len(rest), err)
		}
		if err != nil {
			r.torn = true
			break
		}
		var c Change
		if err := unmarshal(body, &c, strict); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		rest = after
		if !strict && c == (Change{}) {
			continue // a change that this version does not know
		}
		if err := r.check(c); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		r.apply(c)
	}
	r.valid = int64(len(data) - len(rest))
	return nil
}

// cutFrame takes one frame off the front.
func cutFrame(data []byte) (h head, body, rest []byte, err error) {
	line, rest, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return h, nil, nil, io.ErrUnexpectedEOF
	}
	if err := unmarshal(line, &h, false); err != nil {
		return h, nil, nil, err
	}
	if h.Length < 0 || h.Length >= len(rest) || rest[h.Length] != '\n' {
		return h, nil, nil, io.ErrUnexpectedEOF
	}
	body = rest[:h.Length]
	if sum := castagnoli(body); sum != h.CRC32C {
		return h, nil, nil, fmt.Errorf("checksum %s, expected %s", sum, h.CRC32C)
	}
	return h, body, rest[h.Length+1:], nil
}

// isTorn reports whether an unfinished write can have left this: the beginning of one frame, or zeros. Any other content was complete once.
// If it counted as a torn end, the plugin would forget that the claim was prepared.
func isTorn(data []byte) bool {
	line, body, more := bytes.Cut(data, []byte{'\n'})
	if !more || bytes.IndexByte(data, 0) >= 0 {
		return true
	}
	var h head
	err := unmarshal(line, &h, false)
	return err == nil && len(body) <= h.Length && bytes.IndexByte(body, '\n') < 0
}

// unmarshal decodes exactly one JSON value.
func unmarshal(data []byte, into any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}
