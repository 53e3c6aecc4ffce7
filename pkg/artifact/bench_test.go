// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// BenchmarkHit is what a claim costs whose blob is here: pin, fetch, open, and in the end unpin. It must not grow with the store.
func BenchmarkHit(b *testing.B) {
	for _, others := range []int{0, 1000} {
		b.Run(fmt.Sprintf("of%d", others), func(b *testing.B) {
			h := newHub()
			blob := h.pushBlob([]byte("here"))
			s, err := OpenStore(filepath.Join(b.TempDir(), "s"), StoreConfig{})
			check.Must(b, err)
			check.Must(b, s.Fetch(b.Context(), h, blob))
			for i := range others {
				data := []byte(strconv.Itoa(i))
				check.Must(b, os.WriteFile(s.path(blobName(DigestOf(data))), data, 0o600))
				check.Must(b, s.Pin(b.Context(), DigestOf(data), "other"))
			}
			for b.Loop() {
				check.Must(b, s.Pin(b.Context(), blob.Digest, "claim"))
				check.Must(b, s.Fetch(b.Context(), h, blob))
				opened, err := s.Open(blob.Digest)
				check.Must(b, err)
				check.Must(b, opened.Close())
				check.Must(b, s.Unpin(b.Context(), blob.Digest, "claim"))
			}
		})
	}
}
