// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/lazylayer"
)

// lazy declares a layer of package lazylayer.
func lazy(t testing.TB, l lazylayer.Layer, err error) packed {
	t.Helper()
	check.Must(t, err)
	return declare(l.MediaType, l.Data, l.Tar)
}

func eStargz(t testing.TB, plain []byte, chunk, prefetch int) packed {
	t.Helper()
	l, err := lazylayer.EStargz(plain, chunk, prefetch)
	return lazy(t, l, err)
}

func zstdChunked(t testing.TB, plain []byte, chunk int) packed {
	t.Helper()
	l, err := lazylayer.ZstdChunked(plain, chunk)
	return lazy(t, l, err)
}

func gzipParts(t testing.TB, plain []byte, size int) []byte {
	t.Helper()
	l, err := lazylayer.GzipMembers(plain, size)
	check.Must(t, err)
	return l.Data
}

func zstdParts(t testing.TB, plain []byte, size int, between ...byte) []byte {
	t.Helper()
	l, err := lazylayer.ZstdFrames(plain, size, between...)
	check.Must(t, err)
	return l.Data
}

// fullHeader is a gzip member with every field that a header may have.
func fullHeader(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Name, w.Comment, w.Extra, w.ModTime = "layer.tar", "all fields", []byte("XX\x02\x00ab"), time.Unix(1e9, 0)
	_, err := w.Write(plain)
	check.Must(t, err)
	check.Must(t, w.Close())
	return b.Bytes()
}

// TestParts: a layer may be several compressed parts, as the tools write them that let a runtime fetch single files. The tree is that of
// the same tar in one part, without the entries that belong to the format.
func TestParts(t *testing.T) {
	large := noise(2, 300_000)
	files := []in{
		{name: cacheDir},
		{name: cacheDir + "a/kernel.cubin", content: "kernel"},
		{name: cacheDir + "empty"},
		{name: cacheDir + "large", content: large},
		{name: cacheDir + lazylayer.StargzIndex, content: "{}"},
		{name: cacheDir + lazylayer.PrefetchMark, content: "x"},
		{name: tritonDoc, content: "{}"},
	}
	plain := tarOf(t, files...)
	want := map[string]string{
		"io.triton.cache": dirText, "io.triton.cache/a": dirText, "io.triton.manifest": dirText,
		"io.triton.cache/a/kernel.cubin": fileText + "kernel", "io.triton.cache/empty": fileText, "io.triton.cache/large": fileText + large,
		"io.triton.cache/stargz.index.json": fileText + "{}", "io.triton.cache/.prefetch.landmark": fileText + "x",
		"io.triton.manifest/manifest.json": fileText + "{}",
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	skip, emptyGzip, emptyZstd := lazylayer.Skippable([]byte("not a tar")), gzipOf(t, nil), zstdOf(t, nil)
	above := eStargz(t, tarOf(t, in{name: cacheDir + ".wh.large"}, in{name: cacheDir + "empty", content: "no more"}), 1<<22, 1)
	wantAbove := maps.Clone(want)
	delete(wantAbove, "io.triton.cache/large")
	wantAbove["io.triton.cache/empty"] = fileText + "no more"
	unpacked, err := lazylayer.EStargz(plain, 1<<22, 1)
	check.Must(t, err)
	for name, layer := range map[string]packed{
		"gzip members":                    declare(ociGzip, gzipParts(t, plain, 1_000), plain),
		"gzip members, empty ones too":    declare(ociGzip, join(emptyGzip, gzipParts(t, plain, 70_000), emptyGzip, emptyGzip), plain),
		"gzip members with full headers":  declare(ociGzip, join(fullHeader(t, plain[:700]), fullHeader(t, plain[700:])), plain),
		"zstd frames":                     declare(ociZstd, zstdParts(t, plain, 1_000), plain),
		"zstd frames, skippable ones too": declare(ociZstd, join(skip, zstdParts(t, plain, 70_000, skip...), skip), plain),
		"zstd frames, empty ones too":     declare(ociZstd, join(emptyZstd, zstdParts(t, plain, 70_000), emptyZstd, emptyZstd), plain),
		"eStargz":                         eStargz(t, plain, 1<<22, 0),
		"eStargz in chunks":               eStargz(t, plain, 70_000, 0),
		"eStargz, some files first":       eStargz(t, plain, 70_000, 3),
		"eStargz that was unpacked":       pack(t, ociTar, unpacked.Tar),
		"zstd:chunked":                    zstdChunked(t, plain, 1<<22),
		"zstd:chunked in chunks":          zstdChunked(t, plain, 1_000),
		"zstd:chunked with a landmark": zstdChunked(t,
			tarOf(t, append([]in{{name: lazylayer.NoPrefetchMark, content: "\x0f"}}, files...)...), 9_000),
	} {
		t.Run(name, func(t *testing.T) {
			extractBoth(t, []packed{layer}, want)
			extractBoth(t, []packed{layer, above}, wantAbove)
			extractBoth(t, []packed{layer, layer}, want)
		})
	}
	small := tarOf(t, in{name: cacheDir + "a", content: "a"})
	for name, layer := range map[string]packed{
		"gzip": declare(ociGzip, gzipParts(t, small, 1), small), "zstd": declare(ociZstd, zstdParts(t, small, 1, skip...), small),
	} {
		t.Run(name+" parts of one byte", func(t *testing.T) {
			extractBoth(t, []packed{layer}, map[string]string{"io.triton.cache": dirText, "io.triton.cache/a": fileText + "a"})
		})
	}
}

// TestPartsCutOff: wherever a layer of several parts ends early, it is refused, also where the digest is that of what there is.
func TestPartsCutOff(t *testing.T) {
	plain := tarOf(t, in{name: cacheDir + "a", content: "kernel"}, in{name: cacheDir + "b", content: noise(3, 200)})
	for name, whole := range map[string]packed{
		"eStargz": eStargz(t, plain, 70, 1), "zstd:chunked": zstdChunked(t, plain, 70),
		"gzip with full headers":                     declare(ociGzip, append(fullHeader(t, plain[:700]), fullHeader(t, plain[700:])...), plain),
		"gzip with full headers after the tar's end": declare(ociGzip, append(gzipOf(t, plain), fullHeader(t, nil)...), plain),
	} {
		accepted := 0
		for n := range whole.data {
			cut := declare(whole.MediaType, whole.data[:n], whole.data[:n])
			cut.DiffID = whole.DiffID
			if _, err := Extract(t.Context(), []Layer{cut.Layer}, opener([]packed{cut}), nowhere{}, Options{}); err == nil {
				accepted++
			}
		}
		// An end between two parts behind the tar's end is none that can be seen: the same digest says that this is the layer.
		if after := map[string]int{"eStargz": 1, "zstd:chunked": 3, "gzip with full headers after the tar's end": 1}[name]; accepted != after {
			t.Errorf("%s: accepted at %d of %d places, expected %d", name, accepted, len(whole.data), after)
		}
	}
}

// nowhere is a Sink that keeps nothing.
type nowhere struct{}

func (nowhere) Mkdir(string, fs.FileMode) error        { return nil }
func (nowhere) File(string, fs.FileMode) (File, error) { return nowhere{}, nil }
func (nowhere) Write(p []byte) (int, error)            { return len(p), nil }
func (nowhere) Close() (int64, error)                  { return 0, nil }
func (nowhere) Remove(string, bool) error              { return nil }
func (nowhere) Finish(*Tree) error                     { return nil }

// hostileParts are streams of several parts that must be refused.
func hostileParts(t testing.TB, plain, second []byte) []hostile {
	t.Helper()
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	flipped := func(data []byte, at int) []byte {
		data = bytes.Clone(data)
		data[at] ^= 0x40
		return data
	}
	stream := func(name string, rule Rule, mediaType string, data, plain []byte) hostile {
		return hostile{name: name, layers: []packed{declare(mediaType, data, plain)}, rule: rule}
	}
	changed := func(name string, rule Rule, p packed, edit func(*packed)) hostile {
		edit(&p)
		return hostile{name: name, layers: []packed{p}, rule: rule}
	}
	zipped, zs, skip := gzipOf(t, plain), zstdOf(t, plain), lazylayer.Skippable([]byte("hidden"))
	zipped2, zs2, named := gzipParts(t, plain, 512), zstdParts(t, plain, 512), fullHeader(t, nil)
	half, rest, hidden := plain[:512], plain[512:], []byte("hidden")
	stargz, chunked := eStargz(t, plain, 3, 1), zstdChunked(t, plain, 3)
	flip := func(fromEnd int) func(*packed) {
		return func(p *packed) { p.data = flipped(p.data, len(p.data)+fromEnd) }
	}
	diffID := declare(ociTar, plain, plain).DiffID
	return []hostile{
		stream("second gzip member, a tar", RuleTrailing, ociGzip, join(zipped, gzipOf(t, second)), join(plain, second)),
		stream("bytes after the gzip member", RuleTrailing, ociGzip, join(zipped, hidden), plain),
		stream("zeros after the gzip member", RuleTrailing, ociGzip, join(zipped, make([]byte, 512)), plain),
		stream("bytes after several gzip members", RuleTrailing, ociGzip, join(zipped2, append(hidden, hidden...)), plain),
		stream("bytes between gzip members", RuleTrailing, ociGzip, join(gzipOf(t, half), hidden, gzipOf(t, rest)), plain),
		stream("zstd frame after a gzip member", RuleTrailing, ociGzip, join(zipped, zstdOf(t, nil)), plain),
		stream("skippable zstd frame after a gzip member", RuleTrailing, ociGzip, join(zipped, skip), plain),
		stream("last gzip member cut off", RuleStream, ociGzip, zipped2[:len(zipped2)-9], plain),
		stream("last gzip member cut off in its sum", RuleStream, ociGzip, zipped2[:len(zipped2)-1], plain),
		stream("second gzip member cut off in its header", RuleTrailing, ociGzip, join(zipped, named[:5]), plain),
		stream("second gzip member cut off in its extra field", RuleTrailing, ociGzip, join(zipped, named[:13]), plain),
		stream("second gzip member cut off in its name", RuleTrailing, ociGzip, join(zipped, named[:22]), plain),
		stream("gzip member cut off in its name", RuleTar, ociGzip, named[:22], nil),
		stream("last gzip member with a wrong sum", RuleStream, ociGzip, flipped(zipped2, len(zipped2)-8), plain),
		stream("second gzip member that uses the first's window", RuleStream, ociGzip, join(gzipOf(t, half), backReference(t)), plain),
		stream("gzip members without an end of the tar", RuleTar, ociGzip, gzipParts(t, plain[:1024], 100), plain[:1024]),
		stream("second zstd frame, a tar", RuleTrailing, ociZstd, join(zs, zstdOf(t, second)), join(plain, second)),
		stream("bytes after the zstd frame", RuleTrailing, ociZstd, join(zs, hidden), plain),
		stream("zeros after the zstd frame", RuleTrailing, ociZstd, join(zs, make([]byte, 512)), plain),
		stream("three bytes after the zstd frame", RuleStream, ociZstd, join(zs, []byte("hid")), plain),
		stream("bytes between zstd frames", RuleTrailing, ociZstd, join(zstdOf(t, half), hidden, zstdOf(t, rest)), plain),
		stream("bytes after a skippable zstd frame", RuleTrailing, ociZstd, join(zs, skip, hidden), plain),
		stream("gzip member after a zstd frame", RuleTrailing, ociZstd, join(zs, gzipOf(t, nil)), plain),
		stream("last zstd frame cut off", RuleStream, ociZstd, zs2[:len(zs2)-7], plain),
		stream("last zstd frame cut off in its sum", RuleStream, ociZstd, zs2[:len(zs2)-1], plain),
		stream("skippable zstd frame cut off", RuleStream, ociZstd, join(zs, skip[:len(skip)-1]), plain),
		stream("skippable zstd frame of 4 GiB", RuleStream, ociZstd, join(zs, skip[:4], []byte{0xff, 0xff, 0xff, 0xff}, skip[8:]), plain),
		stream("skippable zstd frames only", RuleTar, ociZstd, join(skip, skip), nil),
		stream("last zstd frame with a wrong sum", RuleStream, ociZstd, flipped(zs2, len(zs2)-1), plain),
		stream("zstd window of 64 MiB", RuleStream, ociZstd, bigWindow(), plain),
		stream("zstd window of 64 MiB in the second frame", RuleStream, ociZstd, join(zstdOf(t, half), bigWindow()), plain),
		stream("zstd window of 64 MiB after the tar's end", RuleStream, ociZstd, join(zs, bigWindow()), plain),
		stream("zstd window of 64 MiB behind a skippable frame", RuleStream, ociZstd, join(skip, bigWindow()), plain),
		stream("zstd frame of 64 MiB without a window", RuleStream, ociZstd, oneSegment(), plain),
		stream("second zstd frame of 64 MiB without a window", RuleStream, ociZstd, join(zstdOf(t, half), oneSegment()), plain),
		stream("second zstd frame with a dictionary", RuleStream, ociZstd, join(zstdOf(t, half), dictionary()), plain),
		changed("eStargz with the diffID of what it was made of", RuleDiffID, stargz, func(p *packed) { p.DiffID = diffID }),
		changed("eStargz with another byte in a chunk", RuleDigest, stargz, flip(-len(stargz.data)/2)),
		changed("eStargz with another byte in its footer", RuleDigest, stargz, flip(-20)),
		changed("eStargz without its footer", RuleSize, stargz, func(p *packed) { p.data = p.data[:len(p.data)-51] }),
		changed("zstd:chunked with another diffID", RuleDiffID, chunked, func(p *packed) { p.DiffID[0] ^= 1 }),
		changed("zstd:chunked with another byte in its index", RuleDigest, chunked, flip(-300)),
		changed("zstd:chunked with another byte in its footer", RuleDigest, chunked, flip(-20)),
		changed("zstd:chunked without its footer", RuleSize, chunked, func(p *packed) { p.data = p.data[:len(p.data)-72] }),
	}
}

// hostileIndexes are entries with the names that eStargz adds, and are not what it adds.
func hostileIndexes(t testing.TB) []hostile {
	t.Helper()
	one := func(name string, rule Rule, e in) hostile {
		return hostile{name: name, layers: []packed{pack(t, ociGzip, tarOf(t, e))}, rule: rule, entry: e.name}
	}
	index := lazylayer.StargzIndex
	indexes := make([]in, DefaultLimits().Entries+1)
	for i := range indexes {
		indexes[i] = in{name: index, edit: func(h *tar.Header) { h.Uid = i * 7919 % 2_000_003 }} // not a bomb
	}
	return []hostile{
		one("eStargz index that is a symbolic link", RuleType, in{name: index, edit: kind(tar.TypeSymlink, "/etc/passwd")}),
		one("eStargz index that is a hard link", RuleType, in{name: index, edit: kind(tar.TypeLink, cacheDir+"a")}),
		one("eStargz index that is a directory", RulePath, in{name: index + "/"}),
		one("eStargz index with setuid", RuleMode, in{name: index, edit: mode(0o4755)}),
		one("eStargz index with an attribute", RuleXattr, in{name: index, edit: pax("SCHILY.xattr.user.x", "y")}),
		one("eStargz index in another directory", RulePath, in{name: "etc/" + index}),
		one("eStargz landmark with another name", RulePath, in{name: ".prefetch.landmark2"}),
		{name: "eStargz index larger than allowed", rule: RuleFileSize, entry: index, layers: []packed{
			pack(t, ociTar, tarOf(t, in{name: index, content: strings.Repeat("x", 1<<20+1)})),
		}},
		{name: "more eStargz indexes than allowed", rule: RuleEntries, layers: []packed{
			pack(t, ociZstd, tarOf(t, indexes...)),
		}},
		{name: "eStargz index cut off", rule: RuleTar, layers: []packed{
			pack(t, ociGzip, append(rawHeader(index, tar.TypeReg, octal(4096)), block("{}")...)),
		}},
	}
}

// hostileManyParts are amounts that are spread over many parts.
func hostileManyParts(t testing.TB) []hostile {
	t.Helper()
	bomb := rawTar(rawHeader(cacheDir+"bomb", tar.TypeReg, octal(100<<20)), make([]byte, 100<<20))
	var large []in
	for i := range 80 {
		large = append(large, in{name: fmt.Sprintf("%s%d", cacheDir, i), content: strings.Repeat("0123456789abcdef", 1<<12)})
	}
	total := tarOf(t, large...)
	return []hostile{
		{name: "zip bomb in gzip members", rule: RuleRatio, entry: cacheDir + "bomb", layers: []packed{
			declare(ociGzip, gzipParts(t, bomb, 1<<20), bomb),
		}},
		{name: "zip bomb in zstd frames", rule: RuleRatio, entry: cacheDir + "bomb", layers: []packed{
			declare(ociZstd, zstdParts(t, bomb, 1<<20), bomb),
		}},
		{name: "zip bomb of eStargz", rule: RuleRatio, entry: cacheDir + "bomb", layers: []packed{eStargz(t, bomb, 4<<20, 0)}},
		{name: "zip bomb of zstd:chunked", rule: RuleRatio, entry: cacheDir + "bomb", layers: []packed{zstdChunked(t, bomb, 4<<20)}},
		{name: "more than allowed in gzip members", rule: RuleTotal, layers: []packed{declare(ociGzip, gzipParts(t, total, 100_000), total)}},
		{name: "more than allowed in zstd frames", rule: RuleTotal, layers: []packed{declare(ociZstd, zstdParts(t, total, 100_000), total)}},
		{name: "100,000 empty gzip members", rule: RuleTar, layers: []packed{declare(ociGzip, bytes.Repeat(gzipOf(t, nil), 100_000), nil)}},
		{name: "100,000 empty zstd frames", rule: RuleTar, layers: []packed{declare(ociZstd, bytes.Repeat(zstdOf(t, nil), 100_000), nil)}},
		{name: "100,000 skippable zstd frames", rule: RuleTar, layers: []packed{
			declare(ociZstd, bytes.Repeat(lazylayer.Skippable(nil), 100_000), nil),
		}},
	}
}

const zstdMagic = 0xFD2FB528

// bigWindow is the beginning of a zstd frame that asks for 64 MiB.
func bigWindow() []byte {
	return append(binary.LittleEndian.AppendUint32(nil, zstdMagic), 0x00, 16<<3, 0x01, 0x00, 0x00)
}

// oneSegment is a zstd frame of one segment, which has no window but its content, of 64 MiB of the letter x.
func oneSegment() []byte {
	const single, size = 0x20, 0x80
	b := append(binary.LittleEndian.AppendUint32(nil, zstdMagic), single|size)
	b = binary.LittleEndian.AppendUint32(b, 64<<20)
	const blocks, repeat, last = 512, 1 << 1, 1
	for i := range blocks {
		header := uint32(128<<10)<<3 | repeat
		if i == blocks-1 {
			header |= last
		}
		b = append(b, byte(header), byte(header>>8), byte(header>>16), 'x')
	}
	return b
}

// dictionary is the beginning of a zstd frame that needs a dictionary.
func dictionary() []byte {
	return append(binary.LittleEndian.AppendUint32(nil, zstdMagic), 0x01, 1<<3, 0x07, 0x01, 0x00, 0x00)
}

// backReference is a gzip member of which the first bytes are said to be a copy of some before them.
func backReference(t testing.TB) []byte {
	t.Helper()
	var head bytes.Buffer
	w := gzip.NewWriter(&head)
	check.Must(t, w.Close())
	// A block with fixed codes: the length 3 at the distance 1, and the end of the block (RFC 1951, 3.2.6).
	return append(head.Bytes()[:10], 0x03, 0x02, 0x00, 0, 0, 0, 0, 3, 0, 0, 0)
}
