// SPDX-License-Identifier: Apache-2.0

package signed

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"testing"
	"time"

	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonpb "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	rekorpb "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// World is a certificate authority, a log and a timestamp authority, for signatures without keys.
type World struct{ *ca.VirtualSigstore }

// NewWorld makes one, which nobody knows.
func NewWorld(t testing.TB) World {
	t.Helper()
	v, err := ca.NewVirtualSigstore()
	check.Must(t, err)
	return World{v}
}

// Root is the trusted root of who believes in the world.
func (w World) Root(t testing.TB) []byte {
	t.Helper()
	logs, certificateLogs := w.RekorLogs(), w.CTLogs()
	for _, of := range []map[string]*root.TransparencyLog{logs, certificateLogs} {
		for id, l := range of { // the library has the digits there, and writes them as if they were the bytes
			raw, err := hex.DecodeString(id)
			check.Must(t, err)
			l.ID = raw
		}
	}
	r, err := root.NewTrustedRoot(root.TrustedRootMediaType01, w.FulcioCertificateAuthorities(), certificateLogs, w.TimestampingAuthorities(),
		logs)
	check.Must(t, err)
	data, err := r.MarshalJSON()
	check.Must(t, err)
	return data
}

// Authority believes in the world. Its certificates are in no log of certificates.
func (w World) Authority(t testing.TB, name string, ids ...v1alpha1.TrustIdentity) v1alpha1.TrustAuthority {
	t.Helper()
	return v1alpha1.TrustAuthority{
		Name: name, Keyless: &v1alpha1.TrustKeyless{Identities: ids, RequireSCT: new(bool)}, TrustedRoot: string(w.Root(t)),
	}
}

// Attested is a bundle of the newer or the older log by somebody, signed so long from now.
type Attested struct {
	Issuer, Subject string
	After           time.Duration
	NewLog, Stamped bool
}

// Attest makes one. The payload is a statement.
func (w World) Attest(t testing.TB, payload []byte, by Attested) *bundlepb.Bundle {
	t.Helper()
	var entity *ca.TestEntity
	var err error
	if at := time.Now().Add(by.After); by.NewLog {
		entity, err = w.AttestAtTimeHashedRekordV2(by.Subject, by.Issuer, payload, at)
	} else {
		entity, err = w.AttestAtTime(by.Subject, by.Issuer, payload, at, true)
	}
	check.Must(t, err)
	content, err := entity.VerificationContent()
	check.Must(t, err)
	signed, err := entity.SignatureContent()
	check.Must(t, err)
	b := &bundlepb.Bundle{MediaType: bundleType, VerificationMaterial: &bundlepb.VerificationMaterial{
		Content: &bundlepb.VerificationMaterial_Certificate{Certificate: &commonpb.X509Certificate{RawBytes: content.Certificate().Raw}},
	}}
	(&sign.DSSEData{Data: payload, PayloadType: payloadType}).Bundle(b, signed.Signature(), nil, commonpb.HashAlgorithm_SHA2_256)
	entries, err := entity.TlogEntries()
	check.Must(t, err)
	e := entries[0].TransparencyLogEntry()
	if !by.NewLog {
		e = w.promised(t, entries[0], "dsse")
	}
	b.VerificationMaterial.TlogEntries = []*rekorpb.TransparencyLogEntry{e}
	if by.Stamped {
		b.VerificationMaterial.TimestampVerificationData = stamps(t, entity)
	}
	return b
}

// promised makes a log entry as a bundle has it.
func (w World) promised(t testing.TB, entry *tlog.Entry, kind string) *rekorpb.TransparencyLogEntry {
	t.Helper()
	e := entry.TransparencyLogEntry()
	e.KindVersion = &rekorpb.KindVersion{Kind: kind, Version: "0.0.1"}
	e.InclusionPromise = &rekorpb.InclusionPromise{SignedEntryTimestamp: w.promise(t, e)}
	return e
}

func (w World) promise(t testing.TB, e *rekorpb.TransparencyLogEntry) []byte {
	t.Helper()
	set, err := w.RekorSignPayload(tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(e.CanonicalizedBody), IntegratedTime: e.IntegratedTime, LogIndex: e.LogIndex,
		LogID: hex.EncodeToString(e.LogId.KeyId),
	})
	check.Must(t, err)
	return set
}

func stamps(t testing.TB, entity *ca.TestEntity) *bundlepb.TimestampVerificationData {
	t.Helper()
	all, err := entity.Timestamps()
	check.Must(t, err)
	data := &bundlepb.TimestampVerificationData{}
	for _, s := range all {
		data.Rfc3161Timestamps = append(data.Rfc3161Timestamps, &commonpb.RFC3161SignedTimestamp{SignedTimestamp: s})
	}
	return data
}

// Simple is a simple signature with a certificate: the annotations of its layer.
func (w World) Simple(t testing.TB, payload []byte, issuer, subject string) map[string]string {
	t.Helper()
	entity, err := w.Sign(subject, issuer, payload)
	check.Must(t, err)
	content, err := entity.VerificationContent()
	check.Must(t, err)
	signed, err := entity.SignatureContent()
	check.Must(t, err)
	entries, err := entity.TlogEntries()
	check.Must(t, err)
	e := entries[0].TransparencyLogEntry()
	entry, err := json.Marshal(map[string]any{"SignedEntryTimestamp": w.promise(t, e), "Payload": map[string]any{
		"body": e.CanonicalizedBody, "integratedTime": e.IntegratedTime, "logIndex": e.LogIndex, "logID": hex.EncodeToString(e.LogId.KeyId),
	}})
	check.Must(t, err)
	return map[string]string{
		"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signed.Signature()),
		"dev.sigstore.cosign/certificate":    string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: content.Certificate().Raw})),
		"dev.sigstore.cosign/bundle":         string(entry),
	}
}
