// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/lone"
)

// The media types of layers.
const (
	gzipLayer  = "application/vnd.oci.image.layer.v1.tar+gzip"
	zstdLayer  = "application/vnd.oci.image.layer.v1.tar+zstd"
	imageType  = "application/vnd.oci.image.manifest.v1+json"
	configType = "application/vnd.oci.image.config.v1+json"
)

// cacheSize is a cache of kernels: its files have about so many bytes together.
type cacheSize struct {
	bytes int64
	files int
	// pulls is how often it is pulled: more for what takes milliseconds, of which anything else that the machine does is a large part.
	pulls int
}

// cacheImage is a cache of kernels as an image of one layer.
type cacheImage struct {
	cacheSize
	// compression is gzip or zstd, blob the file with the layer, and plain how many bytes its tar has.
	compression string
	blob        string
	plain       int64
	layer       artifact.TreeLayer
	manifest    []byte
	config      []byte
	// warm: claims are measured that find it on the node.
	warm bool
}

// makeImages writes the layers of a cache, one for each compression, in one pass.
func makeImages(dir string, size cacheSize) (images []*cacheImage, err error) {
	diffID := sha256.New()
	var packers []io.WriteCloser
	var ends []func() error
	to := []io.Writer{diffID}
	for _, compression := range []string{"gzip", "zstd"} {
		i := &cacheImage{cacheSize: size, compression: compression, blob: filepath.Join(dir, fmt.Sprintf("%d.%s", size.files, compression))}
		f, err := os.Create(i.blob)
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		out := io.MultiWriter(f, sum)
		packer := io.WriteCloser(gzip.NewWriter(out))
		if compression == "zstd" {
			if packer, err = zstd.NewWriter(out); err != nil {
				return nil, errors.Join(err, f.Close())
			}
		}
		packers, to, images = append(packers, packer), append(to, packer), append(images, i)
		ends = append(ends, func() error { return i.describe(f, sum, diffID) })
	}
	counted := &counter{w: io.MultiWriter(to...)}
	err = writeTar(counted, size)
	for n, i := range images {
		i.plain = counted.n
		err = errors.Join(err, packers[n].Close(), ends[n]())
	}
	return images, err
}

// describe makes the config and the manifest.
func (i *cacheImage) describe(f *os.File, sum, diffID hash.Hash) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	mediaType := map[string]string{"gzip": gzipLayer, "zstd": zstdLayer}[i.compression]
	i.layer = artifact.TreeLayer{
		Descriptor: artifact.Descriptor{MediaType: mediaType, Digest: artifact.Digest(sum.Sum(nil)), Size: end},
		DiffID:     artifact.Digest(diffID.Sum(nil)),
	}
	i.config, err = json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{i.layer.DiffID.String()}},
	})
	if err != nil {
		return err
	}
	wire := func(mediaType string, digest artifact.Digest, size int64) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": digest.String(), "size": size}
	}
	i.manifest, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": imageType,
		"config": wire(configType, artifact.DigestOf(i.config), int64(len(i.config))),
		"layers": []any{wire(mediaType, i.layer.Digest, end)},
	})
	return err
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

// Write is io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// kernelFiles are what one compiled kernel has in a cache: the share of the bytes, and how much of it is machine code, which hardly
// compresses. The rest is text.
func kernelFiles() []struct {
	name        string
	share, code float64
} {
	return []struct {
		name        string
		share, code float64
	}{
		{"kernel.json", 0.01, 0},
		{"__grp__kernel.json", 0.01, 0},
		{"kernel.source", 0.08, 0},
		{"kernel.ttir", 0.08, 0},
		{"kernel.ttgir", 0.12, 0},
		{"kernel.llir", 0.20, 0},
		{"kernel.ptx", 0.20, 0},
		{"kernel.cubin", 0.30, 0.7},
	}
}

// writeTar writes a cache as a tar, the same one each time.
func writeTar(w io.Writer, size cacheSize) error {
	out := bufio.NewWriterSize(w, 1<<20)
	t := tar.NewWriter(out)
	r := rand.New(rand.NewPCG(uint64(size.files), 1))
	kinds := kernelFiles()
	perKernel := float64(size.bytes) / float64(size.files/len(kinds))
	var content []byte
	for n := range size.files / len(kinds) * len(kinds) {
		kind := kinds[n%len(kinds)]
		length := int(perKernel * kind.share * (0.5 + r.Float64()))
		content = appendContent(content[:0], r, length, kind.code)
		entry := fmt.Sprintf("%026X%026X", n/len(kinds)*7919, n/len(kinds))
		if strings.HasSuffix(kind.name, ".json") {
			content = asJSON(entry, kind.name, content)
		}
		name := "io.triton.cache/" + entry + "/" + kind.name
		if err := t.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := t.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), out.Flush())
}

// appendContent appends lines of something like assembler, and machine code.
func appendContent(b []byte, r *rand.Rand, length int, code float64) []byte {
	words := []string{"mov.b32", "ld.global.nc.v4.f32", "fma.rn.f32", "setp.lt.s32", "@%p1 bra", "mma.sync.aligned", "cvt.rn.bf16", "shl.b64"}
	for begin := len(b); len(b) < begin+length; {
		if r.Float64() < code {
			for range 16 {
				v := r.Uint64()
				b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), 0, 0, byte(v>>40)&7)
			}
			continue
		}
		v := r.Uint32()
		b = append(b, '\t')
		b = append(b, words[v&7]...)
		for v >>= 3; v > 1<<9; v >>= 10 {
			b = append(b, " %r"...)
			b = append(b, '0'+byte(v>>6&7), '0'+byte(v>>3&7), '0'+byte(v&7), ',')
		}
		b = append(b, ';', '\n')
	}
	return b[:length]
}

// asJSON makes of lines what Triton has beside a kernel of an entry: what it is for, or where its files are, and text.
func asJSON(entry, name string, lines []byte) []byte {
	text := bytes.Map(func(c rune) rune {
		if c < ' ' || c == '"' || c == '\\' {
			return ' '
		}
		return c
	}, lines)
	if strings.HasPrefix(name, "__grp__") {
		return fmt.Appendf(nil, `{"child_paths": {"kernel.json": "%s/%s/kernel.json"}, "text": "%s"}`, warmHome, entry, text)
	}
	return fmt.Appendf(nil, `{"name": "kernel", "target": {"backend": "hip", "arch": "gfx942", "warp_size": 64}, "text": "%s"}`, text)
}

const cacheRepository = "team/kernels"

// serveImage is a registry with one image, on loopback. What it sends comes from the page cache.
func serveImage(i *cacheImage) (host string, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: i, ReadHeaderTimeout: lone.Patience}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), server.Close, nil
}

// ServeHTTP is http.Handler.
func (i *cacheImage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v2/"+cacheRepository+"/")
	switch small := map[string][]byte{
		"blobs/" + artifact.DigestOf(i.config).String(): i.config,
		"manifests/v1": i.manifest, "manifests/" + artifact.DigestOf(i.manifest).String(): i.manifest,
	}; {
	case r.URL.Path == "/v2/":
	case path == "blobs/"+i.layer.Digest.String():
		f, err := os.Open(i.blob)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = f.Close() }()
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, f)
	case small[path] != nil:
		w.Header().Set("Content-Type", imageType)
		w.Header().Set("Docker-Content-Digest", artifact.DigestOf(small[path]).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(small[path])))
		if r.Method != http.MethodHead {
			_, _ = w.Write(small[path])
		}
	default:
		http.NotFound(w, r)
	}
}
