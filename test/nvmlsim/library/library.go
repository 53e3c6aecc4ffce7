// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package library puts go-nvml's interface in front of a simulated machine. It has the functions that fettle-nvml calls. Every other one
// answers that it is not supported.
package library

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// Open is child.Open: the library's file is that of the machine's state, or the default one below the driver's root.
func Open(driverRoot, library string) (gonvml.Interface, string, error) {
	root := cmp.Or(driverRoot, "/")
	file := cmp.Or(library, nvmlsim.DefaultFile(root))
	_, err := os.Stat(file)
	if err != nil && library == "" {
		file = nvmlsim.DefaultFile(filepath.Join(root, nvmlsim.WritableDir))
		if _, err = os.Stat(file); err != nil {
			return nil, "", fmt.Errorf("%w: %w", err, nvml.ErrNoLibrary)
		}
	}
	if err != nil {
		return nil, "", err
	}
	return New(nvmlsim.Machine{File: file}), file, nil
}

// simulated is one process's view of the machine.
type simulated struct{ machine nvmlsim.Machine }

// call is Machine.Call for a function that finds its card by itself.
func (l simulated) call(function, change string, do func(*nvmlsim.State) nvmlsim.Return) gonvml.Return {
	return gonvml.Return(l.machine.Call(function, change, do))
}

// New makes a library that is initialised.
func New(machine nvmlsim.Machine) gonvml.Interface {
	l := simulated{machine}
	ok := func(string) error { return nil }
	out := &mock.Interface{
		InitFunc:     func() gonvml.Return { return gonvml.SUCCESS },
		ShutdownFunc: func() gonvml.Return { return gonvml.SUCCESS },
		ExtensionsFunc: func() gonvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: ok}
		},
		SystemGetDriverVersionFunc: func() (string, gonvml.Return) {
			return nvmlsim.DriverVersion, l.call("SystemGetDriverVersion", "", fine)
		},
		SystemGetCudaDriverVersionFunc: func() (int, gonvml.Return) { return 13000, l.call("SystemGetCudaDriverVersion", "", fine) },
		DeviceGetCountFunc: func() (n int, ret gonvml.Return) {
			ret = l.call("DeviceGetCount", "", func(s *nvmlsim.State) nvmlsim.Return {
				n = len(present(s))
				return nvmlsim.Success
			})
			return n, ret
		},
		DeviceGetHandleByIndexFunc:    l.byIndex,
		DeviceGetHandleByPciBusIdFunc: l.byBusID,
		EventSetCreateFunc:            l.eventSet,
	}
	return filled(out)
}

func fine(*nvmlsim.State) nvmlsim.Return { return nvmlsim.Success }

// eventSet is told of the critical errors from now on, those of all cards.
func (l simulated) eventSet() (gonvml.EventSet, gonvml.Return) {
	seen := 0
	ret := l.call("EventSetCreate", "", func(s *nvmlsim.State) nvmlsim.Return {
		seen = len(s.Xids)
		return nvmlsim.Success
	})
	if ret != gonvml.SUCCESS {
		return nil, ret
	}
	wait := func(milliseconds uint32) (gonvml.EventData, gonvml.Return) {
		if ret := l.call("EventSet.Wait", "", fine); ret != gonvml.SUCCESS {
			return gonvml.EventData{}, ret
		}
		const pause = 50 * time.Millisecond
		for end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond); ; {
			now, err := l.machine.Look()
			if err == nil && len(now.Xids) > seen {
				seen++
				return l.event(now, now.Xids[seen-1])
			}
			left := time.Until(end)
			if left <= 0 {
				return gonvml.EventData{}, gonvml.ERROR_TIMEOUT
			}
			<-time.After(min(left, pause))
		}
	}
	return filled(&mock.EventSet{WaitFunc: wait, FreeFunc: func() gonvml.Return { return gonvml.SUCCESS }}), gonvml.SUCCESS
}

func (l simulated) event(s *nvmlsim.State, x nvmlsim.Xid) (gonvml.EventData, gonvml.Return) {
	card, ret := s.Card(x.BusID)
	if ret != nvmlsim.Success {
		return gonvml.EventData{}, gonvml.Return(ret)
	}
	return gonvml.EventData{
		Device: newDevice(l, card), EventType: gonvml.EventTypeXidCriticalError, EventData: x.Number,
	}, gonvml.SUCCESS
}

// present are the cards that the driver has.
func present(s *nvmlsim.State) (out []*nvmlsim.Card) {
	for _, c := range s.Cards {
		if !c.Absent {
			out = append(out, c)
		}
	}
	return out
}

func (l simulated) byIndex(i int) (out gonvml.Device, ret gonvml.Return) {
	ret = l.call("DeviceGetHandleByIndex", "", func(s *nvmlsim.State) nvmlsim.Return {
		cards := present(s)
		switch {
		case i < 0 || i >= len(cards):
			return nvmlsim.InvalidArgument
		case cards[i].Lost:
			return nvmlsim.GPUIsLost
		}
		out = newDevice(l, cards[i])
		return nvmlsim.Success
	})
	return out, ret
}

func (l simulated) byBusID(busID string) (out gonvml.Device, ret gonvml.Return) {
	ret = l.call("DeviceGetHandleByPciBusId", "", func(s *nvmlsim.State) nvmlsim.Return {
		c, ret := s.Card(busID)
		if ret == nvmlsim.Success {
			out = newDevice(l, c)
		}
		return ret
	})
	return out, ret
}

// filled gives a function to every method of one of go-nvml's mocks that has none: it answers that it is not supported, where the mock
// itself would end the process.
func filled[T any](m *T) *T {
	fields := reflect.ValueOf(m).Elem()
	for i := range fields.NumField() {
		field := fields.Field(i)
		if field.Kind() != reflect.Func || !field.IsNil() {
			continue
		}
		kind := field.Type()
		field.Set(reflect.MakeFunc(kind, func([]reflect.Value) []reflect.Value {
			out := make([]reflect.Value, kind.NumOut())
			for j := range out {
				out[j] = reflect.Zero(kind.Out(j))
				if kind.Out(j) == reflect.TypeFor[gonvml.Return]() {
					out[j] = reflect.ValueOf(gonvml.ERROR_NOT_SUPPORTED)
				}
			}
			return out
		}))
	}
	return m
}
