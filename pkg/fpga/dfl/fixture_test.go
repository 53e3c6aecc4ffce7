// SPDX-License-Identifier: Apache-2.0

package dfl_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// Ids of the programmable cards' own documents: interface of two shells, accelerators nlb0 and nlb3.
const (
	shell      = "69528db6eb31577a8c3668f9faa081f6"
	otherShell = "9926ab6d6c925a68aabca7d84c545738"
	nlb0       = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3       = "f7df405cbd7acf7222f144b0b93acd18"
	allF       = "ffffffffffffffffffffffffffffffff"
)

// clientVariable hands a job to the process that is killed.
const clientVariable = "FETTLE_DFL_CLIENT"

// job is what the client does: program nlb3.
type job struct {
	Root string
	Port dfl.Port
}

func TestMain(m *testing.M) {
	fpgasim.Main()
	if text, ok := os.LookupEnv(clientVariable); ok {
		if err := client(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func client(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	host, err := dfl.Open(j.Root, dfl.Options{PlainNodes: true})
	if err != nil {
		return err
	}
	lease, err := host.Acquire(context.Background(), j.Port, shell)
	if err != nil {
		return err
	}
	raw := fpgasim.Image(shell, nlb3, 4096)
	image, err := backend.Seal(bytes.NewReader(raw), int64(len(raw)), digest(raw))
	if err != nil {
		return err
	}
	_, err = lease.Program(context.Background(), dfl.Load{Image: image, AFU: nlb3})
	return err
}

// site is a simulated machine and the host that is tested on it.
type site struct {
	*fpgasim.Sim
	*dfl.Host
	dir string
	t   *testing.T
}

// oneCard is a card whose ports have one shell and hold nlb0.
func oneCard(ports int) fpgasim.Machine {
	var c fpgasim.Card
	for range ports {
		c.Ports = append(c.Ports, fpgasim.Port{Interface: shell, AFU: nlb0})
	}
	return fpgasim.Machine{Cards: []fpgasim.Card{c}}
}

func start(t *testing.T, m fpgasim.Machine, o dfl.Options) *site {
	t.Helper()
	sim := fpgasim.Start(t, m)
	o.PlainNodes = true
	host, err := dfl.Open(sim.Root, o)
	check.Must(t, err)
	t.Cleanup(func() { _ = host.Close() })
	return &site{sim, host, t.TempDir(), t}
}

// port is one of the first card.
func (s *site) port(number int) dfl.Port { return s.portOf(0, number) }

func (s *site) portOf(card, number int) dfl.Port {
	at := s.Place(card, number)
	return dfl.Port{
		Name: at.Name, Node: at.Node, FMENode: at.FMENode, ID: at.ID, Attributes: at.Attributes, Region: at.Region, Manager: at.Manager,
		LockFile: filepath.Join(s.dir, fmt.Sprintf("fme-%d.lock", card)),
	}
}

func (s *site) acquire(p dfl.Port) *dfl.Lease {
	s.t.Helper()
	lease, err := s.Acquire(s.t.Context(), p, shell)
	check.Must(s.t, err)
	s.t.Cleanup(func() { _ = lease.Release() })
	return lease
}

// image is one for a shell that holds an accelerator.
func (s *site) image(interfaceID, afu string, size int) *backend.Sealed {
	s.t.Helper()
	return s.seal(fpgasim.Image(interfaceID, afu, size))
}

func (s *site) seal(raw []byte) *backend.Sealed {
	s.t.Helper()
	image, err := backend.Seal(bytes.NewReader(raw), int64(len(raw)), digest(raw))
	check.Must(s.t, err)
	s.t.Cleanup(func() { _ = image.Close() })
	return image
}

// asked is what the machine was asked, apart from closing, of which a FUSE server hears late.
func (s *site) asked() []string {
	s.t.Helper()
	lines := []string{}
	for _, e := range s.Trace() {
		if e.Op != "close" {
			e.Path = e.Path[strings.LastIndex(e.Path, "/")+1:]
			lines = append(lines, e.String())
		}
	}
	return lines
}

func (s *site) fault(f fpgasim.Fault) { s.t.Helper(); s.Fault(f) }

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}
