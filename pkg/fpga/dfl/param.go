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

// The driver parameters of a port. Clocks are in kHz, not in MHz as users write them: the former value of a clock must be restored, and
// the clock that a card starts with need not be a whole number of MHz.
const (
	// ParamClock is the high user clock. ParamClockLow is the low one, which is always half of it. Either sets both; if both are given they
	// must agree. A high clock of 0 is off, as it is when the low one is above 300000.
	ParamClock    = "clockKHz"
	ParamClockLow = "clockLowKHz"
	// ParamLTR says whether the accelerator may report its latency tolerance: 0 or 1.
	ParamLTR = "ltr"
	// ParamDebug is the attribute debug, which only some drivers have.
	ParamDebug = "debug"
)

// Param is a driver parameter and a value.
type Param struct {
	Name  string
	Value int32
}

// ParamOf converts a parameter as users write it. clockMHz and clockLowMHz become clocks, other names stay.
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

// ErrClock: the clock has another frequency than requested.
var ErrClock = errors.New("user clock")

const (
	opReadParams = "read parameters of"
	opSetParams  = "set parameters of"
	nextParam    = "leave the parameter out, or use a card that has it"
)

// ReadParams reads the present values of parameters, in a form that SetParams accepts for restoring them. It opens no node. To read a clock
// it selects which clock is counted, which changes nothing else, and waits 10 ms. It rounds the high clock to a whole MHz, and the low
// clock to half a MHz, if that is within the accuracy of the counter.
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

// readSwitch reads an attribute with a number.
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

// SetParams sets parameters in the given order. The first of the two clocks sets both. It does not write a value that holds already, and
// reads back every value that it writes. If one of the parameters is known to be impossible, it writes none. Callers set parameters before
// Program, and restore the values of ReadParams after an error of any kind: the error is about the parameter that failed, and those before
// it have their new values.
//
// Setting a clock takes about 50 ms, 2 s at worst. SetParams ignores ctx for that time, because the clock is off.
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

// setting sets one parameter. Its errors are of this package.
type setting func(context.Context) error

// settings checks the parameters and writes nothing.
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

// targetClock returns the high clock in kHz that the parameters ask for, or twice the low one if the high one is off.
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

// CanSetClocks says whether SetParams could set both clocks to these values.
func CanSetClocks(high, low int32) bool {
	_, err := targetClock(map[string]int32{ParamClock: high, ParamClockLow: low})
	return err == nil
}

// setClock programs the PLL, unless the clocks are right already.
func (l *Lease) setClock(ctx context.Context, kHz int64) error {
	const next = "set the clock again; if that fails, set the region aside until its PCI device is bound again"
	clock := &userClock{host: l.host, port: l.port}
	err := clock.holds(ctx, kHz)
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrClock) { // The clock differs, so it is set.
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

// setSwitch writes an attribute with a number.
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

// paramFailed classifies an error that happened before the clock was touched.
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
		f = fault{backend.Terminal, "change the parameters, or check the card and its driver"}
	}
	return &backend.Error{Kind: f.kind, Device: p.Name, Op: op, Err: err, Next: f.next}
}
