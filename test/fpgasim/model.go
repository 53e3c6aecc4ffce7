// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// model is the cards' state. It knows nothing of FUSE.
type model struct {
	mu      sync.Mutex
	changed *sync.Cond
	cards   []*card
	faults  []Fault
	trace   []Event
	resumes int
	tree    *tree // what is served, nil before
	files   map[string]string
	digests bool
}

type card struct {
	node    string
	ports   []*port
	busy    bool // the locks of the region and the fpga_manager are held
	state   string
	status  string
	number  int
	manager string
	numVFs  int
	memory  memory
	Card
}

type port struct {
	Port
	place    Place // where it is, or was before it was released
	home     Place
	virtual  Place // where it is on a virtual function
	clock    *userClock
	debug    int32
	number   int
	card     *card
	disables int // the counted disable: enabled at 0 only
	released bool
	busy     int // reads of afu_id that still say EBUSY
	errors   uint64
	power    int
	opens    []*handle
	user     bool // another user has it open
}

// handle is one open of a node.
type handle struct {
	node      *node
	exclusive bool
	flushed   bool // closed by somebody, so its release may be under way
}

func newModel(m Machine) *model {
	s := &model{files: m.Files, digests: !m.NoDigests}
	s.changed = sync.NewCond(&s.mu)
	for i, c := range m.Cards {
		made := &card{number: i, state: "unknown", Card: c}
		for j, p := range c.Ports {
			place := m.Place(i, j)
			made.node, made.manager = place.FMENode, place.Manager
			added := &port{Port: p, place: place, home: m.home(i, j), number: j, card: made, clock: newUserClock(p), released: p.Virtual}
			if c.Function != "" {
				added.virtual = m.Virtual(i, j)
			}
			if p.Virtual {
				made.numVFs++
			}
			if p.Debug != nil {
				added.debug = *p.Debug
			}
			made.ports = append(made.ports, added)
		}
		s.cards = append(s.cards, made)
	}
	return s
}

func (s *model) log(e Event) { s.trace = append(s.trace, e) }

// take uses up a fault. It is the zero one where nothing goes wrong.
func (s *model) take(p *port, on string) Fault {
	for i := range s.faults {
		f := &s.faults[i]
		if f.On != on || f.Card != p.card.number || f.Port != p.number {
			continue
		}
		taken := *f
		if f.Times--; f.Times <= 0 {
			s.faults = slices.Delete(s.faults, i, i+1)
		}
		return taken
	}
	return Fault{}
}

// errnoOf is the number of "EIO", 0 for "".
func errnoOf(name string) syscall.Errno {
	for n := range syscall.Errno(134) {
		if name != "" && unix.ErrnoName(n) == name {
			return n
		}
	}
	return 0
}

func (s *model) fault(p *port, on string) syscall.Errno {
	return errnoOf(s.take(p, on).Errno)
}

// open of a port fails while it is open exclusively, and an exclusive one while it is open at all (dfl_feature_dev_use_begin).
func (s *model) open(h *handle, pid int) (errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		s.log(Event{Op: "open", Path: h.node.path, PID: pid, Exclusive: h.exclusive, Errno: unix.ErrnoName(errno)})
	}()
	p := h.node.port
	if p == nil {
		return 0
	}
	if errno := s.fault(p, OnOpen); errno != 0 {
		return errno
	}
	s.awaitReleases(p)
	taken := p.user && h.exclusive || h.exclusive && len(p.opens) > 0
	if taken || slices.ContainsFunc(p.opens, func(o *handle) bool { return o.exclusive }) {
		return unix.EBUSY
	}
	p.opens = append(p.opens, h)
	return 0
}

// awaitReleases waits for files that were closed: the kernel tells a FUSE server of a release after close(2) has returned, while a
// driver knows before.
func (s *model) awaitReleases(p *port) {
	const longest = 5 * time.Second
	timer := time.AfterFunc(longest, s.changed.Broadcast)
	defer timer.Stop()
	for start := time.Now(); time.Since(start) < longest; s.changed.Wait() {
		if !slices.ContainsFunc(p.opens, func(h *handle) bool { return h.flushed }) {
			return
		}
	}
}

func (s *model) flush(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.flushed = true
}

// release resets the port where it was its last user.
func (s *model) release(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log(Event{Op: "close", Path: h.node.path})
	if p := h.node.port; p != nil {
		p.opens = slices.DeleteFunc(p.opens, func(o *handle) bool { return o == h })
	}
	s.changed.Broadcast()
}

// afuID is EBUSY while the port is disabled.
func (s *model) afuID(p *port) (text string, errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		s.log(Event{Op: "read", Path: p.place.Attributes + "/afu_id", Data: strings.TrimSpace(text), Errno: unix.ErrnoName(errno)})
	}()
	if errno := s.fault(p, OnAFU); errno != 0 {
		return "", errno
	}
	if p.busy > 0 {
		p.busy--
		return "", unix.EBUSY
	}
	if p.disables > 0 {
		return "", unix.EBUSY
	}
	return p.AFU + "\n", 0
}

// clear takes the errors that are written back. The driver disables the port for it and enables it again.
func (s *model) clear(p *port, value string) (errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		s.log(Event{Op: "write", Path: p.place.Attributes + "/errors/errors", Data: value, Errno: unix.ErrnoName(errno)})
	}()
	bits, err := strconv.ParseUint(strings.TrimSpace(value), 0, 64)
	if errno := s.fault(p, OnClear); errno != 0 {
		return errno
	}
	if p.power != 0 {
		return unix.EBUSY
	}
	if err != nil || bits != p.errors {
		return unix.EINVAL
	}
	p.errors = 0
	return 0
}

// simple is an ioctl that ends at once.
func (s *model) simple(path, request string, p *port, pid int, act func() syscall.Errno) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	errno := s.fault(p, request)
	if errno == 0 {
		errno = act()
	}
	s.log(Event{Op: "ioctl", Path: path, PID: pid, Request: request, Port: p.number, Errno: unix.ErrnoName(errno)})
	return errno
}

// hand releases or assigns a port.
func (s *model) hand(p *port, released bool) syscall.Errno {
	s.awaitReleases(p)
	if p.released == released || released && (p.user || len(p.opens) > 0) || p.card.numVFs > 0 {
		return unix.EBUSY
	}
	p.released = released
	if s.tree == nil {
		return 0
	}
	if released {
		s.tree.vanish(p)
	} else {
		p.place = p.home
		s.tree.appear(s, p)
	}
	return 0
}

// program is FME_PORT_PR once the image has been copied. It does not end with its caller.
func (s *model) program(c *card, number uint32, image []byte, pid int) (errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := Event{Op: "ioctl", Path: c.node, PID: pid, Request: OnPR, Port: int(number), Size: len(image)}
	if s.digests {
		sum := sha256.Sum256(image)
		e.SHA256 = hex.EncodeToString(sum[:])
	}
	s.log(e)
	defer func() {
		s.log(Event{Op: "done", Path: c.node, PID: pid, Request: OnPR, Port: int(number), Errno: unix.ErrnoName(errno)})
	}()
	if int(number) >= len(c.ports) {
		return unix.EINVAL
	}
	p := c.ports[number]
	if c.busy { // Before the faults: it is another's.
		return unix.EBUSY
	}
	f := s.take(p, OnPR)
	if p.released {
		return unix.ENODEV
	}
	if errno := errnoOf(f.Errno); errno != 0 && errno != unix.EIO && errno != unix.ETIMEDOUT {
		return errno
	}
	c.busy = true
	defer func() { c.busy = false }()
	p.disables++
	c.memory.stop(p, time.Now())
	s.wait(f)
	if errno, status := load(p, f, image); errno != 0 {
		c.state, c.status = "write complete error", status
		return errno // The port stays disabled: the bridge is enabled after a success only.
	}
	c.state, c.status = "operating", ""
	p.busy = f.Busy
	p.disables--
	return 0
}

// wait is the time that the hardware takes, during which everything else goes on.
func (s *model) wait(f Fault) {
	resumes := s.resumes
	for f.Hold && s.resumes == resumes {
		s.changed.Wait()
	}
}

// load is what the hardware makes of an image: its errno and the fpga_manager's words.
func load(p *port, f Fault, image []byte) (errno syscall.Errno, status string) {
	interfaceID, afu, ok := ids(image)
	switch {
	case f.Errno != "":
		return errnoOf(f.Errno), f.Status
	case !ok:
		return unix.EIO, "reconfig CRC error"
	case interfaceID != p.Interface:
		return unix.EIO, "reconfig incompatible image"
	}
	p.AFU = afu
	if f.AFU != "" {
		p.AFU = f.AFU
	} else if takes, ok := clears(image); ok {
		p.card.memory.clear(p, takes, time.Now())
	}
	return 0, ""
}

// set is the world's doing.
func (s *model) set(change Set) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.at(change.Card, change.Port)
	if err != nil {
		return err
	}
	assign(&p.user, change.User)
	assign(&p.power, change.Power)
	assign(&p.errors, change.Errors)
	assign(&p.AFU, change.AFU)
	assign(&p.Interface, change.Interface)
	assign(&p.clock.stuck, change.Stuck)
	assign(&p.clock.drift, change.DriftKHz)
	if change.Rebind {
		p.disables, p.released, p.user, p.busy, p.errors = 0, false, false, 0, 0
		p.card.state, p.card.status = "unknown", ""
	}
	if change.Detached {
		return s.detach(p.card)
	}
	return nil
}

func assign[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// addFault refuses what could never happen, so that a test with a slip does not pass by it.
func (s *model) addFault(f Fault) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.at(f.Card, f.Port); err != nil {
		return err
	}
	known := []string{OnPR, OnOpen, OnReset, OnInfo, OnRelease, OnAssign, OnClear, OnAFU, OnClock, OnCounter, OnLTR, OnDebug}
	if !slices.Contains(known, f.On) {
		return fmt.Errorf("fault on %q, want one of %q", f.On, known)
	}
	if f.Errno != "" && errnoOf(f.Errno) == 0 {
		return fmt.Errorf("fault with errno %q, want one such as EIO", f.Errno)
	}
	s.faults = append(s.faults, f)
	return nil
}

func (s *model) at(c, p int) (*port, error) {
	if c < 0 || c >= len(s.cards) || p < 0 || p >= len(s.cards[c].ports) {
		return nil, fmt.Errorf("there is no port %d of card %d", p, c)
	}
	return s.cards[c].ports[p], nil
}

// resume ends what is held.
func (s *model) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumes++
	s.changed.Broadcast()
}

func (s *model) events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trace)
}
