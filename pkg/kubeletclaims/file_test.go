// SPDX-License-Identifier: Apache-2.0

package kubeletclaims

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/kubeletstate"
)

func TestParse(t *testing.T) {
	const version = kubeletstate.Version
	tests := []struct {
		name string
		data []byte
		want UIDs
		// wantErr is in the error; empty: no error.
		wantErr string
	}{
		{name: "no claims", data: kubeletstate.File(t, version), want: UIDs{}},
		{name: "claims", data: kubeletstate.File(t, version, "u1", "u2"), want: UIDs{"u1": true, "u2": true}},
		{
			name: "null", want: UIDs{},
			data: kubeletstate.Checkpoint(t, `{"kind":"DRACheckpoint","apiVersion":"`+version+`","ClaimInfoStateList":null}`),
		},
		{
			name: "as kubelet 1.37 writes it", want: UIDs{"7a0a": true},
			data: []byte(`{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",` +
				`\"ClaimInfoStateList\":[{\"ClaimUID\":\"7a0a\",\"ClaimName\":\"c\",\"Namespace\":\"n\",\"PodUIDs\":{\"p\":{}},` +
				`\"DriverState\":{\"fettle.dev\":{\"Devices\":null}}}]}","Checksum":2288804329}`),
		},
		{name: "empty file", data: nil, wantErr: "end of JSON"},
		{name: "not JSON", data: []byte("claims"), wantErr: "parse"},
		{name: "empty object", data: []byte("{}"), wantErr: "end of JSON"},
		{name: "damaged", data: []byte(`{"Data":"{}","Checksum":1}`), wantErr: "checksum"},
		{name: "without checksum", data: []byte(`{"Data":"{}"}`), wantErr: "checksum"},
		{name: "inner part is not JSON", data: kubeletstate.Checkpoint(t, "claims"), wantErr: "parse"},
		{name: "inner part is null", data: kubeletstate.Checkpoint(t, "null"), wantErr: "version"},
		{name: "later version", data: kubeletstate.File(t, "checkpoint.dra.kubelet.k8s.io/v2", "u1"), wantErr: `v2`},
		{name: "no version", data: kubeletstate.File(t, "", "u1"), wantErr: "version"},
		{name: "a claim without a UID", data: kubeletstate.File(t, version, "u1", ""), wantErr: "without a UID"},
		{
			name: "list of another type", wantErr: "parse",
			data: kubeletstate.Checkpoint(t, `{"apiVersion":"`+version+`","ClaimInfoStateList":{}}`),
		},
		{name: "the format of before 1.32", data: []byte(`{"version":"v1","entries":[{"ClaimUID":"u1"}],"checksum":1}`), wantErr: "checksum"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.data)
			if tt.wantErr == "" {
				check.Must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want one with %q", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzParse: a claim that is in the file must never be missing from what was read of it.
func FuzzParse(f *testing.F) {
	const version = kubeletstate.Version
	f.Add(kubeletstate.File(f, version, "u1", "u2"), "u3")
	f.Add([]byte(`{"Data":"{}","Checksum":1}`), "")
	f.Add([]byte("{"), "u1")
	f.Fuzz(func(t *testing.T, data []byte, uid string) {
		if known, err := parse(data); err != nil && known != nil {
			t.Errorf("claims %v and error %v", known, err)
		}
		if uid == "" || strings.ToValidUTF8(uid, "") != uid {
			return // no claim has it, or JSON cannot carry it
		}
		known, err := parse(kubeletstate.File(t, version, uid, "another"))
		if err != nil || !known[uid] || !known["another"] {
			t.Errorf("claims %v, %v", known, err)
		}
	})
}
