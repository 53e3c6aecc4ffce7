// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// The throughputs of the backend, and what they are compared with.
const (
	// fpgaSeal copies an image from a file into memory that nobody can change, and verifies its digest there.
	fpgaSeal = "fpga.seal.throughput"
	// fpgaProgram takes the region, programs a sealed image, verifies it and gives the region back. fpgaLoad is both.
	fpgaProgram = "fpga.program.throughput"
	fpgaLoad    = "fpga.load.throughput"
	// fpgaMemcpy copies as many bytes in memory, fpgaSHA256 makes a digest of them.
	fpgaMemcpy = "fpga.program.memcpy"
	fpgaSHA256 = "fpga.program.sha256"
	// The throughputs over that of fpgaMemcpy.
	fpgaProgramRatio = "fpga.program.ratio"
	fpgaLoadRatio    = "fpga.load.ratio"
)

func fpgaThroughputs() []string {
	return []string{fpgaSeal, fpgaProgram, fpgaLoad, fpgaMemcpy, fpgaSHA256}
}

func fpgaRatios() []string { return []string{fpgaProgramRatio, fpgaLoadRatio} }

// accelerator is the id of what the images hold.
const accelerator = "18b79ffa2ee54aa096ef4230dafacb5f"

// programming measures the backend alone, in this process, for images of each size.
func (b *bench) programming(ctx context.Context, f *fpgas) (err error) {
	host, err := dfl.Open(f.node.host, dfl.Options{PlainNodes: true, Nodes: f.machine.Nodes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	for _, size := range b.form.images {
		l, err := newLoader(host, f, size)
		if err != nil {
			return err
		}
		s, err := b.loads(ctx, l)
		if err = errors.Join(err, l.close()); err != nil {
			return fmt.Errorf("image of %d bytes: %w", size, err)
		}
		if err := b.report.throughputs(point{Machine: fpgaMachine, Bytes: size}, s); err != nil {
			return err
		}
	}
	return nil
}

// loads measures what is compared in an order that changes, until the form's samples are there or its time is over.
func (b *bench) loads(ctx context.Context, l *loader) (samples, error) {
	s := samples{}
	random := rand.New(rand.NewPCG(3, 4))
	compared := []func() error{
		func() error { return l.load(ctx, s) },
		func() error { return l.copy(s) },
		func() error { return l.sum(s) },
	}
	begin := time.Now()
	for n := 0; b.form.more(n, begin); n++ {
		random.Shuffle(len(compared), func(i, j int) { compared[i], compared[j] = compared[j], compared[i] })
		for _, measure := range compared {
			if err := measure(); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// loader is an image and a region that it is for.
type loader struct {
	host *dfl.Host
	port dfl.Port
	// interfaceID is the region's.
	interfaceID string
	file        *os.File
	digest      string
	// image is the file's content, target as much memory to copy it to.
	image, target []byte
}

// newLoader makes an image for the first region. It is a file in memory, as one that was read lately, and so is where it is copied to.
func newLoader(host *dfl.Host, f *fpgas, size int) (*loader, error) {
	const card, port = 0, 0
	at := f.machine.Place(card, port)
	l := &loader{host: host, interfaceID: f.machine.Cards[card].Ports[port].Interface, target: make([]byte, size)}
	l.port = dfl.Port{
		Name: at.Name, Node: at.Node, FMENode: at.FMENode, ID: at.ID, Attributes: at.Attributes, Region: at.Region, Manager: at.Manager,
		LockFile: filepath.Join(f.node.disk, "engine.lock"),
	}
	l.image = fpgasim.Image(l.interfaceID, accelerator, size)
	l.digest = digestOf(l.image)
	copy(l.target, l.image)
	name := filepath.Join(f.node.fast, "image")
	if err := os.WriteFile(name, l.image, 0o600); err != nil {
		return nil, fmt.Errorf("write an image: %w", err)
	}
	var err error
	if l.file, err = os.Open(name); err != nil {
		return nil, err
	}
	return l, os.Remove(name)
}

func (l *loader) close() error { return l.file.Close() }

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// load does all that stands between a file and a region that was seen to work.
func (l *loader) load(ctx context.Context, s samples) (err error) {
	begin := time.Now()
	image, err := backend.Seal(io.NewSectionReader(l.file, 0, int64(len(l.image))), int64(len(l.image)), l.digest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	sealed := time.Now()
	lease, err := l.host.Acquire(ctx, l.port, l.interfaceID)
	if err != nil {
		return err
	}
	_, err = lease.Program(ctx, dfl.Load{Image: image, AFU: accelerator})
	if err = errors.Join(err, lease.Release()); err != nil {
		return err
	}
	done := time.Now()
	s.add(fpgaSeal, sealed.Sub(begin))
	s.add(fpgaProgram, done.Sub(sealed))
	s.add(fpgaLoad, done.Sub(begin))
	return nil
}

func (l *loader) copy(s samples) error {
	begin := time.Now()
	n := copy(l.target, l.image)
	s.add(fpgaMemcpy, time.Since(begin))
	if n != len(l.image) {
		return fmt.Errorf("copied %d bytes of %d", n, len(l.image))
	}
	return nil
}

func (l *loader) sum(s samples) error {
	begin := time.Now()
	digest := digestOf(l.image)
	s.add(fpgaSHA256, time.Since(begin))
	if digest != l.digest {
		return fmt.Errorf("digest %s, want %s", digest, l.digest)
	}
	return nil
}

// throughputs writes what was measured for images of one size: the medians, as MB (a million bytes) a second.
func (r *report) throughputs(at point, s samples) error {
	speed := func(name string) float64 {
		const kilo = 1000 // of bytes a millisecond
		return float64(at.Bytes) / s.median(name) / kilo
	}
	var errs []error
	for _, name := range fpgaThroughputs() {
		errs = append(errs, r.value(name, &at, len(s.of(name)), speed(name)))
	}
	n := len(s.of(fpgaLoad))
	return errors.Join(append(errs,
		r.value(fpgaProgramRatio, &at, n, speed(fpgaProgram)/speed(fpgaMemcpy)),
		r.value(fpgaLoadRatio, &at, n, speed(fpgaLoad)/speed(fpgaMemcpy)))...)
}
