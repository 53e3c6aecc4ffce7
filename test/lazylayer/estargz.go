// SPDX-License-Identifier: Apache-2.0

package lazylayer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
)

// The names that eStargz adds to a tar.
const (
	StargzIndex      = "stargz.index.json"
	PrefetchMark     = ".prefetch.landmark"
	NoPrefetchMark   = ".no.prefetch.landmark"
	landmarkContent  = "\x0f"
	stargzAnnotation = "containerd.io/snapshot/stargz/toc.digest"
)

// EStargz makes a tar one of eStargz as containerd/stargz-snapshotter does (docs/estargz.md): a landmark comes first, every content is in
// gzip members of its own, with at most chunk bytes each, and the index and an empty member that says where it is come last. prefetch is
// how many of the entries are to be fetched first: the landmark stands behind them.
func EStargz(plain []byte, chunk, prefetch int) (Layer, error) {
	list, _, err := entries(plain)
	if err != nil {
		return Layer{}, err
	}
	mark := entry{Header: &tar.Header{Name: NoPrefetchMark, Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}, content: []byte(landmarkContent)}
	if prefetch > 0 {
		mark.Name = PrefetchMark
	}
	w := &stargzWriter{}
	w.tar = tar.NewWriter(w)
	for i := range list {
		if i == prefetch {
			w.add(&mark, chunk)
		}
		w.add(&list[i], chunk)
	}
	return w.finish()
}

// stargzWriter writes what a tar.Writer gives it into the gzip member that is open.
type stargzWriter struct {
	tar   *tar.Writer
	zip   *gzip.Writer
	out   bytes.Buffer
	plain bytes.Buffer
	index toc
	parts int
	errs  []error
}

func (w *stargzWriter) Write(p []byte) (int, error) {
	if w.zip == nil {
		w.zip, _ = gzip.NewWriterLevel(&w.out, gzip.BestCompression) // the level is a constant that is known
		w.parts++
	}
	w.plain.Write(p)
	return w.zip.Write(p)
}

// cut ends the member.
func (w *stargzWriter) cut() {
	if w.zip != nil {
		w.errs = append(w.errs, w.zip.Close())
		w.zip = nil
	}
}

func (w *stargzWriter) add(e *entry, chunk int) {
	w.errs = append(w.errs, w.tar.WriteHeader(e.Header))
	if e.Size == 0 {
		w.index.Entries = append(w.index.Entries, e.toc())
		return
	}
	offset := int64(0)
	for i, piece := range chunks(e.content, chunk) {
		w.cut()
		described := tocEntry{Name: e.Name, Type: "chunk"}
		if i == 0 {
			described = e.toc()
		}
		described.Offset, described.ChunkOffset, described.ChunkDigest = int64(w.out.Len()), offset, digest(piece)
		if offset += int64(len(piece)); offset < e.Size {
			described.ChunkSize = int64(len(piece))
		}
		w.index.Entries = append(w.index.Entries, described)
		_, err := w.tar.Write(piece)
		w.errs = append(w.errs, err)
	}
	w.errs = append(w.errs, w.tar.Flush())
}

func (w *stargzWriter) finish() (Layer, error) {
	w.cut()
	at := w.out.Len()
	index, err := w.index.encode()
	w.errs = append(w.errs, err)
	w.errs = append(w.errs, w.tar.WriteHeader(&tar.Header{Name: StargzIndex, Typeflag: tar.TypeReg, Mode: 0o444, Size: int64(len(index))}))
	_, err = w.tar.Write(index)
	w.errs = append(w.errs, err, w.tar.Close())
	w.cut()
	footer, _ := gzip.NewWriterLevel(&w.out, gzip.NoCompression) // as above
	footer.Extra = append([]byte("SG\x16\x00"), fmt.Sprintf("%016xSTARGZ", at)...)
	w.errs = append(w.errs, footer.Close())
	return Layer{
		MediaType: gzipType, Data: w.out.Bytes(), Tar: w.plain.Bytes(), Parts: w.parts + 1,
		Annotations: map[string]string{stargzAnnotation: digest(index)},
	}, errors.Join(w.errs...)
}
