// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// The attributes of a port's user clocks (drivers/fpga/dfl-afu-main.c): two registers of commands, each with its status. The driver
// hands them through and hides them for port headers of a revision above 0.
const (
	clockCommand   = "userclk_freqcmd"
	clockStatus    = "userclk_freqsts"
	counterCommand = "userclk_freqcntrcmd"
	counterStatus  = "userclk_freqcntrsts"
)

// Fields of clockCommand and, with the same places, of clockStatus: one access to a register of the PLL. The hardware carries it out when
// the sequence changes, and shows the same sequence in the status when it is done.
const (
	dataMask       = 1<<32 - 1 // bits 31 to 0
	addressShift   = 32        // to 41
	writeBit       = 1 << 44
	sequenceShift  = 48 // to 49
	sequenceMask   = 3 << sequenceShift
	sequences      = 4
	machineRunning = 1 << 52 // command: 0 resets the logic that carries accesses out
	managementOff  = 1 << 56 // command: 1 resets the PLL's management
	lockedBit      = 1 << 60 // status
	calibrating    = 1 << 61 // status
	accessFailed   = 1 << 63 // status
)

// Fields of counterCommand and counterStatus.
const (
	countHigh    = 1 << 32   // which clock is counted: 1 the high one, 0 the low one
	countMask    = 1<<17 - 1 // in counts of 10 kHz
	countKHz     = 10
	versionShift = 60
)

// Registers of the PLL beside its coefficients.
const (
	registerOwner     = 0x000 // owner of the registers: 2 the user, 1 the calibration
	registerCalibrate = 0x100
	registerType      = 0x200
	registerPower     = 0x2e0 // bit 1: use bit 0, which is 1 for off
)

// Times of the hardware: one window of the counter, one step of polling, and limits for an answer, a lock and a calibration.
const (
	countWindow     = 10 * time.Millisecond
	clockPoll       = time.Millisecond
	maxAnswer       = 100 * time.Millisecond
	maxCalibration  = time.Second
	countAttempts   = 3
	counterAccuracy = 10_000 // the counter's and the PLL's references may differ by this part of the frequency: 100 ppm
)

// userClock changes the clock of one port, once.
type userClock struct {
	host     *Host
	port     Port
	command  uint64
	sequence uint64
}

// clockTolerance returns how far a counter may be off: one count, and the difference of the references.
func clockTolerance(kHz int64) int64 { return countKHz + kHz/counterAccuracy }

func isClock(got, want int64) bool {
	return got-want <= clockTolerance(want) && want-got <= clockTolerance(want)
}

// checkClock refuses a port whose user clock cannot be set, and says why.
func (h *Host) checkClock(p Port) error {
	for _, name := range []string{clockCommand, clockStatus, counterCommand, counterStatus} {
		if !h.tree.Exists(path.Join(p.Attributes, name)) {
			return fmt.Errorf("%w: its port has no %s, as ports of a header revision above 0 (Open FPGA Stack), whose clock is behind UIO",
				backend.ErrNoParam, name)
		}
	}
	return nil
}

// countClock measures the high or the low clock in kHz. A clock that is off measures 0. It selects the clock that the counter counts, which
// changes nothing else. By the status it notices when another process selected the other clock meanwhile.
func (h *Host) countClock(ctx context.Context, p Port, high bool) (int64, error) {
	h.counting.Lock()
	defer h.counting.Unlock()
	choice := uint64(0)
	if high {
		choice = countHigh
	}
	for range countAttempts {
		if err := h.writeRegister(p, counterCommand, choice); err != nil {
			return 0, err
		}
		if err := backend.Pause(ctx, h.clock, countWindow); err != nil {
			return 0, err
		}
		status, err := h.tree.ReadHex(path.Join(p.Attributes, counterStatus))
		if err != nil {
			return 0, err
		}
		if version := status >> versionShift; version != 1 && version != 3 {
			return 0, fmt.Errorf("%w: its user clock is of version %d, want 1 or 3", backend.ErrNoParam, version)
		}
		if status&countHigh == choice {
			return int64(status&countMask) * countKHz, nil
		}
	}
	return 0, fmt.Errorf("%w: another program chooses the other clock all the time, want this one's turn", errCounterTaken)
}

var errCounterTaken = errors.New("the frequency counter is in use")

func (h *Host) writeRegister(p Port, name string, value uint64) error {
	return h.writer.WriteAttr(path.Join(p.Attributes, name), fmt.Sprintf("0x%016x", value))
}

// holds fails with ErrClock unless both clocks are right for a high clock of kHz.
func (c *userClock) holds(ctx context.Context, kHz int64) error {
	low, err := c.host.countClock(ctx, c.port, false)
	if err != nil {
		return err
	}
	if !isClock(low, kHz/2) {
		return fmt.Errorf("%w: the low clock is %d kHz, want %d", ErrClock, low, kHz/2)
	}
	if kHz > maxClockKHz {
		return nil // The count of a clock that is off is not known.
	}
	high, err := c.host.countClock(ctx, c.port, true)
	if err != nil {
		return err
	}
	if !isClock(high, kHz) {
		return fmt.Errorf("%w: the high clock is %d kHz, want %d", ErrClock, high, kHz)
	}
	return nil
}

// open takes the registers of the PLL and checks which kind of PLL it is. The clock keeps running.
func (c *userClock) open(ctx context.Context) error {
	if err := c.calibrated(ctx); err != nil {
		return err
	}
	if err := c.write(managementOff); err != nil {
		return err
	}
	c.command, c.sequence = machineRunning, 0
	if err := c.write(c.command); err != nil {
		return err
	}
	if err := c.calibrated(ctx); err != nil {
		return err
	}
	kind, err := c.read(ctx, registerType)
	if err != nil {
		return err
	}
	// Kind 5 has both references, kind 6 only 100 MHz. Kind 7 has only 322.265625 MHz, which needs other filters.
	if kind != 5 && kind != 6 {
		return fmt.Errorf("%w: its PLL is of type %d, want 5 or 6: the coefficients for another reference than 100 MHz are not known",
			backend.ErrNoParam, kind)
	}
	return nil
}

// program gives the PLL new coefficients. The PLL is off meanwhile, and stays off if program fails.
func (c *userClock) program(ctx context.Context, kHz int64) error {
	const powered, off, powerMask = 2, 3, 3
	if err := c.update(ctx, coefficient{registerPower, powerMask, off}); err != nil {
		return fmt.Errorf("turn the PLL off: %w", err)
	}
	if err := c.await(ctx, maxAnswer, lockedBit, 0); err != nil {
		return fmt.Errorf("the PLL is locked, want it off: %w", err)
	}
	// Without the bit of the second reference the command selects the first one, 100 MHz.
	if err := errors.Join(c.write(c.command), backend.Pause(ctx, c.host.clock, clockPoll)); err != nil {
		return err
	}
	for _, change := range coefficients(kHz) {
		if err := c.update(ctx, change); err != nil {
			return err
		}
	}
	if err := c.recalibrate(ctx); err != nil {
		return fmt.Errorf("calibrate the PLL: %w", err)
	}
	if err := c.update(ctx, coefficient{registerPower, powerMask, powered}); err != nil {
		return fmt.Errorf("turn the PLL on: %w", err)
	}
	if err := c.await(ctx, maxAnswer, lockedBit, lockedBit); err != nil {
		return fmt.Errorf("the PLL does not lock to %d kHz: %w", kHz, err)
	}
	return nil
}

// recalibrate follows the sequence in Intel's user guide of the transceivers: take the registers, ask for a calibration, and give them
// back.
func (c *userClock) recalibrate(ctx context.Context) error {
	const user, calibration, ask = 2, 1, 2
	if err := c.calibrated(ctx); err != nil {
		return err
	}
	if err := c.update(ctx, coefficient{registerOwner, 0xff, user}); err != nil {
		return err
	}
	was, err := c.read(ctx, registerCalibrate)
	if err != nil {
		return err
	}
	for _, w := range []struct {
		address uint16
		value   byte
	}{{registerCalibrate, was | ask}, {registerOwner, calibration}} { // Both end by themselves and do not read back.
		if _, err := c.access(ctx, w.address, writeBit|uint64(w.value)); err != nil {
			return err
		}
	}
	if err := backend.Pause(ctx, c.host.clock, clockPoll); err != nil {
		return err
	}
	return c.calibrated(ctx)
}

func (c *userClock) calibrated(ctx context.Context) error {
	if err := c.await(ctx, maxCalibration, calibrating, 0); err != nil {
		return fmt.Errorf("the PLL calibrates itself: %w", err)
	}
	return nil
}

// update changes the bits of one register and reads them back.
func (c *userClock) update(ctx context.Context, change coefficient) error {
	was, err := c.read(ctx, change.address)
	if err != nil {
		return err
	}
	value := was&^change.mask | change.value&change.mask
	if _, err := c.access(ctx, change.address, writeBit|uint64(value)); err != nil {
		return err
	}
	got, err := c.read(ctx, change.address)
	if err != nil {
		return err
	}
	if got&change.mask != change.value&change.mask {
		return fmt.Errorf("register %#03x of the PLL is %#02x, want %#02x in the bits %#02x", change.address, got, change.value, change.mask)
	}
	return nil
}

func (c *userClock) read(ctx context.Context, address uint16) (byte, error) {
	status, err := c.access(ctx, address, 0)
	return byte(status & dataMask), err
}

// access carries out one access. The status that answers it has the same sequence.
func (c *userClock) access(ctx context.Context, address uint16, rest uint64) (uint64, error) {
	c.sequence = (c.sequence + 1) % sequences
	c.command = machineRunning | c.sequence<<sequenceShift | uint64(address)<<addressShift | rest
	if err := c.write(c.command); err != nil {
		return 0, err
	}
	status, err := c.awaitStatus(ctx, maxAnswer, sequenceMask, c.command&sequenceMask)
	if err == nil && status&accessFailed != 0 {
		err = fmt.Errorf("status %#x has its error bit", status)
	}
	if err != nil {
		return 0, fmt.Errorf("access to register %#03x of the PLL: %w", address, err)
	}
	return status, nil
}

func (c *userClock) write(command uint64) error {
	return c.host.writeRegister(c.port, clockCommand, command)
}

func (c *userClock) await(ctx context.Context, longest time.Duration, mask, want uint64) error {
	_, err := c.awaitStatus(ctx, longest, mask, want)
	return err
}

// awaitStatus polls until the bits in mask have the wanted value. When the time is over it reads once more, since this process may not have
// run for most of it.
func (c *userClock) awaitStatus(ctx context.Context, longest time.Duration, mask, want uint64) (uint64, error) {
	deadline := c.host.clock.Now().Add(longest)
	for last := false; ; {
		status, err := c.host.tree.ReadHex(path.Join(c.port.Attributes, clockStatus))
		if err != nil || status&mask == want {
			return status, err
		}
		if last {
			return status, fmt.Errorf("%w: %s is %#x after %s", errNoAnswer, clockStatus, status, longest)
		}
		if last = !c.host.clock.Now().Before(deadline); last {
			continue
		}
		if err := backend.Pause(ctx, c.host.clock, clockPoll); err != nil {
			return status, err
		}
	}
}

var errNoAnswer = errors.New("the user clock does not answer in time")
