// SPDX-License-Identifier: Apache-2.0

package fpgaregistry

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/fpga"
)

// GBS is a bitstream in its usual form, for regions with an interface id.
func GBS(interfaceID, afu string) []byte {
	metadata := fmt.Sprintf(`{"version":1,"platform-name":"DCP","afu-image":{"power":50,"interface-uuid":%q,"magic-no":488605312,`+
		`"accelerator-clusters":[{"total-contexts":1,"name":"afu","accelerator-type-uuid":%q}]}}`, interfaceID, afu)
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(metadata)))
	return slices.Concat([]byte("XeonFPGA\xb7GBSv001"), length, []byte(metadata), bytes.Repeat([]byte{0xa5}, 1000))
}

// Image pushes such a bitstream and returns what the controller would say of it.
func (r *Registry) Image(t testing.TB, repository, interfaceID, afu string) v1alpha1.BitstreamImage {
	t.Helper()
	file := GBS(interfaceID, afu)
	config := fmt.Sprintf(`{"format":"gbs","interfaceID":%q,"id":%q}`, interfaceID, afu)
	manifest := r.Push(t, repository, "", Bitstream{Config: config, Format: fpga.GBS, File: file})
	layer := r.Blob(t, repository, fpga.GBS.LayerType(), file)
	return v1alpha1.BitstreamImage{
		Manifest: manifest.Digest, Layer: layer.Digest, Size: layer.Size, Format: "gbs", ID: afu, AFUID: afu, InterfaceID: interfaceID,
	}
}

// Intercept answers the requests for a blob itself, and with nil no longer.
func (r *Registry) Intercept(digest string, answer http.HandlerFunc) {
	if answer == nil {
		r.Around(nil)
		return
	}
	r.Around(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/blobs/"+digest) {
				answer(w, req)
				return
			}
			next.ServeHTTP(w, req)
		})
	})
}
