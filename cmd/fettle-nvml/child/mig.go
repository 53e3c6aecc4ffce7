// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// migOptions are the options of all verbs of mig.
type migOptions struct {
	device, parent string
	profile, start uint
	// placed says that profile and start are given.
	placed  bool
	finish  bool
	id      int
	uuid    string
	on, off bool
	pending bool
}

// migVerb does one thing to a GPU and fills in the answer.
type migVerb func(c *card, o *migOptions) error

// migVerbs is the table of the verbs, with the options that each takes beside -device and -parent.
func migVerbs() map[string]struct {
	do      migVerb
	options []string
} {
	type verb = struct {
		do      migVerb
		options []string
	}
	return map[string]verb{
		"list":    {do: (*card).list, options: []string{"profile", "start"}},
		"create":  {do: (*card).create, options: []string{"profile", "start", "finish"}},
		"destroy": {do: (*card).destroy, options: []string{"profile", "start", "id", "uuid"}},
		"mode":    {do: (*card).setMode, options: []string{"on", "off", "pending"}},
	}
}

// migTask reads "mig VERB -device BUSID ...". The answer is printed also where the verb fails after it looked.
func migTask(args []string, stdout, stderr io.Writer) (task, error) {
	if len(args) == 0 {
		return nil, errors.New("mig: want list, create, destroy or mode")
	}
	verb, ok := migVerbs()[args[0]]
	if !ok {
		return nil, fmt.Errorf("mig: unknown verb %q, want list, create, destroy or mode", args[0])
	}
	o, err := parseMIG(args, verb.options, stderr)
	if err != nil {
		return nil, err
	}
	return withLibrary(func(lib gonvml.Interface) error {
		c := &card{lib: lib}
		err := c.open(o)
		if err == nil {
			err = verb.do(c, o)
		}
		if c.gpu == nil {
			return err
		}
		return errors.Join(err, json.NewEncoder(stdout).Encode(c.answer))
	}), nil
}

func parseMIG(args, options []string, stderr io.Writer) (*migOptions, error) {
	o := &migOptions{}
	flags := flag.NewFlagSet("fettle-nvml mig "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.device, "device", "", "PCI bus id of the GPU")
	flags.StringVar(&o.parent, "parent", "", "UUID that the GPU must have (default: any)")
	flags.UintVar(&o.profile, "profile", 0, "id of the GPU instance profile")
	flags.UintVar(&o.start, "start", 0, "first memory slice")
	flags.BoolVar(&o.finish, "finish", false, "take over a GPU instance that is in the place, and complete it")
	flags.IntVar(&o.id, "id", -1, "id that the GPU instance must have (default: any)")
	flags.StringVar(&o.uuid, "uuid", "", "UUID that its compute instance must have, if it has one (default: any)")
	flags.BoolVar(&o.on, "on", false, "switch MIG mode on")
	flags.BoolVar(&o.off, "off", false, "switch MIG mode off")
	flags.BoolVar(&o.pending, "pending", false, "let a change that cannot be activated now stay pending")
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name := range given {
		if name != "device" && name != "parent" && !slices.Contains(options, name) {
			return nil, fmt.Errorf("mig %s: unexpected option -%s", args[0], name)
		}
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("mig %s: unexpected argument %q", args[0], flags.Arg(0))
	case o.device == "":
		return nil, fmt.Errorf("mig %s: want -device with the PCI bus id of a GPU", args[0])
	case given["profile"] != given["start"] || args[0] != "list" && slices.Contains(options, "profile") && !given["profile"]:
		return nil, fmt.Errorf("mig %s: want -profile and -start", args[0])
	case slices.Contains(options, "on") && o.on == o.off:
		return nil, fmt.Errorf("mig %s: want -on or -off", args[0])
	}
	o.placed = given["profile"]
	return o, nil
}

// card is the GPU that a verb is about.
type card struct {
	lib      gonvml.Interface
	gpu      gonvml.Device
	profiles []profile
	answer   nvml.MIGAnswer
}

// open finds the GPU and its mode. A GPU that cannot be divided counts as one that is not in MIG mode.
func (c *card) open(o *migOptions) error {
	gpu, err := find(c.lib, o.device, o.parent)
	if err != nil {
		return err
	}
	c.gpu = gpu
	return c.readMode()
}

// readMode reads the mode and the minor, which may change with it.
func (c *card) readMode() error {
	minor, ret := c.gpu.GetMinorNumber()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("read the minor: %w", said(ret))
	}
	c.answer.Minor = &minor
	current, pending, ret := c.gpu.GetMigMode()
	if ret == gonvml.ERROR_NOT_SUPPORTED {
		return fmt.Errorf("%w: it cannot be divided", nvml.ErrMIGOff)
	}
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("read the MIG mode: %w", said(ret))
	}
	c.answer.Current, c.answer.Pending = current == gonvml.DEVICE_MIG_ENABLE, pending == gonvml.DEVICE_MIG_ENABLE
	return nil
}

// divided fails unless the GPU is in MIG mode, and reads its profiles.
func (c *card) divided() (err error) {
	if !c.answer.Current {
		return fmt.Errorf("%w: switch it on, and reset the GPU if it is pending", nvml.ErrMIGOff)
	}
	c.profiles, err = profilesOf(c.gpu)
	return err
}

// list tells all instances. With a place it tells the compute instances of those only that take slices of the place.
func (c *card) list(o *migOptions) error {
	if err := c.divided(); err != nil {
		return err
	}
	all, err := bareInstances(c.gpu, c.profiles)
	if err != nil {
		return err
	}
	there := all
	if o.placed {
		_, placement, err := c.place(o)
		if err != nil {
			return err
		}
		there = taking(all, placement)
	}
	if err := addCompute(c.gpu, there); err != nil {
		return err
	}
	for _, one := range there {
		at := slices.IndexFunc(all, func(other instance) bool { return other.ID == one.ID })
		all[at] = one
	}
	c.answer.Instances = plain(all)
	return nil
}

// taking returns the instances that take slices of a place.
func taking(all []instance, placement nvml.MIGPlacement) []instance {
	return slices.DeleteFunc(slices.Clone(all), func(one instance) bool { return !one.Placement.Overlaps(placement) })
}

// create makes the instance in one place, or completes the one there.
func (c *card) create(o *migOptions) error {
	if err := c.divided(); err != nil {
		return err
	}
	p, placement, err := c.place(o)
	if err != nil {
		return err
	}
	instances, err := c.overlapping(placement)
	if err != nil {
		return err
	}
	if len(instances) > 0 {
		one := instances[0]
		c.answer.Instance = &one.MIGInstance
		if !o.finish || !one.isAt(p.info.Id, placement) || !one.couldBeOurs() {
			c.answer.Other = true
			return fmt.Errorf("%w: GPU instance %d of profile %d has the memory slices from %d, %d of them",
				nvml.ErrOccupied, one.ID, one.ProfileID, one.Placement.Start, one.Placement.Size)
		}
		return c.complete(one, false)
	}
	gi, ret := c.gpu.CreateGpuInstanceWithPlacement(&p.info, &gonvml.GpuInstancePlacement{Start: placement.Start, Size: placement.Size})
	switch ret {
	case gonvml.SUCCESS:
	case gonvml.ERROR_INSUFFICIENT_RESOURCES:
		return fmt.Errorf("create a GPU instance of profile %d at %d: %w: %w", o.profile, o.start, nvml.ErrOccupied, ret)
	case gonvml.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("create a GPU instance of profile %d at %d: %w: %w", o.profile, o.start, nvml.ErrMIGOff, ret)
	default:
		return fmt.Errorf("create a GPU instance of profile %d at %d: %w", o.profile, o.start, said(ret))
	}
	return c.complete(instance{gi: gi, slices: p.info.SliceCount}, true)
}

// overlapping finds the GPU instances that take slices of a place.
func (c *card) overlapping(placement nvml.MIGPlacement) ([]instance, error) {
	all, err := bareInstances(c.gpu, c.profiles)
	if err != nil {
		return nil, err
	}
	there := taking(all, placement)
	return there, addCompute(c.gpu, there)
}

// place finds the profile by its id, and the size of an instance that starts there.
func (c *card) place(o *migOptions) (profile, nvml.MIGPlacement, error) {
	at := slices.IndexFunc(c.profiles, func(p profile) bool { return uint(p.info.Id) == o.profile })
	if at < 0 {
		return profile{}, nvml.MIGPlacement{}, fmt.Errorf("the GPU has no GPU instance profile with id %d", o.profile)
	}
	placements, err := c.profiles[at].placements(c.gpu)
	if err != nil {
		return profile{}, nvml.MIGPlacement{}, err
	}
	for _, placement := range placements {
		if uint(placement.Start) == o.start {
			return c.profiles[at], placement, nil
		}
	}
	return profile{}, nvml.MIGPlacement{}, fmt.Errorf("no GPU instance of profile %d can start at memory slice %d, want one of %v",
		o.profile, o.start, placements)
}

// complete makes the compute instance that takes all of a GPU instance, unless it is there, and reads back what the two are. If a new GPU
// instance cannot be completed, it is destroyed again.
func (c *card) complete(one instance, created bool) error {
	if len(one.Compute) == 0 {
		err := makeCompute(one)
		if err != nil && created {
			err = takeBack(one, err)
		}
		if err != nil {
			return err
		}
	}
	info, ret := one.gi.GetInfo()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("read the GPU instance: %w", said(ret))
	}
	whole := []instance{newInstance(one.gi, &info, one.slices)}
	if err := addCompute(c.gpu, whole); err != nil {
		return err
	}
	if len(whole[0].Compute) != 1 || whole[0].Compute[0].UUID == "" {
		return fmt.Errorf("read the GPU instance %d back: it has no compute instance with a UUID", info.Id)
	}
	c.answer.Instance = &whole[0].MIGInstance
	return nil
}

// takeBack destroys a GPU instance whose compute instance could not be made.
func takeBack(one instance, why error) error {
	if ret := one.gi.Destroy(); ret != gonvml.SUCCESS {
		return fmt.Errorf("%w; destroy the GPU instance again: %w", why, ret)
	}
	return why
}

func makeCompute(one instance) error {
	number, ok := wholeCompute(one.slices)
	if !ok {
		return fmt.Errorf("no compute instance profile takes %d slices", one.slices)
	}
	info, ret := one.gi.GetComputeInstanceProfileInfo(number, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("read compute instance profile %d: %w", number, said(ret))
	}
	if _, ret = one.gi.CreateComputeInstance(&info); ret != gonvml.SUCCESS {
		return fmt.Errorf("create a compute instance: %w", said(ret))
	}
	return nil
}

// isAt reports whether the instance is of a profile and in a place.
func (one instance) isAt(profileID uint32, placement nvml.MIGPlacement) bool {
	return one.ProfileID == profileID && one.Placement == placement
}

// couldBeOurs is false for an instance that create does not make: it makes one compute instance, with id 0, and no second.
func (one instance) couldBeOurs() bool {
	return len(one.Compute) == 0 || len(one.Compute) == 1 && one.Compute[0].ID == 0
}

// is reports whether the instance is the one that the options identify. One without a compute instance has no UUID to compare.
func (one instance) is(o *migOptions) bool {
	if o.id < 0 {
		return one.couldBeOurs()
	}
	return one.ID == uint32(o.id) && (o.uuid == "" || len(one.Compute) == 0 || one.Compute[0].UUID == o.uuid && len(one.Compute) == 1)
}

// destroy destroys the instance in one place. One that is gone, or another that came in its place, is no error.
func (c *card) destroy(o *migOptions) error {
	if err := c.divided(); err != nil {
		return err
	}
	instances, err := bareInstances(c.gpu, c.profiles)
	if err != nil {
		return err
	}
	instances = slices.DeleteFunc(instances, func(one instance) bool {
		return uint(one.ProfileID) != o.profile || uint(one.Placement.Start) != o.start
	})
	if err := addCompute(c.gpu, instances); err != nil || len(instances) == 0 {
		return err
	}
	one := instances[0]
	c.answer.Instance = &one.MIGInstance
	if !one.is(o) {
		c.answer.Other = true
		return nil
	}
	for len(one.Compute) > 0 {
		if err := destroyCompute(one.gi, one.Compute[0].ID); err != nil {
			return err
		}
		one.Compute = one.Compute[1:]
	}
	if ret := one.gi.Destroy(); ret != gonvml.SUCCESS && !absent("GpuInstance.Destroy", ret) {
		return fmt.Errorf("destroy GPU instance %d: %w", one.ID, said(ret))
	}
	c.answer.Instance = nil
	return nil
}

func destroyCompute(gi gonvml.GpuInstance, id uint32) error {
	function := "GpuInstance.GetComputeInstanceById"
	ci, ret := gi.GetComputeInstanceById(int(id))
	if ret == gonvml.SUCCESS {
		function, ret = "ComputeInstance.Destroy", ci.Destroy()
	}
	if ret != gonvml.SUCCESS && !absent(function, ret) {
		return fmt.Errorf("destroy compute instance %d: %w", id, said(ret))
	}
	return nil
}

// setMode switches MIG mode and judges both results: whether the mode was noted, and what became of activating it.
func (c *card) setMode(o *migOptions) error {
	if !o.on && c.answer.Current {
		if err := c.divided(); err != nil {
			return err
		}
		instances, err := bareInstances(c.gpu, c.profiles)
		if err != nil {
			return err
		}
		if n := len(instances); n > 0 {
			return fmt.Errorf("switch MIG mode off: %w: there are %d GPU instances", nvml.ErrInUse, n)
		}
	}
	before := c.answer
	if before.Current == o.on && before.Pending == o.on {
		return nil
	}
	if !o.pending && before.Current != o.on {
		if err := c.activatesAtOnce(); err != nil {
			return err
		}
	}
	err := c.switchMode(o, o.on)
	if err != nil && !o.pending && c.answer.Current == before.Current && c.answer.Pending != before.Pending {
		activation := c.answer.Activation
		err = errors.Join(err, c.switchMode(o, before.Pending))
		c.answer.Activation = activation
	}
	return err
}

// activatesAtOnce refuses a GPU of which only a reset changes the mode (MIG user guide, "Enable MIG Mode").
func (c *card) activatesAtOnce() error {
	architecture, ret := c.gpu.GetArchitecture()
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("read the architecture: %w", said(ret))
	}
	if architecture == gonvml.DEVICE_ARCH_AMPERE {
		return fmt.Errorf("switch MIG mode: %w, as every Ampere GPU: nothing was changed", nvml.ErrNeedsReset)
	}
	return nil
}

// switchMode sets the mode and reads everything anew. The switch may have reset the GPU, which then has another handle and minor.
func (c *card) switchMode(o *migOptions, on bool) error {
	mode, want := gonvml.DEVICE_MIG_DISABLE, "off"
	if on {
		mode, want = gonvml.DEVICE_MIG_ENABLE, "on"
	}
	activation, ret := c.gpu.SetMigMode(mode)
	if ret != gonvml.SUCCESS {
		return fmt.Errorf("switch MIG mode %s: %w", want, said(ret))
	}
	c.answer.Activation = strings.TrimSpace(activation.Error())
	if err := c.open(o); err != nil {
		return err
	}
	switch {
	case activation != gonvml.SUCCESS:
		return fmt.Errorf("activate MIG mode %s: %w", want, said(activation))
	case c.answer.Current != on:
		return fmt.Errorf("activate MIG mode %s: %w: it is pending", want, nvml.ErrNeedsReset)
	}
	return nil
}
