// SPDX-License-Identifier: Apache-2.0

package dfl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// The driver parameters of a port. Clocks are in kHz, not in MHz as users write them: what a clock was must be restored, and what a card
// starts with need not be whole.
const (
	// ParamClock is the high user clock, ParamClockLow the low one, which is always half of it. Either sets both; where both are given
	// they must agree. A high clock of 0 is one that is off, which it is where the low one is above 300000.
	ParamClock    = "clockKHz"
	ParamClockLow = "clockLowKHz"
	// ParamLTR is whether the accelerator may report its latency tolerance: 0 or 1.
	ParamLTR = "ltr"
	// ParamDebug is the attribute debug, which only some drivers have.
	ParamDebug = "debug"
)

// Param is a driver parameter and a value.
type Param struct {
	Name  string
	Value int32
}

// ParamOf makes a parameter of what users write: clockMHz and clockLowMHz are the clocks, other names are as here.
func ParamOf(name string, value int32) (Param, error) {
	clock, ok := map[string]string{"clockMHz": ParamClock, "clockLowMHz": ParamClockLow}[name]
	switch {
	case !ok && name != ParamLTR && name != ParamDebug:
		return Param{}, fmt.Errorf("parameter %q: %w: use clockMHz, clockLowMHz, %s or %s", name, backend.ErrNoParam, ParamLTR, ParamDebug)
	case !ok:
		return Param{Name: name, Value: value}, nil
	case value < 0 || value > math.MaxInt32/1000:
		return Param{}, fmt.Errorf("parameter %s: %d MHz, want 0 to %d", name, value, math.MaxInt32/1000)
	}
	return Param{Name: clock, Value: 1000 * value}, nil
}

// ErrClock: the clock is not what was asked for.
var ErrClock = errors.New("user clock")

const (
	opReadParams = "read parameters of"
	opSetParams  = "set parameters of"
	nextParam    = "leave the parameter out, or use a card that has it"
)

// ReadParams reads what parameters are now, for restoring them: SetParams accepts what it returns. It opens no node and changes
// nothing; to read a clock it writes which one is counted, and waits 10 ms. A clock that is as near to a whole MHz as its counter can
// tell, or the low one to half of one, is taken for that.
func (h *Host) ReadParams(ctx context.Context, p Port, names []string) (map[string]int32, error) {
	values := make(map[string]int32, len(names))
	for _, name := range names {
		value, err := h.readParam(ctx, p, name)
		if err != nil {
			return nil, h.paramFailed(p, opReadParams, fmt.Errorf("%s: %w", name, err))
		}
		values[name] = value
	}
	return values, nil
}

func (h *Host) readParam(ctx context.Context, p Port, name string) (int32, error) {
	switch name {
	case ParamClock, ParamClockLow:
		if err := h.checkClock(p); err != nil {
			return 0, err
		}
		kHz, err := h.countClock(ctx, p, name == ParamClock)
		if err != nil {
			return 0, err
		}
		step := int64(1000)
		if name == ParamClockLow {
			step = 500
		}
		if whole := (kHz + step/2) / step * step; isClock(kHz, whole) {
			kHz = whole
		}
		return int32(kHz), nil
	case ParamLTR, ParamDebug:
		return h.readSwitch(p, name)
	}
	return 0, unknownParam()
}

func unknownParam() error {
	return fmt.Errorf("%w: use %s, %s, %s or %s", backend.ErrNoParam, ParamClock, ParamClockLow, ParamLTR, ParamDebug)
}

// readSwitch reads an attribute that holds a number.
func (h *Host) readSwitch(p Port, name string) (int32, error) {
	text, err := h.tree.ReadString(path.Join(p.Attributes, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %w", backend.ErrNoParam, err)
	}
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseInt(text, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("it reads %q, want a number: %w", text, sysfs.ErrMalformed)
	}
	return int32(value), nil
}

// SetParams makes parameters be what is asked for, in the order that is given; both clocks are set where the first of them is named. A
// value that holds already is not written, and what was written is read back. Nothing is written where one of the parameters is known
// to be impossible. The caller sets them before Program, and restores what ReadParams said after an error of any kind: the kind is
// that of the parameter that failed, and those before it have their new values.
//
// To set a clock takes some 50 ms, 2 s at worst, during which ctx is not looked at: the clock is off in between.
func (l *Lease) SetParams(ctx context.Context, params []Param) error {
	if l.node == nil {
		return l.failed(opSetParams, backend.Terminal, backend.ErrReleased, backend.NextAcquire)
	}
	settings, err := l.settings(params)
	if err != nil {
		return l.host.paramFailed(l.port, opSetParams, err)
	}
	for _, s := range settings {
		if ctx.Err() != nil {
			return l.failed(opSetParams, backend.Retryable, context.Cause(ctx), backend.NextRetry)
		}
		if err := s(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// setting makes one parameter be what is asked for. Its errors are of this package.
type setting func(context.Context) error

// settings checks the parameters without writing anything.
func (l *Lease) settings(params []Param) ([]setting, error) {
	var (
		out   []setting
		given = map[string]int32{}
		clock bool
	)
	for _, p := range params {
		if _, twice := given[p.Name]; twice {
			return nil, fmt.Errorf("%s is given twice, want it once", p.Name)
		}
		given[p.Name] = p.Value
	}
	for _, p := range params {
		switch p.Name {
		case ParamClock, ParamClockLow:
			if clock {
				continue
			}
			clock = true
			kHz, err := targetClock(given)
			if err = errors.Join(err, l.host.checkClock(l.port)); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			out = append(out, func(ctx context.Context) error { return l.setClock(ctx, kHz) })
		case ParamLTR, ParamDebug:
			if _, err := l.host.readSwitch(l.port, p.Name); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			if p.Name == ParamLTR && p.Value != 0 && p.Value != 1 {
				return nil, fmt.Errorf("%s is %d, want 0 or 1", p.Name, p.Value)
			}
			out = append(out, func(context.Context) error { return l.setSwitch(p) })
		default:
			return nil, fmt.Errorf("%s: %w", p.Name, unknownParam())
		}
	}
	return out, nil
}

// targetClock is the high clock in kHz that the parameters ask for, or twice the low one where the high one is off.
func targetClock(given map[string]int32) (int64, error) {
	high, hasHigh := given[ParamClock]
	low, hasLow := given[ParamClockLow]
	kHz, longest := 2*int64(low), int64(2*maxClockKHz)
	if hasHigh && (!hasLow || high != 0) {
		kHz, longest = int64(high), maxClockKHz
	}
	switch {
	case kHz < minClockKHz || kHz > longest:
		return 0, fmt.Errorf("%w: %d and %d kHz, want a high one of %d to %d or a low one of %d to %d", ErrClock, high, low,
			minClockKHz, maxClockKHz, minClockKHz/2, maxClockKHz)
	case hasHigh && hasLow && high == 0 && kHz <= maxClockKHz:
		return 0, fmt.Errorf("%w: a low one of %d kHz, want one above %d where the high one is off", ErrClock, low, maxClockKHz/2)
	case hasHigh && hasLow && high != 0 && !isClock(2*int64(low), kHz):
		return 0, fmt.Errorf("%w: a high one of %d kHz and a low one of %d, want the low one half of it: the card has one PLL for both",
			ErrClock, high, low)
	}
	return kHz, nil
}

// setClock programs the PLL unless its clocks are right.
func (l *Lease) setClock(ctx context.Context, kHz int64) error {
	const next = "set the clock again; if that fails, set the region aside until its PCI device is bound anew"
	clock := &userClock{host: l.host, port: l.port}
	err := clock.holds(ctx, kHz)
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrClock) { // It is another clock, and that is why we are here.
		err = l.powered(opSetParams)
		if err == nil {
			err = clock.open(ctx)
		}
	}
	if err != nil {
		return l.host.paramFailed(l.port, opSetParams, err)
	}
	if err := clock.program(ctx, kHz); err != nil {
		return l.failed(opSetParams, backend.Unknown, fmt.Errorf("%w: %w", ErrClock, err), next)
	}
	if err := clock.holds(ctx, kHz); err != nil {
		return l.failed(opSetParams, backend.Unknown, err, next)
	}
	return nil
}

// setSwitch writes an attribute that holds a number.
func (l *Lease) setSwitch(p Param) error {
	was, err := l.host.readSwitch(l.port, p.Name)
	if err == nil && was != p.Value {
		err = l.host.writer.WriteAttr(path.Join(l.port.Attributes, p.Name), strconv.Itoa(int(p.Value)))
		if err == nil {
			var got int32
			if got, err = l.host.readSwitch(l.port, p.Name); err == nil && got != p.Value {
				err = fmt.Errorf("it is %d after it was written, want %d", got, p.Value)
			}
		}
	}
	if err != nil {
		return l.host.paramFailed(l.port, opSetParams, fmt.Errorf("%s: %w", p.Name, err))
	}
	return nil
}

// paramFailed classifies an error from before anything was done to the clock.
func (h *Host) paramFailed(p Port, op string, err error) error {
	if _, ok := errors.AsType[*backend.Error](err); ok {
		return err
	}
	f := faultOf(err)
	switch {
	case slices.ContainsFunc([]error{errNoAnswer, errCounterTaken}, func(e error) bool { return errors.Is(err, e) }):
		f = fault{backend.Retryable, backend.NextRetry}
	case errors.Is(err, backend.ErrNoParam):
		f = fault{backend.Terminal, nextParam}
	case f.kind == backend.Unknown || f.kind == backend.Terminal:
		f = fault{backend.Terminal, "change the parameters, or look at the card and its driver"}
	}
	return &backend.Error{Kind: f.kind, Device: p.Name, Op: op, Err: err, Next: f.next}
}
