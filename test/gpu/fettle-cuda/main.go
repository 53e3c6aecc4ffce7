// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-cuda computes something on each GPU that CUDA shows, compares it with what the CPU computes, and prints one JSON line. It
// runs in containers of test/gpu: that it ends well says that the container has all that a CUDA program needs. With -open and -mknod it
// only tries what a container must refuse.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit status: 0 if there is a device and each computed right, or if a file was to be opened, whatever came of it. 1 if
// CUDA failed or computed wrong, 2 for a wrong command line.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fettle-cuda", flag.ContinueOnError)
	flags.SetOutput(stderr)
	open := flags.String("open", "", "only try to open this file for reading and writing")
	mknod := flags.String("mknod", "", `only try to make a character device and to open it: "PATH MAJOR MINOR"`)
	library := flags.String("library", "libcuda.so.1", "CUDA's library, as dlopen takes it")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var answer any
	var err error
	switch {
	case flags.NArg() > 0 || *open != "" && *mknod != "":
		fmt.Fprintln(stderr, "fettle-cuda: want at most one of -open and -mknod, and no argument")
		return 2
	case *open != "":
		answer = attempt{Open: *open, Error: tryOpen(*open)}
	case *mknod != "":
		var path string
		var major, minor uint32
		if n, _ := fmt.Sscan(*mknod, &path, &major, &minor); n != 3 {
			fmt.Fprintf(stderr, "fettle-cuda: -mknod %q: want \"PATH MAJOR MINOR\"\n", *mknod)
			return 2
		}
		answer = attempt{Mknod: tryMknod(path, major, minor), Open: path, Error: tryOpen(path)}
	default:
		answer, err = compute(*library)
	}
	// What was found is printed even if something failed later.
	err = errors.Join(err, json.NewEncoder(stdout).Encode(answer))
	if err != nil {
		fmt.Fprintln(stderr, "fettle-cuda:", err)
		return 1
	}
	return 0
}

// attempt is what came of -open and -mknod. Empty errors are success.
type attempt struct {
	Mknod string `json:"mknod,omitempty"`
	Open  string `json:"open"`
	Error string `json:"error,omitempty"`
}

func tryOpen(path string) string {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	_ = unix.Close(fd)
	return ""
}

func tryMknod(path string, major, minor uint32) string {
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		return err.Error()
	}
	return ""
}

// found is what CUDA shows.
type found struct {
	Devices       []device `json:"devices"`
	DriverVersion string   `json:"driverVersion"`
}

type device struct {
	Name              string `json:"name"`
	UUID              string `json:"uuid"`
	ComputeCapability string `json:"computeCapability"`
	// Right is whether every element is what the CPU computes.
	Right        bool  `json:"right"`
	Milliseconds times `json:"milliseconds"`
}

// times are how long each step took, in milliseconds. Init is that of the process, the same for each device.
type times struct {
	Init    float64 `json:"init"`
	Context float64 `json:"context"`
	Load    float64 `json:"load"`
	Kernel  float64 `json:"kernel"`
}

// timed adds to milliseconds what a step takes.
func timed(milliseconds *float64, step func() error) error {
	begin := time.Now()
	err := step()
	*milliseconds += float64(time.Since(begin).Microseconds()) / 1000
	return err
}

func compute(library string) (found, error) {
	// The current context is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	answer := found{Devices: []device{}}
	if err := loadLibrary(library); err != nil {
		return answer, err
	}
	var initial times
	if err := timed(&initial.Init, initialise); err != nil {
		return answer, err
	}
	var err error
	if answer.DriverVersion, err = driverVersion(); err != nil {
		return answer, err
	}
	n, err := deviceCount()
	if err != nil {
		return answer, err
	}
	if n == 0 {
		return answer, errors.New("CUDA shows no device")
	}
	var errs []error
	for i := range n {
		d := device{Milliseconds: initial}
		if err := d.try(i); err != nil {
			errs = append(errs, fmt.Errorf("device %d: %w", i, err))
		}
		answer.Devices = append(answer.Devices, d)
	}
	return answer, errors.Join(errs...)
}

// try fills in what there is to say of the device with this index.
func (d *device) try(index int) (err error) {
	g, err := deviceAt(index)
	if err != nil {
		return err
	}
	var errs [3]error
	d.Name, errs[0] = g.name()
	d.UUID, errs[1] = g.uuid()
	d.ComputeCapability, errs[2] = g.computeCapability()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if err := timed(&d.Milliseconds.Context, g.retain); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.release()) }()
	if err := d.calculate(); err != nil {
		return err
	}
	d.Right = true
	return nil
}

// elements is how many numbers are computed.
const elements = 1 << 20

// calculate computes in the current context, and compares.
func (d *device) calculate() (err error) {
	var m module
	err = timed(&d.Milliseconds.Load, func() error {
		var err error
		m, err = loadModule(kernel)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.unload()) }()

	a, b := make([]int32, elements), make([]int32, elements)
	// Results that are there from before must not count.
	c := make([]int32, elements)
	for i := range c {
		a[i], b[i], c[i] = int32(i)*7919-1, int32(i)^0x5a5a5a, -1
	}
	var memories [3]memory
	for i, numbers := range [][]int32{a, b, c} {
		if memories[i], err = allocate(elements); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, memories[i].free()) }()
		if err := memories[i].write(numbers); err != nil {
			return err
		}
	}
	if err := timed(&d.Milliseconds.Kernel, func() error {
		return m.launch(kernelName, memories[2], memories[0], memories[1], elements)
	}); err != nil {
		return err
	}
	if err := memories[2].read(c); err != nil {
		return err
	}
	for i := range c {
		if want := a[i]*3 + b[i]; c[i] != want {
			return fmt.Errorf("element %d is %d, want %d", i, c[i], want)
		}
	}
	return nil
}

// kernel computes c[i] = a[i]*3 + b[i] for i below n, as PTX of the oldest kind that today's drivers compile for any GPU since Maxwell.
const (
	kernelName = "compute"
	kernel     = `.version 6.0
.target sm_50
.address_size 64

.visible .entry compute(.param .u64 c, .param .u64 a, .param .u64 b, .param .u32 n)
{
	.reg .pred %p;
	.reg .b32 %i, %n, %block, %size, %thread, %x, %y;
	.reg .b64 %c, %a, %b, %offset;

	ld.param.u64 %c, [c];
	ld.param.u64 %a, [a];
	ld.param.u64 %b, [b];
	ld.param.u32 %n, [n];
	mov.u32 %block, %ctaid.x;
	mov.u32 %size, %ntid.x;
	mov.u32 %thread, %tid.x;
	mad.lo.u32 %i, %block, %size, %thread;
	setp.ge.u32 %p, %i, %n;
	@%p bra done;

	cvta.to.global.u64 %c, %c;
	cvta.to.global.u64 %a, %a;
	cvta.to.global.u64 %b, %b;
	mul.wide.u32 %offset, %i, 4;
	add.u64 %c, %c, %offset;
	add.u64 %a, %a, %offset;
	add.u64 %b, %b, %offset;
	ld.global.s32 %x, [%a];
	ld.global.s32 %y, [%b];
	mad.lo.s32 %x, %x, 3, %y;
	st.global.s32 [%c], %x;
done:
	ret;
}
`
)
