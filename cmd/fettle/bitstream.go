// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/fpga"
)

const bitstreamInspectHelp = `
Shows what an FPGA's bitstream says of itself: a GBS, an AOCX or an xclbin. A raw image (RBF, BIN) says nothing; its --sidecar does.
It reads only, needs no FPGA, and checks no signature.`

const bitstreamInspectExamples = `
fettle bitstream inspect nlb0.gbs
fettle bitstream inspect nlb0.rbf --sidecar nlb0.yaml -o json`

func bitstreamInspect(flags *arguments) action {
	format := flags.format()
	sidecar := flags.String("sidecar", "", "`file` in JSON or YAML that describes a raw image")
	return func(_ context.Context, operands []string, stdout, _ io.Writer) error {
		b, err := inspectFile(operands[0], *sidecar)
		if err != nil {
			return fmt.Errorf("bitstream inspect: %w", err)
		}
		return show(*format, b, stdout, func(stdout io.Writer) error { return showBitstreamTable(b, stdout) })
	}
}

// inspectFile reads a file, with its sidecar if it has one.
func inspectFile(name, sidecar string) (fpga.Bitstream, error) {
	file, size, err := openRegular(name)
	if err != nil {
		return fpga.Bitstream{}, err
	}
	defer file.Close()
	var b fpga.Bitstream
	if sidecar == "" {
		b, err = fpga.Inspect(file, size)
	} else {
		var text []byte
		if text, err = readSidecar(sidecar); err != nil {
			return fpga.Bitstream{}, err
		}
		b, err = fpga.InspectRaw(file, size, text)
	}
	if err != nil {
		return fpga.Bitstream{}, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// openRegular opens what has a size and is read at any offset.
func openRegular(name string) (*os.File, int64, error) {
	// Looked at before it is opened: opening a pipe would wait for its other end.
	info, err := os.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: want a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	if info, err = file.Stat(); err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// readSidecar reads one byte more than a sidecar may have, which tells a longer one.
func readSidecar(name string) ([]byte, error) {
	file, _, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, fpga.MaxSidecar+1))
}

// showBitstreamTable shows a line a field, without those that the file does not have.
func showBitstreamTable(b fpga.Bitstream, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	bitstreamLines(b, "SIGNATURE", lineWriter(table))
	return table.Flush()
}

// lineWriter writes the fields that are there. A tabwriter's errors come at Flush.
func lineWriter(table *tabwriter.Writer) func(name, value string) {
	return func(name, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, value)
		}
	}
}

// bitstreamLines are a file's fields. The signature is the one for the card.
func bitstreamLines(b fpga.Bitstream, signature string, line func(name, value string)) {
	line("FORMAT", string(b.Format))
	line("ID", b.ID)
	line("AFU ID", b.AFUID)
	line("INTERFACE ID", b.InterfaceID)
	line("NAME", b.Name)
	if b.Contexts > 0 {
		line("CONTEXTS", fmt.Sprint(b.Contexts))
	}
	line("PLATFORM", b.Platform)
	if b.OpenCL != nil {
		line("BOARD", b.OpenCL.Board)
		line("TARGET", b.OpenCL.Target)
		line("VERSION", b.OpenCL.Version)
	}
	line("CLOCK HIGH", clockText(b.Clocks.High))
	line("CLOCK LOW", clockText(b.Clocks.Low))
	if b.Power != nil {
		line("POWER", fmt.Sprint(*b.Power))
	}
	line("SIZE", fmt.Sprintf("%d bytes", b.Size))
	line("PAYLOAD", payloadText(b.Payload))
	line(signature, signatureText(b.Signature))
	for _, s := range b.Sections {
		line("SECTION", fmt.Sprintf("%s %q, %s", s.Kind, s.Name, place(s.Offset, s.Length)))
	}
}

func place(offset, length int64) string { return fmt.Sprintf("%d bytes at 0x%x", length, offset) }

func clockText(c *fpga.Clock) string {
	switch {
	case c == nil:
		return ""
	case c.Auto:
		return "auto"
	}
	return c.String() + " MHz"
}

func payloadText(p *fpga.Payload) string {
	switch {
	case p == nil:
		return "not known: no card was seen to take the blocks before a header"
	case p.Gzip != nil:
		return fmt.Sprintf("%s of what the %s unpack to", place(p.Offset, p.Length), place(p.Gzip.Offset, p.Gzip.Length))
	}
	return place(p.Offset, p.Length)
}

func signatureText(s *fpga.Signature) string {
	switch {
	case s == nil:
		return "none"
	case s.Offset < 0:
		return fmt.Sprintf("%d bytes, not checked", s.Length)
	case s.Unpacked:
		return place(s.Offset, s.Length) + " of what was unpacked, not checked"
	}
	return place(s.Offset, s.Length) + ", not checked"
}
