// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-nvml-timed is fettle-nvml, and tells on stderr how long each call of NVIDIA's library took: a line of JSON for each name,
// with durations in nanoseconds.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
)

func main() {
	c := &clock{took: map[string][]time.Duration{}}
	code := child.Run(os.Args[1:], os.Stdout, os.Stderr, c.open)
	if err := json.NewEncoder(os.Stderr).Encode(c.took); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// clock keeps how long calls took.
type clock struct {
	mu   sync.Mutex
	took map[string][]time.Duration
}

func (c *clock) since(begin time.Time, call string) {
	took := time.Since(begin)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took[call] = append(c.took[call], took)
}

// open is child.Open: loading and initialising the library count as one call.
func (c *clock) open(driverRoot, library string) (gonvml.Interface, string, error) {
	begin := time.Now()
	lib, name, err := child.Load(driverRoot, library)
	c.since(begin, "Init")
	if err != nil {
		return nil, "", err
	}
	return timed(c, lib, &mock.Interface{}), name, nil
}

// timed gives each method of a mock the real one's, with the time that it takes. GPUs that a method returns are timed, too.
func timed[T any](c *clock, real any, m *T) *T {
	fields := reflect.ValueOf(m).Elem()
	for i := range fields.NumField() {
		field, name := fields.Field(i), strings.TrimSuffix(fields.Type().Field(i).Name, "Func")
		method := reflect.ValueOf(real).MethodByName(name)
		if field.Kind() != reflect.Func || !method.IsValid() {
			continue
		}
		kind := field.Type()
		field.Set(reflect.MakeFunc(kind, func(args []reflect.Value) []reflect.Value {
			begin := time.Now()
			var out []reflect.Value
			if kind.IsVariadic() {
				out = method.CallSlice(args)
			} else {
				out = method.Call(args)
			}
			c.since(begin, name)
			for j := range out {
				if gpu, ok := out[j].Interface().(gonvml.Device); ok {
					out[j] = reflect.ValueOf(timed(c, gpu, &mock.Device{})).Convert(kind.Out(j))
				}
			}
			return out
		}))
	}
	return m
}
