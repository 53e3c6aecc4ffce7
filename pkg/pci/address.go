// SPDX-License-Identifier: Apache-2.0

// Package pci is the PCI functions of a machine as the kernel shows them: addresses, identifiers, drivers and SR-IOV. It only
// reads; binding and SR-IOV changes live elsewhere.
package pci

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Address is where a function sits: domain, bus, device and function number. It orders as the kernel lists it, is comparable,
// and its text form is the kernel's: "0000:1b:00.0", with more digits for domains above ffff.
type Address struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// Parse reads the kernel's form and nothing else: lower-case hexadecimal, DDDD:BB:DD.F, a device below 20 and a function below
// 8.
func Parse(text string) (Address, error) {
	address, ok := parse(text)
	if !ok || address.String() != text {
		return Address{}, fmt.Errorf("PCI address %q: want DDDD:BB:DD.F in lower-case hexadecimal, such as 0000:1b:00.0", text)
	}
	return address, nil
}

// ParseBusID reads the forms that libraries print, with upper-case digits and a domain of up to eight: "00000000:1B:00.0".
func ParseBusID(text string) (Address, error) {
	address, ok := parse(strings.ToLower(text))
	if !ok {
		return Address{}, fmt.Errorf("PCI bus id %q: want DOMAIN:BB:DD.F in hexadecimal, such as 00000000:1B:00.0", text)
	}
	return address, nil
}

func parse(text string) (Address, bool) {
	domain, rest, ok1 := strings.Cut(text, ":")
	bus, rest, ok2 := strings.Cut(rest, ":")
	dev, function, ok3 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || !ok3 || len(domain) < 4 || len(domain) > 8 || len(bus) != 2 || len(dev) != 2 || len(function) != 1 {
		return Address{}, false
	}
	var a Address
	for _, part := range []struct {
		digits string
		max    uint64
		set    func(uint64)
	}{
		{domain, 1<<32 - 1, func(v uint64) { a.Domain = uint32(v) }},
		{bus, 0xff, func(v uint64) { a.Bus = uint8(v) }},
		{dev, 0x1f, func(v uint64) { a.Device = uint8(v) }},
		{function, 7, func(v uint64) { a.Function = uint8(v) }},
	} {
		// ParseUint takes neither sign nor underscore with an explicit base.
		v, err := strconv.ParseUint(part.digits, 16, 32)
		if err != nil || v > part.max {
			return Address{}, false
		}
		part.set(v)
	}
	return a, true
}

// String is the kernel's form.
func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders by domain, bus, device and function.
func (a Address) Compare(b Address) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// Label is the address with only letters, digits and dashes, as the names of devices need it: "0000-1b-00-0".
func (a Address) Label() string {
	return strings.NewReplacer(":", "-", ".", "-").Replace(a.String())
}

// LocationID is the bus, device and function as one number, the way AMD's compute driver writes it: bus<<8 | device<<3 |
// function.
func (a Address) LocationID() uint32 {
	return uint32(a.Bus)<<8 | uint32(a.Device)<<3 | uint32(a.Function)
}

// MarshalText is the kernel's form.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the kernel's form, as Parse does.
func (a *Address) UnmarshalText(text []byte) error {
	address, err := Parse(string(text))
	if err != nil {
		return err
	}
	*a = address
	return nil
}
