// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fettle-dev/fettle/test/check"
)

// hostile is an image that must be refused, with the rule and the entry that the error names.
type hostile struct {
	name   string
	layers []packed
	rule   Rule
	entry  string
	// slow: in the directory it would make so many files that the image alone does.
	slow bool
}

func kind(flag byte, link string) func(*tar.Header) {
	return func(h *tar.Header) { h.Typeflag, h.Linkname, h.Size = flag, link, 0 }
}

func pax(key, value string) func(*tar.Header) {
	return func(h *tar.Header) { h.PAXRecords, h.Format = map[string]string{key: value}, tar.FormatPAX }
}

func mode(m int64) func(*tar.Header) { return func(h *tar.Header) { h.Mode = m } }

// paxBlock is an extended header with records as they are given.
func paxBlock(kind byte, records string) []byte {
	return append(rawHeader("PaxHeaders/0", kind, octal(int64(len(records)))), block(records)...)
}

func record(key, value string) string {
	n := len(key) + len(value) + 3
	size := n + len(fmt.Sprint(n))
	if len(fmt.Sprint(size)) != len(fmt.Sprint(n)) {
		size = n + len(fmt.Sprint(size))
	}
	return fmt.Sprintf("%d %s=%s\n", size, key, value)
}

// endless is a layer whose plain bytes are zeros behind a header that declares them.
func endless(t testing.TB, mib int) packed {
	t.Helper()
	plain := rawTar(rawHeader(cacheDir+"bomb", tar.TypeReg, octal(int64(mib)<<20)), make([]byte, mib<<20))
	return pack(t, ociGzip, plain)
}

// crowd is a layer of n empty files.
func crowd(t testing.TB, mediaType string, n int) packed {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		name := fmt.Sprintf("%sk%d/file-%07d.cubin", cacheDir, i%64, i)
		check.Must(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}))
	}
	check.Must(t, w.Close())
	return pack(t, mediaType, b.Bytes())
}

// hostileTrees are the images of ordinary size.
func hostileTrees(t testing.TB) []hostile {
	t.Helper()
	good := in{name: cacheDir + "a/kernel.cubin", content: "kernel"}
	one := func(name string, rule Rule, entry string, entries ...in) hostile {
		return hostile{name: name, layers: []packed{pack(t, ociGzip, tarOf(t, entries...))}, rule: rule, entry: entry}
	}
	raw := func(name string, rule Rule, entry string, plain []byte) hostile {
		return hostile{name: name, layers: []packed{pack(t, ociGzip, plain)}, rule: rule, entry: entry}
	}
	file := func(name string, edit func(*tar.Header)) in { return in{name: name, edit: edit} }
	x := cacheDir + "x"
	list := []hostile{
		// Names.
		one("parent traversal", RuleName, "../../escaped", good, file("../../escaped", nil)),
		one("traversal inside a name", RuleName, cacheDir+"../../escaped", good, file(cacheDir+"../../escaped", nil)),
		one("traversal at the end", RuleName, cacheDir+"..", good, file(cacheDir+"..", nil)),
		one("directory that is a traversal", RuleName, "../escaped/", file("../escaped/", nil)),
		one("absolute name", RuleName, "/etc/ld.so.preload", good, file("/etc/ld.so.preload", nil)),
		one("absolute directory", RuleName, "/", file("/", nil)),
		one("dot part", RuleName, "./"+cacheDir+"x", file("./"+cacheDir+"x", nil)),
		one("empty part", RuleName, cacheDir+"/x", file(cacheDir+"/x", nil)),
		raw("file with a slash at its end", RuleName, x+"/", rawTar(rawHeader(x+"/", tar.TypeReg, octal(0)))),
		one("escape sequence", RuleName, cacheDir+"\x1b[2J", file(cacheDir+"\x1b[2J", nil)),
		one("line break", RuleName, cacheDir+"a\nb", file(cacheDir+"a\nb", nil)),
		one("DEL", RuleName, cacheDir+"a\x7f", file(cacheDir+"a\x7f", nil)),
		one("C1 control", RuleName, cacheDir+"a\u0085", file(cacheDir+"a\u0085", nil)),
		one("name in reverse", RuleName, cacheDir+"a\u202egnp.exe", file(cacheDir+"a\u202egnp.exe", nil)),
		raw("not UTF-8", RuleName, cacheDir+"\xff\xfe", rawTar(rawHeader(cacheDir+"\xff\xfe", tar.TypeReg, octal(0)))),
		raw("not UTF-8 in a PAX path", RuleName, cacheDir+"\xc3\x28",
			rawTar(paxBlock(tar.TypeXHeader, record("path", cacheDir+"\xc3\x28")), rawHeader("x", tar.TypeReg, octal(0)))),
		raw("NUL in a PAX path", RuleTar, "",
			rawTar(paxBlock(tar.TypeXHeader, record("path", cacheDir+"x\x00.so")), rawHeader("x", tar.TypeReg, octal(0)))),
		one("part of 256 bytes", RuleName, cacheDir+strings.Repeat("n", 256), file(cacheDir+strings.Repeat("n", 256), nil)),
		one("33 parts", RuleName, cacheDir+strings.Repeat("d/", 31)+"x", file(cacheDir+strings.Repeat("d/", 31)+"x", nil)),
		one("path of 4097 bytes", RuleName, cacheDir+strings.Repeat(strings.Repeat("n", 250)+"/", 16)+strings.Repeat("n", 65),
			file(cacheDir+strings.Repeat(strings.Repeat("n", 250)+"/", 16)+strings.Repeat("n", 65), nil)),
		raw("empty name", RuleName, "", rawTar(rawHeader("", tar.TypeReg, octal(0)))),
		raw("GNU long name that is a traversal", RuleName, "../../long",
			rawTar(rawHeader("././@LongLink", tar.TypeGNULongName, octal(11)), block("../../long\x00"), rawHeader("x", tar.TypeReg, octal(0)))),
		// Places.
		one("outside the cache", RulePath, "usr/lib/libc.so.6", good, file("usr/lib/libc.so.6", nil)),
		one("cache's name as a prefix", RulePath, "io.triton.cache-evil/x", file("io.triton.cache-evil/x", nil)),
		one("cache's name as a file", RulePath, "io.triton.cache", file("io.triton.cache", nil)),
		one("beside the manifest", RulePath, "io.triton.manifest/other", file("io.triton.manifest/other", nil)),
		// Types.
		one("absolute symbolic link", RuleType, x, file(x, kind(tar.TypeSymlink, "/etc/passwd"))),
		one("symbolic link with ..", RuleType, x, file(x, kind(tar.TypeSymlink, "../../../etc/passwd"))),
		one("symbolic link and a file through it", RuleType, x, file(x, kind(tar.TypeSymlink, "/tmp")), file(x+"/file", nil)),
		one("symbolic link inside the cache", RuleType, x, good, file(x, kind(tar.TypeSymlink, "a"))),
		one("hard link out", RuleType, x, file(x, kind(tar.TypeLink, "/etc/shadow"))),
		one("hard link inside", RuleType, x, good, file(x, kind(tar.TypeLink, good.name))),
		one("character device", RuleType, x, file(x, kind(tar.TypeChar, ""))),
		one("block device", RuleType, x, file(x, kind(tar.TypeBlock, ""))),
		one("named pipe", RuleType, x, file(x, kind(tar.TypeFifo, ""))),
		raw("contiguous file", RuleType, x, rawTar(rawHeader(x, tar.TypeCont, octal(0)))),
		raw("unknown type", RuleType, x, rawTar(rawHeader(x, 'Z', octal(0)))),
		raw("GNU sparse file", RuleSparse, x, rawTar(gnuSparse(x))),
		raw("PAX sparse file 0.1", RuleSparse, x, rawTar(paxBlock(tar.TypeXHeader, record("GNU.sparse.major", "0")+
			record("GNU.sparse.minor", "1")+record("GNU.sparse.size", "1073741824")+record("GNU.sparse.numblocks", "0")+
			record("GNU.sparse.map", "")), rawHeader(x, tar.TypeReg, octal(0)))),
		raw("PAX sparse file 1.0 of another name", RuleSparse, "../../sparse", rawTar(paxBlock(tar.TypeXHeader, record("GNU.sparse.major", "1")+
			record("GNU.sparse.minor", "0")+record("GNU.sparse.name", "../../sparse")+record("GNU.sparse.realsize", "1099511627776")),
			rawHeader(x, tar.TypeReg, octal(512)), block("0\n"))),
		// Modes and attributes.
		one("setuid", RuleMode, x, file(x, mode(0o4755))),
		one("setgid", RuleMode, x, file(x, mode(0o2755))),
		one("file capability", RuleXattr, x, file(x, pax("SCHILY.xattr.security.capability", "\x01\x00\x00\x02"))),
		one("trusted attribute", RuleXattr, x, file(x, pax("SCHILY.xattr.trusted.overlay.redirect", "/etc"))),
		one("opaque attribute on a directory", RuleXattr, x+"/", file(x+"/", pax("SCHILY.xattr.trusted.overlay.opaque", "y"))),
		one("SELinux label", RuleXattr, x, file(x, pax("SCHILY.xattr.security.selinux", "system_u:object_r:container_file_t:s0"))),
		one("libarchive's attribute", RuleXattr, x, file(x, pax("LIBARCHIVE.xattr.user.x", "eA"))),
		// PAX.
		raw("global PAX header", RulePAX, "../../global", rawTar(rawGlobal(record("path", "../../global")),
			rawHeader(x, tar.TypeReg, octal(0)))),
		one("unknown PAX key", RulePAX, x, file(x, pax("VENDOR.key", "value"))),
		raw("PAX linkpath of a file", RulePAX, x,
			rawTar(paxBlock(tar.TypeXHeader, record("linkpath", "/etc/shadow")), rawHeader(x, tar.TypeReg, octal(0)))),
		raw("PAX path over a harmless name", RuleName, "../../pax",
			rawTar(paxBlock(tar.TypeXHeader, record("path", "../../pax")), rawHeader(x, tar.TypeReg, octal(0)))),
		raw("PAX size over a harmless size", RuleTar, x,
			rawTar(paxBlock(tar.TypeXHeader, record("size", "1000000")), rawHeader(x, tar.TypeReg, octal(0)))),
		raw("negative PAX size", RuleTar, "",
			rawTar(paxBlock(tar.TypeXHeader, record("size", "-1")), rawHeader(x, tar.TypeReg, octal(0)))),
		raw("PAX record that lies about its length", RuleTar, "",
			rawTar(paxBlock(tar.TypeXHeader, "999 path=x\n"), rawHeader(x, tar.TypeReg, octal(0)))),
		{name: "PAX header of 2 MiB", rule: RuleTar, layers: []packed{pack(t, ociTar,
			rawTar(paxBlock(tar.TypeXHeader, record("path", strings.Repeat("p", 2<<20))), rawHeader(x, tar.TypeReg, octal(0))))}},
		// Sizes.
		raw("size beyond the tar's end", RuleTar, x, rawTar(rawHeader(x, tar.TypeReg, octal(1<<20)))),
		raw("size that ends within the next content", RuleTar, "", rawTar(rawHeader(x, tar.TypeReg, octal(512)),
			rawHeader(x+"2", tar.TypeReg, octal(3)), block("abc"))),
		raw("negative size", RuleTar, "", rawTar(rawHeader(x, tar.TypeReg, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))),
		raw("size of 8 EiB", RuleFileSize, x, rawTar(rawHeader(x, tar.TypeReg, "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"))),
		raw("size that is no number", RuleTar, "", rawTar(rawHeader(x, tar.TypeReg, "elephant\x00"))),
		raw("directory with a content", RuleTar, x+"/", rawTar(rawHeader(x+"/", tar.TypeDir, octal(512)), block("hidden"))),
		raw("wrong checksum", RuleTar, "", func() []byte {
			b := rawTar(rawHeader(x, tar.TypeReg, octal(0)))
			b[0] ^= 1
			return b
		}()),
		// Names that are there already.
		one("same file twice", RuleDuplicate, good.name, good, good),
		one("same directory twice", RuleDuplicate, x+"/", file(x+"/", nil), file(x+"/", nil)),
		one("file and then a directory", RuleDuplicate, x+"/", file(x, nil), file(x+"/", nil)),
		one("directory and then a file", RuleDuplicate, x, file(x+"/", nil), file(x, nil)),
		one("file below a file", RuleDuplicate, x+"/y", file(x, nil), file(x+"/y", nil)),
		// Whiteouts.
		one("whiteout in the only layer", RuleWhiteout, cacheDir+".wh.a", good, file(cacheDir+".wh.a", nil)),
		{
			name: "same whiteout twice", rule: RuleDuplicate, entry: cacheDir + ".wh.a",
			layers: []packed{pack(t, ociGzip, tarOf(t, good)), pack(t, ociGzip, tarOf(t, file(cacheDir+".wh.a", nil), file(cacheDir+".wh.a", nil)))},
		},
		{
			name: "same opaque directory twice", rule: RuleDuplicate, entry: cacheDir + opaqueWhiteout,
			layers: []packed{
				pack(t, ociGzip, tarOf(t, good)),
				pack(t, ociGzip, tarOf(t, file(cacheDir+opaqueWhiteout, nil), file(cacheDir+opaqueWhiteout, nil))),
			},
		},
		one("opaque directory in the only layer", RuleWhiteout, cacheDir+opaqueWhiteout, file(cacheDir+opaqueWhiteout, nil)),
		{
			name: "whiteout of ..", rule: RuleWhiteout, entry: cacheDir + ".wh...",
			layers: []packed{pack(t, ociGzip, tarOf(t, good)), pack(t, ociGzip, tarOf(t, file(cacheDir+".wh...", nil)))},
		},
		{
			name: "whiteout of nothing", rule: RuleWhiteout, entry: cacheDir + ".wh.",
			layers: []packed{pack(t, ociGzip, tarOf(t, good)), pack(t, ociGzip, tarOf(t, file(cacheDir+".wh.", nil)))},
		},
		{
			name: "whiteout with a content", rule: RuleWhiteout, entry: cacheDir + ".wh.a",
			layers: []packed{pack(t, ociGzip, tarOf(t, good)), pack(t, ociGzip, tarOf(t, in{name: cacheDir + ".wh.a", content: "x"}))},
		},
		{
			name: "whiteout outside the cache", rule: RulePath, entry: ".wh.etc",
			layers: []packed{pack(t, ociGzip, tarOf(t, good)), pack(t, ociGzip, tarOf(t, file(".wh.etc", nil)))},
		},
		{
			name: "symbolic link in a second layer", rule: RuleType, entry: cacheDir + "a",
			layers: []packed{pack(t, ociGzip, tarOf(t, good)), pack(t, ociGzip, tarOf(t, file(cacheDir+"a", kind(tar.TypeSymlink, "/etc"))))},
		},
	}
	return slices.Concat(hostileIndexes(t), list, hostileStreams(t, good))
}

func gnuSparse(name string) []byte {
	b := rawHeader(name, tar.TypeGNUSparse, octal(0))
	copy(b[257:], "ustar  \x00")
	copy(b[386:], octal(0)+octal(0))
	copy(b[483:], octal(1<<30))
	return sealed(b)
}

func rawGlobal(records string) []byte {
	return append(rawHeader("GlobalHead.0.0", tar.TypeXGlobalHeader, octal(int64(len(records)))), block(records)...)
}

// hostileStreams lie below the tar.
func hostileStreams(t testing.TB, good in) []hostile {
	t.Helper()
	plain := tarOf(t, good)
	zipped, zs := gzipOf(t, plain), zstdOf(t, plain)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	flipped := func(data []byte, at int) []byte {
		data = bytes.Clone(data)
		data[at] ^= 0x40
		return data
	}
	stream := func(name string, rule Rule, mediaType string, data, plain []byte) hostile {
		return hostile{name: name, layers: []packed{declare(mediaType, data, plain)}, rule: rule}
	}
	changed := func(name string, rule Rule, edit func(*packed)) hostile {
		p := declare(ociGzip, zipped, plain)
		edit(&p)
		return hostile{name: name, layers: []packed{p}, rule: rule}
	}
	second := tarOf(t, in{name: cacheDir + "second", content: "hidden"})
	return append([]hostile{
		stream("second tar after the first one's end", RuleTrailing, ociGzip, gzipOf(t, join(plain, second)), join(plain, second)),
		stream("bytes after the tar's end", RuleTrailing, ociTar, join(plain, block("hidden")), join(plain, block("hidden"))),
		stream("2 MiB of zeros after the tar's end", RuleTrailing, ociTar, join(plain, make([]byte, 2<<20)), join(plain, make([]byte, 2<<20))),
		stream("no end of the tar", RuleTar, ociGzip, gzipOf(t, plain[:1024]), plain[:1024]),
		stream("half an end of the tar", RuleTar, ociGzip, gzipOf(t, plain[:len(plain)-512]), plain[:len(plain)-512]),
		stream("tar cut off in a header", RuleTar, ociGzip, gzipOf(t, plain[:100]), plain[:100]),
		stream("nothing", RuleTar, ociGzip, nil, nil),
		stream("an empty tar file", RuleTar, ociTar, nil, nil),
		stream("gzip cut off", RuleStream, ociGzip, zipped[:len(zipped)-9], plain),
		stream("gzip with a wrong checksum", RuleStream, ociGzip, flipped(zipped, len(zipped)-8), plain),
		stream("gzip that lies about its length", RuleStream, ociGzip, flipped(zipped, len(zipped)-4), plain),
		stream("gzip declared as zstd", RuleStream, ociZstd, zipped, plain),
		stream("zstd declared as gzip", RuleStream, ociGzip, zs, plain),
		stream("gzip declared as a bare tar", RuleTar, ociTar, zipped, zipped),
		stream("zstd with a wrong checksum", RuleStream, ociZstd, flipped(zs, len(zs)-1), plain),
		stream("unknown media type", RuleMedia, "application/x-tar\x1b[2J", plain, plain),
		changed("other bytes than the digest's", RuleDigest, func(p *packed) { p.Digest[0] ^= 1 }),
		changed("other tar than the diffID's", RuleDiffID, func(p *packed) { p.DiffID[0] ^= 1 }),
		changed("layer longer than declared", RuleSize, func(p *packed) { p.data = join(p.data, []byte("more")) }),
		changed("layer shorter than declared", RuleSize, func(p *packed) { p.data = p.data[:len(p.data)-1] }),
		changed("changed before the tar's end", RuleDigest, func(p *packed) { p.data = flipped(p.data, len(p.data)/2) }),
		changed("changed at its beginning", RuleDigest, func(p *packed) { p.data = flipped(p.data, 0) }),
		changed("another layer, cut off", RuleSize, func(p *packed) { p.data = zs[:len(zs)/2] }),
		changed("another layer of a registry's own", RuleDigest, func(p *packed) { *p = replaced(*p, tarOf(t, in{name: "../out"})) }),
		changed("changed after the tar's end", RuleDigest, func(p *packed) { p.data = flipped(p.data, len(p.data)-1) }),
		{name: "wrong diffID of a second layer", rule: RuleDiffID, layers: []packed{
			pack(t, ociGzip, plain), func() packed { p := pack(t, ociZstd, second); p.DiffID[9] ^= 1; return p }(),
		}},
	}, hostileParts(t, plain, second)...)
}

// replaced is a layer of a registry that gives other bytes for it, as many as were declared.
func replaced(p packed, other []byte) packed {
	p.MediaType, p.data = ociTar, other
	p.Size = int64(len(other))
	return p
}

// hostileAmounts are too much of what is allowed.
func hostileAmounts(t testing.TB) []hostile {
	t.Helper()
	names := make([]in, 0, 40)
	for i := range 40 {
		names = append(names, in{name: fmt.Sprintf("%s%s%d", cacheDir, strings.Repeat(strings.Repeat("n", 250)+"/", 15), i)})
	}
	random := strings.Repeat("0123456789abcdef", 1<<12)
	var large []in
	for i := range 80 {
		large = append(large, in{name: fmt.Sprintf("%s%d", cacheDir, i), content: random})
	}
	deep := make([]in, 0, 5_000)
	for i := range cap(deep) {
		deep = append(deep, in{name: fmt.Sprintf("%s%d%s/x", cacheDir, i, strings.Repeat("/d", 29))})
	}
	shallow := make([]in, 0, 400)
	for i := range cap(shallow) {
		shallow = append(shallow, in{name: fmt.Sprintf("%s%d/%s/x", cacheDir, i, strings.Repeat("n", 200))})
	}
	return []hostile{
		{name: "150,000 directories without an entry", slow: true, rule: RuleEntries, layers: []packed{
			pack(t, ociZstd, tarOf(t, deep...)),
		}},
		{name: "names of directories without an entry", rule: RuleNames, layers: []packed{pack(t, ociZstd, tarOf(t, shallow...))}},
		{name: "zip bomb, gzip", rule: RuleRatio, entry: cacheDir + "bomb", layers: []packed{endless(t, 100)}},
		{name: "zip bomb, zstd", rule: RuleRatio, entry: cacheDir + "bomb", layers: []packed{
			pack(t, ociZstd, rawTar(rawHeader(cacheDir+"bomb", tar.TypeReg, octal(64<<20)), make([]byte, 64<<20))),
		}},
		{name: "zip bomb of PAX headers", rule: RuleRatio, layers: []packed{
			pack(t, ociGzip, bytes.Repeat(paxBlock(tar.TypeXHeader, record("uname", strings.Repeat("u", 500<<10))), 64)),
		}},
		{name: "10^6 entries", slow: true, rule: RuleEntries, layers: []packed{crowd(t, ociZstd, 1_000_000)}},
		{name: "names of 150 kB", rule: RuleNames, layers: []packed{pack(t, ociTar, tarOf(t, names...))}},
		{name: "file larger than allowed", rule: RuleFileSize, entry: cacheDir + "large", layers: []packed{
			pack(t, ociTar, tarOf(t, in{name: cacheDir + "large", content: strings.Repeat(random, 17)})),
		}},
		{name: "more than allowed in one layer", rule: RuleTotal, layers: []packed{pack(t, ociTar, tarOf(t, large...))}},
		{name: "more than allowed in two layers", rule: RuleTotal, layers: []packed{
			pack(t, ociTar, tarOf(t, large[:45]...)), pack(t, ociTar, tarOf(t, large[35:]...)),
		}},
	}
}

// limitsFor are small where a case is about them, and those of every day otherwise.
func limitsFor(h hostile) Limits {
	switch h.rule {
	case RuleTotal:
		return Limits{Total: 4 << 20}
	case RuleFileSize:
		return Limits{File: 1 << 20}
	case RuleNames:
		return Limits{Names: 100_000}
	default:
		return Limits{}
	}
}

// maxHeap is how much memory an extraction may hold beyond what the test itself does.
const maxHeap = 64 << 20

// TestHostileImages: each is refused by its rule, with the entry named, and leaves nothing outside the sink's directory.
func TestHostileImages(t *testing.T) { wantRefused(t, hostileTrees(t), 156, 18) }

// TestHugeImages: so is what is too much. The race detector would take minutes for it: see HUGE_TESTS in the Makefile.
func TestHugeImages(t *testing.T) {
	wantRefused(t, slices.Concat(hostileManyParts(t), hostileAmounts(t)), 19, 6)
}

// wantRefused also wants so many images, refused by so many rules.
func wantRefused(t *testing.T, all []hostile, images, rules int) {
	t.Helper()
	seen := map[Rule]int{}
	for i, h := range all {
		for sink, build := range sinks() {
			if h.slow && sink != "image" {
				continue
			}
			base := t.TempDir()
			check.Must(t, os.WriteFile(filepath.Join(base, "escaped"), []byte("before"), 0o600))
			dir := filepath.Join(base, "store", "tmp")
			s, _ := build(t, openRoot(t, dir))
			before := surroundings(t, base, dir)
			heap := watchHeap()
			tree, err := Extract(t.Context(), layersOf(h.layers), opener(h.layers), s, Options{Paths: cachePaths, Limits: limitsFor(h)})
			peak := heap()
			var own *Error
			switch {
			case !errors.As(err, &own) || tree != nil:
				t.Errorf("%s, %s: got %v, want the rule on %s", h.name, sink, err, h.rule)
				continue
			case own.Rule != h.rule || own.Layer != len(h.layers) || h.entry != "" && own.Entry != h.entry || !errors.Is(err, h.rule.kind()):
				t.Errorf("%s, %s: rule %q, layer %d, entry %q, want %q of %d in %q: %v",
					h.name, sink, own.Rule, own.Layer, own.Entry, h.rule, len(h.layers), h.entry, err)
			case strings.ContainsAny(err.Error(), "\n\x00\x1b"):
				t.Errorf("%s: not fit to be read: %q", h.name, err)
			case peak > maxHeap:
				t.Errorf("%s, %s: %d MiB of memory", h.name, sink, peak>>20)
			}
			if diff := cmp.Diff(before, surroundings(t, base, dir)); diff != "" {
				t.Errorf("%s, %s: left outside its directory:\n%s", h.name, sink, diff)
			}
			if sink == "image" {
				t.Logf("%3d %-42s %s (%d MiB)", i+1, h.name, clipped(err.Error()), peak>>20)
			}
		}
		seen[h.rule]++
		all[i].layers = nil // the less the test holds, the sooner garbage is collected
	}
	t.Logf("%d hostile images refused by %d rules", len(all), len(seen))
	if len(all) < images || len(seen) < rules {
		t.Errorf("%d images of %d, %d rules of %d", len(all), images, len(seen), rules)
	}
}

func clipped(s string) string { return s[:min(len(s), 150)] }

// watchHeap tells how much the heap grew at most, by looking often. Garbage is collected early meanwhile: how much of it there may be
// otherwise depends on what the test itself holds, and the race detector makes more (sync.Pool drops buffers at random).
func watchHeap() func() uint64 {
	percent := debug.SetGCPercent(10)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	start, peak, stop, done := m.HeapInuse, atomic.Uint64{}, make(chan struct{}), make(chan struct{})
	look := func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.HeapInuse > start {
			peak.Store(max(peak.Load(), m.HeapInuse-start))
		}
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				look()
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		look()
		debug.SetGCPercent(percent)
		return peak.Load()
	}
}

// TestHugeTree: as many entries as are allowed become a tree in the memory that an extraction may hold.
func TestHugeTree(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 40,000 entries")
	}
	// The directories, for which there is no entry, count too, with less than 32 bytes for each name.
	const dirs = 64
	files := DefaultLimits().Entries - dirs - 1
	names := int(DefaultLimits().Names) - 32*(dirs+1)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range files {
		name := fmt.Sprintf("%sk%d/%d", cacheDir, i%dirs, i)
		name += strings.Repeat("x", names/files-len(name))
		check.Must(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}))
	}
	check.Must(t, w.Close())
	layer := pack(t, ociZstd, b.Bytes())
	b.Reset()
	sink, _ := sinks()["image"](t, openRoot(t, filepath.Join(t.TempDir(), "tmp")))
	heap := watchHeap()
	tree, err := Extract(t.Context(), layersOf([]packed{layer}), opener([]packed{layer}), sink, Options{Paths: cachePaths})
	check.Must(t, err)
	if peak := heap(); peak > maxHeap || len(tree.Entries) < DefaultLimits().Entries {
		t.Errorf("%d entries, %d MiB of memory", len(tree.Entries), peak>>20)
	} else {
		t.Logf("%d entries in %d MiB", len(tree.Entries), peak>>20)
	}
}

// TestReaderErrors: what the reader or the context says is not held against the image.
func TestReaderErrors(t *testing.T) {
	p := pack(t, ociGzip, tarOf(t, in{name: cacheDir + "a", content: strings.Repeat("abc", 100_000)}))
	broken := errors.New("the registry broke off")
	sink := func() Sink { return &Directory{Files: below{openRoot(t, t.TempDir())}} }
	for _, n := range []int{0, 5, len(p.data) / 2, len(p.data) - 1, len(p.data)} {
		_, err := Extract(t.Context(), []Layer{p.Layer}, func(context.Context, int) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(p.data[:n]), failing{broken})), nil
		}, sink(), Options{})
		var own *Error
		if !errors.Is(err, broken) || errors.As(err, &own) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := Extract(ctx, []Layer{p.Layer}, opener([]packed{p}), sink(), Options{}); !errors.Is(err, broken) {
		t.Errorf("after the end of the context: %v", err)
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// FuzzExtract: whatever the bytes are, nothing is left outside, nothing panics, and what is accepted reads back as what was kept.
func FuzzExtract(f *testing.F) {
	good := in{name: cacheDir + "a/kernel.cubin", content: "kernel"}
	plain := tarOf(f, in{name: cacheDir}, good, in{name: tritonDoc, content: "{}"})
	f.Add(plain, byte(0))
	f.Add(gzipOf(f, plain), byte(1))
	f.Add(zstdOf(f, plain, zstd.WithEncoderCRC(false)), byte(2))
	f.Add(gzipParts(f, plain, 100), byte(1))
	f.Add(eStargz(f, plain, 4, 1).data, byte(1))
	f.Add(zstdParts(f, plain, 100), byte(2))
	f.Add(zstdChunked(f, plain, 4).data, byte(2))
	for _, h := range allHostileSmall(f) {
		f.Add(h, byte(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, how byte) {
		base := t.TempDir()
		dir := filepath.Join(base, "in")
		root := openRoot(t, dir)
		p := declare([]string{ociTar, ociGzip, ociZstd}[how%3], data, data)
		if how%3 != 0 {
			p.DiffID = diffID(p)
		}
		sink := sum(&Directory{Files: below{root}})
		tree, err := Extract(t.Context(), []Layer{p.Layer}, opener([]packed{p}), sink,
			Options{Limits: Limits{Total: 1 << 20, File: 1 << 20, Entries: 1000, Names: 1 << 16}})
		if entries, _ := os.ReadDir(base); len(entries) != 1 {
			t.Fatalf("left outside: %v", entries)
		}
		if err != nil {
			var own *Error
			if !errors.As(err, &own) {
				t.Fatalf("not an error of the image: %v", err)
			}
			return
		}
		checkTree(t, tree, sink, root.FS())
	})
}

func allHostileSmall(t testing.TB) (out [][]byte) {
	t.Helper()
	for _, e := range []in{
		{name: "../x"},
		{name: cacheDir + "x", edit: kind(tar.TypeSymlink, "/etc")},
		{name: cacheDir + "x", edit: pax("SCHILY.xattr.user.x", "y")},
	} {
		out = append(out, tarOf(t, e))
	}
	return append(out, rawTar(gnuSparse("x")), rawTar(rawGlobal(record("path", "x"))))
}

// diffID is what the layer unpacks to, so that fuzzing comes past the last check.
func diffID(p packed) (sum [32]byte) {
	s, err := open(context.Background(), p.Layer, bytes.NewReader(p.data), DefaultLimits(), 1<<20)
	if err == nil {
		_, _ = io.Copy(io.Discard, s)
		s.close()
		s.sum.Sum(sum[:0])
	}
	return sum
}

// TestErrorChains: a refusal has its kind and its cause in the chain.
func TestErrorChains(t *testing.T) {
	for name, c := range map[string]struct {
		layer packed
		cause error
	}{
		"tar":  {pack(t, ociTar, block("no header")), tar.ErrHeader},
		"gzip": {declare(ociGzip, []byte("no gzip header"), nil), gzip.ErrHeader},
		"zstd": {declare(ociZstd, []byte("no frame"), nil), zstd.ErrMagicMismatch},
		"cut":  {declare(ociGzip, gzipOf(t, nil)[:12], nil), io.ErrUnexpectedEOF},
	} {
		_, err := Extract(t.Context(), []Layer{c.layer.Layer}, opener([]packed{c.layer}), nowhere{}, Options{})
		var own *Error
		if !errors.Is(err, c.cause) || !errors.Is(err, ErrRefused) || !errors.As(err, &own) || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
