// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// Ids of the programmable cards' own documents: interface of two shells, accelerators nlb0 and nlb3. A blank one has an id as well.
const (
	shell      = "69528db6eb31577a8c3668f9faa081f6"
	otherShell = "9926ab6d6c925a68aabca7d84c545738"
	nlb0       = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3       = "f7df405cbd7acf7222f144b0b93acd18"
	nothing    = "b1a2c3d4e5f60718293a4b5c6d7e8f90"
	allF       = "ffffffffffffffffffffffffffffffff"

	boot, otherBoot = "boot-1", "boot-2"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "xbmgmt2" {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(xbmgmt(filepath.Join(os.Getenv("XILINX_XRT"), "../../.."), os.Args[1:]))
	}
	fpgasim.Main()
	os.Exit(m.Run())
}

// The claims: two of one namespace, one of another.
func claimOf(namespace, uid string) region.Claim {
	return region.Claim{Namespace: namespace, Name: "claim-" + uid, UID: uid}
}

func ours() region.Claim   { return claimOf("team-a", "a1") }
func next() region.Claim   { return claimOf("team-a", "a2") }
func theirs() region.Claim { return claimOf("team-b", "b1") }

// node is a simulated machine with what the plugin keeps about it. Any number of programmers may serve it, one after the other.
type node struct {
	*fpgasim.Sim
	t   *testing.T
	dir string
	// regions are the machine as it was looked at last; files are the store.
	regions map[string]*fpga.Region
	files   map[string][]byte
	// ways are those to the regions; nil: to the simulator's.
	ways map[string]region.Backend
	fs   disk.FS
	boot string
	// clock is for the memory of cards to be cleared; nil: the real one.
	clock clock.Clock
	// room is the memory for images; 0: the default.
	room int64
	// attempts are what was reported, and lastLog what was done to the disk when the power went.
	attempts []region.Attempt
	lastLog  fault.Log
}

// programmer is one process on the node.
type programmer struct {
	*node
	kinds    step.Kinds
	contents *region.Contents
	own      *region.Programmer
}

// card has ports of one shell that hold nlb0.
func card(ports int) fpgasim.Card {
	var c fpgasim.Card
	for range ports {
		c.Ports = append(c.Ports, fpgasim.Port{Interface: shell, AFU: nlb0})
	}
	return c
}

func machine(cards ...fpgasim.Card) fpgasim.Machine { return fpgasim.Machine{Cards: cards} }

// start serves a machine, with one programmer. Its regions are called card-N-port-M.
func start(t *testing.T, m fpgasim.Machine) *programmer {
	t.Helper()
	n := &node{
		Sim: fpgasim.Start(t, m), t: t, dir: t.TempDir(), regions: map[string]*fpga.Region{}, files: map[string][]byte{},
		fs: quick(), boot: boot,
	}
	for i, c := range m.Cards {
		for j, p := range c.Ports {
			n.regions[name(i, j)] = regionAt(m.Place(i, j), i, p.Interface)
		}
	}
	return n.process()
}

// quick is a disk that is not waited for: only a real power loss would tell.
func quick() disk.FS {
	in := fault.New()
	in.Quick = true
	return in.FS(disk.OS{})
}

func regionAt(at fpgasim.Place, card int, interfaceID string) *fpga.Region {
	return &fpga.Region{
		Backend: "dfl", Card: fmt.Sprintf("0000:%02x:00.0", card), InterfaceID: interfaceID,
		DFL: &fpga.DFLRegion{
			Port: at.Name, PortID: at.ID, Node: at.Node, EngineNode: at.FMENode, Attributes: at.Attributes, Compat: at.Region, Manager: at.Manager,
		},
	}
}

func name(card, port int) string { return fmt.Sprintf("card-%d-port-%d", card, port) }

// first is the region that most tests are about.
const first = "card-0-port-0"

// process is one that starts on the node now.
func (n *node) process() *programmer {
	n.t.Helper()
	p := n.later()
	check.Must(n.t, p.contents.Make())
	return p
}

// later is a process on a node that has its directories.
func (n *node) later() *programmer {
	n.t.Helper()
	contents := region.OpenContents(n.fs, n.state())
	root, ways := n.dir, n.ways
	if n.Sim != nil {
		root = n.Root
	}
	if ways == nil {
		ways = map[string]region.Backend{"dfl": dflAt(root, n.state())}
	}
	own := region.New(region.Config{
		Find:     n.find,
		Backends: ways,
		Contents: contents, Open: n.open, Siblings: n.siblings, HostRoot: root, BootID: n.boot, Clock: n.clock, Memory: n.room,
		Report: func(_ context.Context, a region.Attempt) { n.attempts = append(n.attempts, a) },
	})
	return &programmer{node: n, kinds: own.Kinds(), contents: contents, own: own}
}

// dflAt is for ports that are enabled at the first look, or never. The clock is the real one, since the simulated user clock counts in real
// time.
func dflAt(root, state string) region.Backend {
	return dflWithin(root, state, 60*time.Millisecond) // fragile: the first and the last look are made, however late they are
}

func dflWithin(root, state string, settle time.Duration) region.Backend {
	return region.DFL(func() (*dfl.Host, error) {
		return dfl.Open(root, dfl.Options{PlainNodes: true, Settle: settle})
	}, state)
}

func (n *node) state() string { return filepath.Join(n.dir, "regions") }

func (n *node) find(name string) (*fpga.Region, error) {
	if r, ok := n.regions[name]; ok {
		return r, nil
	}
	return nil, region.ErrGone
}

// siblings are the other regions of a region's card.
func (n *node) siblings(name string) []string {
	var out []string
	for other, r := range n.regions {
		if other != name && r.Card == n.regions[name].Card {
			out = append(out, other)
		}
	}
	return out
}

// blob is a file of the store.
type blob struct{ *bytes.Reader }

func (blob) Close() error { return nil }

func (n *node) open(digest string) (region.Blob, error) {
	data, ok := n.files[digest]
	if !ok {
		return nil, os.ErrNotExist
	}
	return blob{bytes.NewReader(data)}, nil
}

// keep puts a file into the store and says what the plugin would know of it.
func (n *node) keep(file []byte) *region.Image {
	n.t.Helper()
	about, err := fpga.Inspect(bytes.NewReader(file), int64(len(file)))
	check.Must(n.t, err)
	image := &region.Image{
		Digest: digest(file), Size: int64(len(file)), InterfaceID: about.InterfaceID, AFUID: about.AFUID,
		Origin: "FPGABitstream team-a/" + about.ID,
	}
	n.files[image.Digest] = file
	return image
}

// image is one of the shell.
func (n *node) image(afu string) *region.Image {
	n.t.Helper()
	return n.keep(packed(shell, afu, "", payload(afu)))
}

// payload is what of such an image goes to the card. That of the blank one clears the card's memory.
func payload(afu string) []byte {
	if afu == nothing {
		return fpgasim.ClearingImage(shell, afu, 1000, clearTime)
	}
	return fpgasim.Image(shell, afu, 1000)
}

// clearTime is how long the blank image takes to clear the memory of a card.
const clearTime = time.Millisecond

// blank wipes, and clears the card's memory.
func (n *node) blank() *region.Image {
	n.t.Helper()
	return clearing(n.image(nothing))
}

// clearing says of a blank image that it clears the card's memory.
func clearing(blank *region.Image) *region.Image {
	blank.ClearTime = clearTime
	return blank
}

// program is what a claim asks for, changed.
func (n *node) program(c region.Claim, image *region.Image, change ...func(*region.Program)) *region.Program {
	p := &region.Program{
		Device: first, Claim: c, Image: image, Mode: region.ModeIfDifferent, OnRelease: region.ReleaseReset, Timeout: time.Minute,
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func at(device string) func(*region.Program) { return func(p *region.Program) { p.Device = device } }

func mode(m region.Mode) func(*region.Program) {
	return func(p *region.Program) { p.Mode = m }
}
func withReset(p *region.Program) { p.ResetBeforeUse = true }
func released(r region.Release, blank *region.Image) func(*region.Program) {
	return func(p *region.Program) { p.OnRelease, p.Blank = r, blank }
}

// stepper is the parameters of any step.
type stepper interface{ Step() (step.Step, error) }

func (p *programmer) step(s stepper) step.Step {
	p.t.Helper()
	made, err := s.Step()
	check.Must(p.t, err)
	return made
}

func (p *programmer) apply(s stepper) error { return p.applyIn(p.t.Context(), s) }

func (p *programmer) applyIn(ctx context.Context, s stepper) error {
	p.t.Helper()
	return p.kinds.Apply(ctx, p.step(s))
}

func (p *programmer) undo(s stepper) error {
	p.t.Helper()
	return p.kinds.Undo(p.t.Context(), p.step(s))
}

func (p *programmer) verify(s stepper) error {
	p.t.Helper()
	return p.kinds.Verify(p.t.Context(), p.step(s))
}

// content is what is known of the first region.
func (p *programmer) content() region.Content {
	p.t.Helper()
	c, err := p.contents.Read(first)
	check.Must(p.t, err)
	return c
}

// holds wants what is known of the first region.
func (p *programmer) holds(want region.Content) {
	p.t.Helper()
	want.Version = 1
	if diff := cmp.Diff(want, p.content()); diff != "" {
		p.t.Errorf("content (-want +got):\n%s", diff)
	}
}

// held is the content of a region that a claim programmed and uses.
func held(image *region.Image, c region.Claim) region.Content {
	return region.Content{Digest: image.Digest, AFU: image.AFUID, BootID: boot, Namespace: c.Namespace, Claim: c.UID}
}

// wiped is the content of a region after a blank image.
func wiped(blank *region.Image) region.Content {
	return region.Content{Digest: blank.Digest, AFU: blank.AFUID, BootID: boot}
}

// unknownBy is the content of a region that nobody had before, since a claim's programming failed.
func unknownBy(c region.Claim) region.Content {
	return region.Content{Unknown: true, Memory: c.Namespace, Claim: c.UID}
}

// traced is what the machine was asked since the nth event, without closing, of which a FUSE server hears late, and without the many
// registers of the user clock: what the clocks became is one line.
func (n *node) traced() []string {
	n.t.Helper()
	lines := []string{}
	for _, e := range n.Trace() {
		e.Path = e.Path[strings.LastIndex(e.Path, "/")+1:]
		if e.Op != "close" && !strings.HasPrefix(e.Path, "userclk_") {
			lines = append(lines, e.String())
		}
	}
	return lines
}

// asks runs something and wants the machine to be asked exactly this, apart from reading attributes.
func (n *node) asks(want []string, act func()) {
	n.t.Helper()
	before := len(n.traced())
	act()
	got := slices.DeleteFunc(n.traced()[before:], func(line string) bool { return strings.HasPrefix(line, "read ") })
	if diff := cmp.Diff(want, got, cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
		n.t.Helper()
		n.t.Errorf("asked of the machine (-want +got):\n%s", diff)
	}
}

// What the machine is asked for the first region, or another port of its card.
func opened(port int) string { return fmt.Sprintf("open dfl-port.%d exclusive", port) }
func reset(port int) string  { return fmt.Sprintf("ioctl dfl-port.%d reset %d", port, port) }

// pr is one programming, with the errno that it ended with.
func pr(port int, errno ...string) []string {
	end := fmt.Sprintf("done dfl-fme.0 pr %d", port)
	if len(errno) > 0 {
		end += " " + errno[0]
	}
	return []string{"open dfl-fme.0", fmt.Sprintf("ioctl dfl-fme.0 pr %d", port), end}
}

func lines(parts ...any) (out []string) {
	for _, part := range parts {
		switch part := part.(type) {
		case string:
			out = append(out, part)
		case []string:
			out = append(out, part...)
		}
	}
	return out
}

// programmings are those that began, with the digest of what went to the card.
func (n *node) programmings() (payloads []string) {
	n.t.Helper()
	for _, e := range n.Trace() {
		if isProgramming(e) {
			payloads = append(payloads, e.SHA256)
		}
	}
	return payloads
}

// waits runs an act, again with a longer limit each time, until the limit ended its wait for a card that another call programs: before
// that it does what takes its time on a busy computer.
func (n *node) waits(what string, act func(ctx context.Context) error) {
	n.t.Helper()
	check.GrowingLimit(n.t, what+" waits for the card", func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(n.t.Context(), limit)
		defer cancel()
		err := act(ctx)
		if !errors.Is(err, filelock.ErrHeld) && errors.Is(err, context.DeadlineExceeded) {
			return false
		}
		if !errors.Is(err, filelock.ErrHeld) || backend.KindOf(err) != backend.Retryable {
			n.t.Errorf("%s while the card works: %v, want that it waits, and retryable", what, err)
		}
		return true
	})
}

func isProgramming(e fpgasim.Event) bool { return e.Op == "ioctl" && e.Request == fpgasim.OnPR }

// shows wants the port to show an accelerator.
func (n *node) shows(card, port int, afu string) {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.Root, n.Place(card, port).Attributes, "afu_id"))
	if got := strings.TrimSpace(string(text)); got != afu || err != nil {
		n.t.Errorf("port %d of card %d shows %q (%v), want %s", port, card, got, err, afu)
	}
}

// gbs is an image in its usual form. clocks are members of the metadata, ending in a comma, such as `"clock-frequency-high":300,`.
func gbs(interfaceID, afu, clocks string, size int) []byte {
	return packed(interfaceID, afu, clocks, fpgasim.Image(interfaceID, afu, size))
}

func packed(interfaceID, afu, clocks string, payload []byte) []byte {
	metadata := fmt.Sprintf(`{"version":1,"platform-name":"DCP","afu-image":{%s"power":50,"interface-uuid":%q,"magic-no":488605312,`+
		`"accelerator-clusters":[{"total-contexts":1,"name":"afu","accelerator-type-uuid":%q}]}}`, clocks, interfaceID, afu)
	return slices.Concat(head(metadata), payload)
}

func head(metadata string) []byte {
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(metadata)))
	return slices.Concat([]byte("XeonFPGA\xb7GBSv001"), length, []byte(metadata))
}

// aocx is an OpenCL image around a GBS, packed.
func aocx(t testing.TB, inside []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(inside)
	check.Must(t, err)
	check.Must(t, w.Close())
	return sections(t, []section{
		{".acl.rand_hash", []byte("00112233445566778899aabbccddeeff01234567")},
		{".acl.fpga.bin", sections(t, []section{{".acl.gbs.gz", packed.Bytes()}})},
	})
}

type section struct {
	name string
	data []byte
}

// sections is an ELF file of 64 bits with these.
func sections(t testing.TB, list []section) []byte {
	t.Helper()
	var names, data bytes.Buffer
	names.WriteByte(0)
	table := []elf.Section64{{}}
	begin := uint64(binary.Size(elf.Header64{}))
	add := func(name int, kind elf.SectionType, content []byte) {
		table = append(table, elf.Section64{Name: uint32(name), Type: uint32(kind), Off: begin + uint64(data.Len()), Size: uint64(len(content))})
		data.Write(content)
	}
	for _, s := range list {
		add(names.Len(), elf.SHT_PROGBITS, s.data)
		names.WriteString(s.name + "\x00")
	}
	add(0, elf.SHT_STRTAB, names.Bytes())
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}, Shoff: begin + uint64(data.Len()),
		Shentsize: uint16(binary.Size(elf.Section64{})), Shnum: uint16(len(table)), Shstrndx: uint16(len(table) - 1),
	}
	var out bytes.Buffer
	check.Must(t, binary.Write(&out, binary.LittleEndian, header))
	out.Write(data.Bytes())
	check.Must(t, binary.Write(&out, binary.LittleEndian, table))
	return out.Bytes()
}

func hexDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func digest(data []byte) string { return "sha256:" + hexDigest(data) }

// wants an error, of a cause unless that is nil, which says some words.
func wants(t testing.TB, err, cause error, words ...string) {
	t.Helper()
	if err == nil || cause != nil && !errors.Is(err, cause) {
		t.Errorf("got %v, want %v %q", err, cause, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: does not say %q", err, w)
		}
	}
}
