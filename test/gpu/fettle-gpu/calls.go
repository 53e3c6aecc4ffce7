// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// times are durations in milliseconds.
type times struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func timesOf(all []time.Duration) times {
	if len(all) == 0 {
		return times{}
	}
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return times{Count: len(all), P50: ms(all[len(all)/2]), P99: ms(all[(len(all)-1)*99/100]), Max: ms(all[len(all)-1])}
}

// question is one that the plugin asks of the child.
type question struct {
	name string
	ask  func(ctx context.Context, p *nvml.Prober) error
}

// questions returns what the plugin asks the child, without what changes a GPU.
func questions(gpu nvml.Device) []question {
	return []question{
		{"report", func(ctx context.Context, p *nvml.Prober) error {
			_, err := p.Query(ctx)
			return err
		}},
		{"files of the driver", func(ctx context.Context, p *nvml.Prober) error {
			_, err := p.Driver(ctx, "")
			if errors.Is(err, nvml.ErrNoDriver) {
				return impossible("%w", err)
			}
			return err
		}},
		{"compute mode", func(ctx context.Context, p *nvml.Prober) error {
			_, err := p.ComputeMode(ctx, nil, nvml.GPU{PCIBusID: gpu.PCIBusID, UUID: gpu.UUID})
			return err
		}},
		{"instances", func(ctx context.Context, p *nvml.Prober) error {
			if gpu.MIG == nil || len(gpu.MIG.Profiles) == 0 {
				return impossible("the GPU cannot be divided")
			}
			_, err := p.ListMIG(ctx, nil, nvml.MIGPlace{
				PCIBusID: gpu.PCIBusID, Parent: gpu.UUID, ProfileID: gpu.MIG.Profiles[0].ID, Start: gpu.MIG.Profiles[0].Placements[0].Start,
			})
			if errors.Is(err, nvml.ErrMIGOff) {
				return nil // which is the answer of most GPUs
			}
			return err
		}},
	}
}

// calls asks each question again and again, alone and beside three others that do.
func (s *site) calls(ctx context.Context, f *findings) error {
	report, err := nvml.Query(ctx, s.command())
	if err != nil {
		return impossible("NVIDIA's library was not asked: %w", err)
	}
	if len(report.Devices) == 0 {
		return impossible("NVIDIA's library has no GPU")
	}
	for _, q := range questions(report.Devices[0]) {
		for _, programs := range []int{1, 4} {
			took, err := s.repeat(ctx, q, programs)
			name := fmt.Sprintf("%s, %d at once", q.name, programs)
			f.check(name, err)
			if err == nil {
				f.fact(name+", ms", took)
			}
		}
	}
	for _, programs := range []int{1, 4} {
		f.check(fmt.Sprintf("each call is timed, %d at once", programs), s.timed(ctx, f, programs))
	}
	return nil
}

// timed notes how long each call of the library takes in programs that ask for a report.
func (s *site) timed(ctx context.Context, f *findings, programs int) error {
	program := s.program("fettle-nvml-timed")
	if _, err := os.Stat(program); err != nil {
		return impossible("%w", err)
	}
	const runs = 10
	var mu sync.Mutex
	all, errs := map[string][]time.Duration{}, make([]error, programs)
	var done sync.WaitGroup
	for i := range programs {
		done.Go(func() {
			for range runs {
				took, err := callsOf(ctx, program, s.driver)
				if err != nil {
					errs[i] = err
					return
				}
				mu.Lock()
				for call, durations := range took {
					all[call] = append(all[call], durations...)
				}
				mu.Unlock()
			}
		})
	}
	done.Wait()
	out := map[string]times{}
	for call, durations := range all {
		out[call] = timesOf(durations)
	}
	f.fact(fmt.Sprintf("calls of a report, %d at once, ms", programs), out)
	return errors.Join(errs...)
}

// callsOf runs fettle-nvml-timed and reads what it says last.
func callsOf(ctx context.Context, program, driver string) (took map[string][]time.Duration, err error) {
	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, program, "-driver-root", driver)
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, tail(stderr.Bytes()))
	}
	return took, json.Unmarshal(stderr.Bytes(), &took)
}

// repeat asks a question several times by each of some programs.
func (s *site) repeat(ctx context.Context, q question, programs int) (times, error) {
	const times = 20
	var mu sync.Mutex
	var all []time.Duration
	var errs []error
	var done sync.WaitGroup
	for range programs {
		done.Go(func() {
			p := nvml.NewProber(s.command())
			for range times {
				begin := time.Now()
				err := q.ask(ctx, p)
				took := time.Since(begin)
				mu.Lock()
				all, errs = append(all, took), append(errs, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	done.Wait()
	return timesOf(all), errors.Join(errs...)
}

// health watches the GPUs for a minute, in which nothing is to be wrong.
func (s *site) health(ctx context.Context, f *findings) error {
	const minute, beat = time.Minute, 5 * time.Second
	if _, err := nvml.Query(ctx, s.command()); err != nil {
		return impossible("NVIDIA's library was not asked: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, minute)
	defer cancel()
	var states []nvml.State
	var events []nvml.Event
	var errs []error
	w := nvml.Watcher{Command: s.command(), Interval: beat}
	begin := time.Now()
	var first time.Duration
	w.Run(ctx, func(m nvml.Message) {
		if first == 0 {
			first = time.Since(begin)
		}
		if m.State != nil {
			states = append(states, *m.State)
		}
		if m.Event != nil {
			events = append(events, *m.Event)
		}
	}, func(err error) { errs = append(errs, err) })
	f.fact("first message, s", first.Seconds())
	f.fact("heartbeats", len(states))
	f.fact("events", events)
	f.check("the child lives for a minute", errors.Join(errs...))
	f.check("there is a heartbeat every 5 s", atLeast(len(states), int(minute/beat)-1))
	f.check("no critical error is reported", none(events))
	if len(states) == 0 {
		return nil
	}
	last := states[len(states)-1]
	f.fact("state", last)
	f.check("every counter is read", none(last.Faults))
	for _, d := range last.Devices {
		f.check(d.PCIBusID+" needs nothing", wellBehaved(d))
	}
	return nil
}

func atLeast(have, want int) error {
	if have >= want {
		return nil
	}
	return fmt.Errorf("there are %d, expected at least %d", have, want)
}

// wellBehaved wants no lost GPU, no failed or pending remapping and no action to take.
func wellBehaved(d nvml.DeviceState) error {
	set := func(b *bool) bool { return b != nil && *b }
	if d.Lost || set(d.RemapFailure) || set(d.RemapPending) || d.RecoveryAction != "" && d.RecoveryAction != nvml.RecoveryNone {
		return fmt.Errorf("%+v", d)
	}
	return nil
}
