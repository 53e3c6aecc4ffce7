// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"runtime"
	"testing"
)

// countingReader notes the largest and the furthest read.
type countingReader struct {
	r                io.ReaderAt
	largest          int
	furthest, volume int64
}

func (c *countingReader) ReadAt(p []byte, at int64) (int, error) {
	c.largest, c.furthest = max(c.largest, len(p)), max(c.furthest, at+int64(len(p)))
	c.volume += int64(len(p))
	return c.r.ReadAt(p, at)
}

// allocated tells how much memory a function asked for, freed or not.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// What inspecting may cost beside a multiple of the file's size: a decompressor, tables and names at their bounds, metadata.
const (
	fuzzUnpacked  = 1 << 20
	fuzzAllocated = 4 << 20
)

// checkInspect inspects a file and wants little memory, no read outside, and a result that lies within the file.
func checkInspect(t *testing.T, data []byte) {
	t.Helper()
	size := int64(len(data))
	r := &countingReader{r: bytes.NewReader(data)}
	var b Bitstream
	var err error
	if used := allocated(func() { b, err = inspect(r, size, fuzzUnpacked) }); used > 8*size+fuzzAllocated {
		t.Errorf("%d bytes of file took %d bytes of memory", size, used)
	}
	if int64(r.largest) > size || r.furthest > size || r.volume > 8*size {
		t.Errorf("of %d bytes read %d at once, up to %d, %d together", size, r.largest, r.furthest, r.volume)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.Offset < 0 || e.Offset > size && e.In == "" {
			t.Errorf("got the error %v, want one that names an offset in %d bytes", err, size)
		}
		return
	}
	checkResult(t, b, data)
}

var anID = regexp.MustCompile(`^([0-9a-f]{32}|[0-9a-f]{40})$`)

// checkResult wants everything in bounds, and a payload that reads as long as it says.
func checkResult(t *testing.T, b Bitstream, data []byte) {
	t.Helper()
	size := int64(len(data))
	within := func(what string, offset, length, size int64) {
		if offset < 0 || length < 0 || offset > size || length > size-offset {
			t.Errorf("%s has %d bytes at %d of %d", what, length, offset, size)
		}
	}
	if !anID.MatchString(b.ID) || b.InterfaceID != "" && !anID.MatchString(b.InterfaceID) || b.AFUID != "" && !anID.MatchString(b.AFUID) {
		t.Errorf("got the ids %q, %q, %q", b.ID, b.AFUID, b.InterfaceID)
	}
	if _, err := json.Marshal(b); err != nil {
		t.Error(err)
	}
	for _, s := range b.Sections {
		within("a section", s.Offset, s.Length, size)
	}
	inside := size
	if p := b.Payload; p != nil {
		if p.Gzip != nil {
			within("the gzip", p.Gzip.Offset, p.Gzip.Length, size)
			inside = fuzzUnpacked
		}
		within("the payload", p.Offset, p.Length, inside)
		if image := open(t, b, data); int64(len(image)) != p.Length || len(image) == 0 {
			t.Errorf("the payload has %d bytes, want %d", len(image), p.Length)
		}
	}
	if s := b.Signature; s != nil && s.Offset >= 0 && !s.Unpacked {
		within("the signature", s.Offset, s.Length, inside)
	}
}

func FuzzGBS(f *testing.F) {
	f.Add(buildGBS(nlb0Metadata, rbf(100)))
	f.Add(signedGBS(f))
	f.Add(concat(buildBlocks(), buildGBS(nlb0Metadata, rbf(1))))
	f.Add(withUint32(buildGBS(nlb0Metadata, rbf(1)), 16, 0xffffffff))
	f.Fuzz(func(t *testing.T, data []byte) { checkInspect(t, data) })
}

func FuzzAOCX(f *testing.F) {
	for _, bits := range []int{32, 64} {
		good := buildAOCX(bits, pack(f, vectorGBS(f)))
		f.Add(good)
		f.Add(good[:len(good)-1])
	}
	f.Add(buildAOCX(64, pack(f, signedGBS(f))))
	f.Add(buildAOCX(64, concat(pack(f, vectorGBS(f)), pack(f, rbf(20)))))
	f.Add(buildAOCX(64, concat(pack(f, vectorGBS(f)), []byte{0})))
	f.Fuzz(func(t *testing.T, data []byte) { checkInspect(t, data) })
}

func FuzzXclbin(f *testing.F) {
	f.Add(helloXclbin(f))
	f.Add(signedXclbin(f))
	f.Add(withUint32(helloXclbin(f), xclbinCount, 0xffffffff))
	f.Add(withUint32(helloXclbin(f), xclbinHeader, uint32(SectionBuildMetadata)))
	f.Add(withUint64(helloXclbin(f), xclbinHeader+32, 0))
	f.Add(withUint32(helloXclbin(f), xclbinHeader+xclbinEntry, uint32(SectionBitstream)))
	f.Add(withUint64(helloXclbin(f), xclbinLength, 1<<32))
	f.Fuzz(func(t *testing.T, data []byte) { checkInspect(t, data) })
}

// FuzzSidecar: what a sidecar says becomes a result in bounds, for little memory.
func FuzzSidecar(f *testing.F) {
	f.Add([]byte(rawSidecar), rbf(100))
	f.Add([]byte(`{"format":"bin","id":"`+nlb0+`","interfaceID":"`+shell+`","size":1}`), rbf(1))
	f.Add([]byte("a: &a [x,x]\nb: [*a,*a]"), rbf(1))
	f.Add([]byte(rawSidecar), buildBlocks())
	f.Fuzz(func(t *testing.T, sidecar, image []byte) {
		var b Bitstream
		var err error
		r := bytes.NewReader(image)
		if used := allocated(func() { b, err = InspectRaw(r, int64(len(image)), sidecar) }); used > 16*fuzzAllocated {
			t.Errorf("%d bytes of sidecar took %d bytes of memory", len(sidecar), used)
		}
		if err == nil {
			checkResult(t, b, image)
		}
	})
}
