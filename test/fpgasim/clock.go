// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Fields of the user clock's registers, written anew here as those of the ioctls are.
const (
	cmdReset  = 1 << 56
	cmdRun    = 1 << 52
	cmdWrite  = 1 << 44
	cmdSecond = 1 << 58 // the second reference

	stsError  = 1 << 63
	stsBusy   = 1 << 61
	stsLocked = 1 << 60

	cmdHigh = 1 << 32 // of the counter
)

// Registers of the PLL.
const (
	pllOwner     = 0x000
	pllCalibrate = 0x100
	pllC0        = 0x10f
	pllC1        = 0x110
	pllOutputs   = 0x111
	pllM         = 0x12b
	pllN         = 0x12c
	pllK         = 0x12d
	pllType      = 0x200
	pllPower     = 0x2e0
)

const (
	// countTime is one window of the counter: what it says before is of the window before.
	countTime = 10 * time.Millisecond
	// calibrationTime is how long the PLL says that it is busy.
	calibrationTime = 2 * time.Millisecond
)

// What of a clock can be stuck.
const (
	StuckBusy   = "busy"   // it calibrates itself for ever
	StuckAccess = "access" // it carries out no access
	StuckError  = "error"  // every access fails
	StuckOn     = "on"     // it cannot be turned off
	StuckLock   = "lock"   // it never locks
	StuckCount  = "count"  // another program always counts the other clock
)

// userClock is the fPLL behind a port's clocks, and their counter.
type userClock struct {
	registers  map[uint16]byte
	version    uint64
	stuck      string
	drift      int64 // in kHz, of what comes out
	command    uint64
	status     uint64 // what the last access left
	calibrated bool
	busyUntil  time.Time

	high    bool // which is counted
	counted time.Time
	before  int64 // what the window before had counted
}

// newUserClock is one that runs at a high clock of so many kHz.
func newUserClock(p Port) *userClock {
	kHz := p.ClockKHz
	if kHz == 0 {
		kHz = 312_500
	}
	c := &userClock{version: 3, calibrated: true, registers: map[uint16]byte{
		pllC0: 8, pllC1: 16, pllOutputs: 0x30, pllN: 1 << 3, pllType: 6, pllPower: 2,
	}}
	if p.PLL != 0 {
		c.registers[pllType] = p.PLL
	}
	if p.ClockVersion != 0 {
		c.version = p.ClockVersion
	}
	scaled := kHz * 16 // half the VCO
	c.registers[pllM] = byte(scaled / 100_000)
	fraction := uint32(scaled % 100_000 << 32 / 100_000)
	for i := range 4 {
		c.registers[pllK+uint16(i)] = byte(fraction >> (8 * i))
	}
	return c
}

func (c *userClock) locked() bool {
	off := c.registers[pllPower]&3 == 3
	return (!off || c.stuck == StuckOn) && c.calibrated && c.stuck != StuckLock
}

// out is the frequency of an output in kHz.
func (c *userClock) out(high bool) int64 {
	divider, enable := int64(c.registers[pllC1]), byte(0x10)
	if high {
		divider, enable = int64(c.registers[pllC0]), 0x20
	}
	n := int64(c.registers[pllN] >> 3)
	if !c.locked() || c.registers[pllOutputs]&enable == 0 || divider == 0 || n == 0 {
		return 0
	}
	reference := 100_000.0
	if c.command&cmdSecond != 0 {
		reference = 322_265.625
	}
	fraction := 0.0
	for i := range 4 {
		fraction += float64(c.registers[pllK+uint16(i)]) * float64(uint64(1)<<(8*i))
	}
	vco := reference / float64(n) * (float64(c.registers[pllM]) + fraction/(1<<32))
	return int64(vco/2/float64(divider)+0.5) + c.drift
}

// order is a write of the first command register.
func (c *userClock) order(command uint64) {
	was := c.command
	c.command = command
	if command&cmdReset != 0 || command&cmdRun == 0 {
		c.status = 0
		return
	}
	const sequence = 3 << 48
	if command&sequence == c.status&sequence || c.stuck == StuckAccess {
		if was&cmdSecond != command&cmdSecond {
			c.calibrated = false
		}
		return
	}
	address := uint16(command >> 32 & 0x3ff)
	if command&cmdWrite != 0 {
		c.store(address, byte(command))
	}
	c.status = command&(sequence|cmdWrite|0x3ff<<32) | uint64(c.registers[address])
	if c.stuck == StuckError {
		c.status |= stsError
	}
}

func (c *userClock) store(address uint16, value byte) {
	if address >= pllC0 && address < pllType && c.registers[address] != value {
		c.calibrated = false // Other coefficients.
	}
	c.registers[address] = value
	if address == pllOwner && value == 1 && c.registers[pllCalibrate]&2 != 0 {
		c.registers[pllCalibrate] &^= 2
		c.calibrated = true
		c.busyUntil = time.Now().Add(calibrationTime)
	}
}

func (c *userClock) statusText() string {
	status := c.status
	if c.stuck == StuckBusy || time.Now().Before(c.busyUntil) {
		status |= stsBusy
	}
	if c.locked() {
		status |= stsLocked
	}
	return fmt.Sprintf("%#x\n", status)
}

// count is a write of the counter's command.
func (c *userClock) count(command uint64) {
	c.before = c.out(c.high)
	c.high = command&cmdHigh != 0
	c.counted = time.Now()
}

func (c *userClock) counterText() string {
	kHz := c.out(c.high)
	if time.Since(c.counted) < countTime {
		kHz = c.before
	}
	status := c.version<<60 | uint64(kHz/10)&(1<<17-1)
	if c.high != (c.stuck == StuckCount) {
		status |= cmdHigh
	}
	return fmt.Sprintf("%#x\n", status)
}

// number is kstrtou64: one newline at the end is fine, other white space is not.
func number(text string) (uint64, bool) {
	text = strings.TrimSuffix(text, "\n")
	value, err := strconv.ParseUint(strings.TrimPrefix(text, "+"), 0, 64)
	return value, err == nil && !strings.Contains(text, "_")
}

// boolean is kstrtobool, which looks at no more than it needs.
func boolean(text string) (value, ok bool) {
	text = strings.ToLower(text[:min(len(text), 2)])
	switch {
	case text == "on", text != "" && strings.IndexByte("yt1", text[0]) >= 0:
		return true, true
	case text == "of", text != "" && strings.IndexByte("nf0", text[0]) >= 0:
		return false, true
	}
	return false, false
}

// tell is a write of an attribute of a port.
func (s *model) tell(p *port, name, value string, on string, act func() syscall.Errno) (errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errno = s.fault(p, on); errno == 0 {
		errno = act()
	}
	s.log(Event{Op: "write", Path: p.place.Attributes + "/" + name, Data: strings.TrimSpace(value), Errno: unix.ErrnoName(errno)})
	return errno
}

// orderClock logs what became of the clocks where they changed, beside the many writes that did it.
func (s *model) orderClock(p *port, value string) syscall.Errno {
	return s.tell(p, "userclk_freqcmd", value, OnClock, func() syscall.Errno {
		command, ok := number(value)
		if !ok {
			return unix.EINVAL
		}
		was := p.clock.out(true) + p.clock.out(false)
		p.clock.order(command)
		if now := p.clock.out(true) + p.clock.out(false); now != was {
			s.log(Event{Op: "clock", Path: p.place.Attributes, Data: fmt.Sprintf("%d %d", p.clock.out(true), p.clock.out(false))})
		}
		return 0
	})
}

func (s *model) countClock(p *port, value string) syscall.Errno {
	return s.tell(p, "userclk_freqcntrcmd", value, OnCounter, func() syscall.Errno {
		command, ok := number(value)
		if !ok {
			return unix.EINVAL
		}
		p.clock.count(command)
		return 0
	})
}

func (s *model) setLTR(p *port, value string) syscall.Errno {
	return s.tell(p, "ltr", value, OnLTR, func() syscall.Errno {
		on, ok := boolean(value)
		if !ok {
			return unix.EINVAL
		}
		p.LTR = on
		return 0
	})
}

func (s *model) setDebug(p *port, value string) syscall.Errno {
	return s.tell(p, "debug", value, OnDebug, func() syscall.Errno {
		level, err := strconv.ParseInt(strings.TrimSpace(value), 0, 32)
		if err != nil {
			return unix.EINVAL
		}
		p.debug = int32(level)
		return 0
	})
}
