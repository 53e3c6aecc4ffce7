// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// cacheChild is the first argument of a child that does one thing and tells what it took. A process of its own has its own peak of
// memory, and its own start of everything.
const cacheChild = "cache-child"

// The stages, which the floor is the slowest of, and the whole.
const (
	stageNetwork = "network"
	stageHash    = "sha256"
	stageInflate = "inflate"
	stageFiles   = "files"
	stagePull    = "pull"
)

// errand is what a child is to do.
type errand struct {
	Stage       string
	Host        string
	Dir         string
	Blob        string
	Digest      string
	Compression string
	Form        artifact.TreeForm
	// Plain is how many bytes the tar has, Files how many files.
	Plain int64
	Files int
}

// told is what a child says.
type told struct {
	Wall, CPU time.Duration
	// Peak is the most memory in MiB, and Bytes what came from the registry.
	Peak  float64
	Bytes int64
}

// ask runs a child.
func (e errand) ask(ctx context.Context) (t told, err error) {
	arg, err := json.Marshal(e)
	if err != nil {
		return t, err
	}
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	command := exec.CommandContext(ctx, self, cacheChild, string(arg))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return t, fmt.Errorf("a child that measures %s: %w", e.Stage, err)
	}
	return t, json.Unmarshal(out, &t)
}

// answerErrand is the child's side.
func answerErrand(ctx context.Context, arg string, out io.Writer) (err error) {
	var e errand
	if err := json.Unmarshal([]byte(arg), &e); err != nil {
		return err
	}
	debug.SetGCPercent(pluginGC)
	var t told
	store, err := artifact.OpenStore(e.Dir, artifact.StoreConfig{}) // as a node has it when it is asked to pull
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	begin, used := time.Now(), ownCPU()
	switch e.Stage {
	case stageNetwork:
		err = e.network(ctx)
	case stageHash:
		e.hash()
	case stageInflate:
		err = e.inflate()
	case stageFiles:
		err = e.create()
	default:
		t.Bytes, err = e.pull(ctx, store)
	}
	if err != nil {
		return err
	}
	t.Wall, t.CPU = time.Since(begin), ownCPU()-used
	m, err := readMemory(os.Getpid())
	if err != nil {
		return err
	}
	t.Peak = m.peak - (m.resident - m.anon) // without pages of files: this program has more of them than what is shipped
	return json.NewEncoder(out).Encode(t)
}

func ownCPU() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pluginGC is the collector's setting of the plugin.
const pluginGC = 50

const stageBuffer = 128 << 10

// network reads the blob and does nothing with it.
func (e errand) network(ctx context.Context) error {
	url := "http://" + e.Host + "/v2/" + cacheRepository + "/blobs/" + e.Digest
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, stageBuffer))
	return err
}

// hash digests as many bytes as the tar has.
func (e errand) hash() {
	h, buffer := sha256.New(), make([]byte, stageBuffer)
	for left := e.Plain; left > 0; left -= stageBuffer {
		_, _ = h.Write(buffer[:min(left, stageBuffer)])
	}
}

// inflate unpacks the blob and does nothing with it.
func (e errand) inflate() error {
	f, err := os.Open(e.Blob)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, stageBuffer)
	var plain io.Reader
	if e.Compression == "gzip" {
		plain, err = gzip.NewReader(in)
	} else {
		plain, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	}
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{plain}, make([]byte, 2*stageBuffer))
	return err
}

// create makes as many bytes durable as the tar has, in as many files as the form takes.
func (e errand) create() (err error) {
	root, err := os.OpenRoot(e.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	files := e.Files
	if e.Form == artifact.TreeImage {
		files = 1
	}
	buffer, perDirectory := make([]byte, stageBuffer), len(kernelFiles())
	for n := range files {
		dir := strconv.Itoa(n / perDirectory)
		if n%perDirectory == 0 {
			if err := root.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		f, err := root.OpenFile(dir+"/"+strconv.Itoa(n), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		for left := e.Plain / int64(files); left > 0 && err == nil; left -= stageBuffer {
			_, err = f.Write(buffer[:min(left, stageBuffer)])
		}
		if files == 1 {
			err = errors.Join(err, f.Sync())
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if files == 1 {
		return nil
	}
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// pull is what a node does: from the tag to a tree that is verified and durable.
func (e errand) pull(ctx context.Context, store *artifact.Store) (received int64, err error) {
	ref, err := artifact.ParseReference(e.Host + "/" + cacheRepository + ":v1")
	if err != nil {
		return 0, err
	}
	var n atomic.Int64
	dialer := net.Dialer{}
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{e.Host},
		Transport: counting{inner: &http.Transport{DialContext: dialer.DialContext}, n: &n},
	})
	if err != nil {
		return 0, err
	}
	src := client.Source(ref, nil)
	d, err := src.Resolve(ctx)
	if err != nil {
		return 0, err
	}
	image, err := artifact.ReadImage(ctx, src, d, "linux/"+runtime.GOARCH)
	if err != nil {
		return 0, err
	}
	spec := artifact.TreeSpec{Digest: image.Digest, Layers: image.Layers, Room: 2 * e.Plain, Form: e.Form}
	tree, err := store.Unpack(ctx, spec, src.Layers(image.Layers))
	if err == nil && tree.Entries < e.Files {
		err = fmt.Errorf("%d entries of %d files: %w", tree.Entries, e.Files, fs.ErrNotExist)
	}
	return n.Load(), err
}

// counting counts the bytes of all bodies.
type counting struct {
	inner http.RoundTripper
	n     *atomic.Int64
}

// RoundTrip is http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.inner.RoundTrip(r)
	if err == nil {
		resp.Body = &countedBody{ReadCloser: resp.Body, n: c.n}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

// Read is io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}
