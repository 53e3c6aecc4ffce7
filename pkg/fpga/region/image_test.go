// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"testing/synctest"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/test/check"
)

type stored struct{ *bytes.Reader }

func (stored) Close() error { return nil }

// TestImagesWaitForMemory: an image is copied into memory once others have left it room, or its claim is tried again.
func TestImagesWaitForMemory(t *testing.T) {
	file := bytes.Repeat([]byte{1}, 600)
	sum := sha256.Sum256(file)
	const shell, afu = "69528db6eb31577a8c3668f9faa081f6", "d8424dc4a4a3c413f89e433683f9040b"
	image := &Image{
		Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(file)), InterfaceID: shell, AFUID: afu,
		Config: fpga.Config{Format: fpga.RBF, ID: afu, InterfaceID: shell},
	}
	p := New(Config{Memory: 1000, Open: func(string) (Blob, error) { return stored{bytes.NewReader(file)}, nil }})
	synctest.Test(t, func(t *testing.T) {
		first, err := p.seal(t.Context(), image)
		check.Must(t, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.seal(ended, image); backend.KindOf(err) != backend.Retryable {
			t.Errorf("without room and time: %v, want an error that can be tried again", err)
		}
		var second *sealed
		go func() { second, err = p.seal(t.Context(), image) }()
		synctest.Wait()
		if second != nil || err != nil {
			t.Fatalf("a second image is in memory beside the first: %v", err)
		}
		check.Must(t, first.Close())
		synctest.Wait()
		check.Must(t, err)
		check.Must(t, second.Close())
	})
}
