// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonpb "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	rekorpb "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	simpleType     = "application/vnd.dev.cosign.simplesigning.v1+json"
	simpleCritical = "cosign container image signature"
	// oldBundleType is the bundle that takes a log entry with the log's promise only, which is all that these signatures have.
	oldBundleType = "application/vnd.dev.sigstore.bundle+json;version=0.1"

	// The annotations of a layer.
	annotationSignature   = "dev.cosignproject.cosign/signature"
	annotationCertificate = "dev.sigstore.cosign/certificate"
	annotationLog         = "dev.sigstore.cosign/bundle"
	annotationTimestamp   = "dev.sigstore.cosign/rfc3161timestamp"
)

// findSimple looks at the tag.
func findSimple(ctx context.Context, src Source, d artifact.Digest, f *found) {
	m, err := src.Tagged(ctx, "sha256-"+d.Hex()+".sig")
	switch {
	case errors.Is(err, artifact.ErrNotFound) && !artifact.IsRetryable(err):
		return
	case err != nil:
		f.fail("", err)
		return
	}
	layers := slices.DeleteFunc(slices.Clone(m.Layers), func(l artifact.Descriptor) bool { return l.MediaType != simpleType })
	for _, layer := range firstOf(f, layers) {
		payload, err := readSmall(ctx, src, layer)
		var b *bundle.Bundle
		if err == nil {
			b, err = simpleBundle(payload, layer.Annotations)
		}
		if err != nil {
			f.fail(layer.Digest.String(), err)
			continue
		}
		f.candidates = append(f.candidates, &candidate{
			format: v1alpha1.SignatureCosignV2, name: layer.Digest.String(), bundle: b, payload: payload,
		})
	}
}

// simpleBundle makes a bundle of a payload and of what its layer's annotations say of it.
func simpleBundle(payload []byte, annotations map[string]string) (b *bundle.Bundle, err error) {
	defer func() {
		if r := recover(); r != nil { // the library reads foreign bytes in many forms
			b, err = nil, fmt.Errorf("the signature cannot be read: %v", r)
		}
	}()
	total := len(payload)
	for _, value := range annotations {
		total += len(value)
	}
	if total > maxBundle {
		return nil, fmt.Errorf("it has %d bytes, expected at most %d: %w", total, maxBundle, artifact.ErrTooLarge)
	}
	signature, err := base64.StdEncoding.DecodeString(annotations[annotationSignature])
	if err != nil || len(signature) == 0 {
		return nil, fmt.Errorf("the annotation %s is not valid: expected a signature in base64", annotationSignature)
	}
	material, err := simpleMaterial(annotations)
	if err != nil {
		return nil, err
	}
	b, err = bundle.NewBundle(&bundlepb.Bundle{
		MediaType:            oldBundleType,
		VerificationMaterial: material,
		Content: &bundlepb.Bundle_MessageSignature{MessageSignature: &commonpb.MessageSignature{
			MessageDigest: &commonpb.HashOutput{Algorithm: commonpb.HashAlgorithm_SHA2_256, Digest: sum(payload)},
			Signature:     signature,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("the annotations are not valid: %s", clip(err.Error()))
	}
	return b, nil
}

func simpleMaterial(annotations map[string]string) (*bundlepb.VerificationMaterial, error) {
	material := &bundlepb.VerificationMaterial{
		Content: &bundlepb.VerificationMaterial_PublicKey{PublicKey: &commonpb.PublicKeyIdentifier{}},
	}
	if text := annotations[annotationCertificate]; text != "" {
		// Only the leaf is taken. Those above it are the trusted root's to say.
		block, rest := pem.Decode([]byte(text))
		if block == nil || block.Type != "CERTIFICATE" || strings.TrimSpace(string(rest)) != "" {
			return nil, fmt.Errorf("the annotation %s is not valid: expected one certificate in PEM", annotationCertificate)
		}
		material.Content = &bundlepb.VerificationMaterial_X509CertificateChain{X509CertificateChain: &commonpb.X509CertificateChain{
			Certificates: []*commonpb.X509Certificate{{RawBytes: block.Bytes}},
		}}
	}
	if text := annotations[annotationLog]; text != "" {
		entry, err := logEntry([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("the annotation %s is not valid: %w", annotationLog, err)
		}
		material.TlogEntries = []*rekorpb.TransparencyLogEntry{entry}
	}
	if text := annotations[annotationTimestamp]; text != "" {
		var stamp struct {
			SignedRFC3161Timestamp []byte `json:"SignedRFC3161Timestamp"`
		}
		if err := strict([]byte(text), &stamp); err != nil {
			return nil, fmt.Errorf("the annotation %s is not valid: %w", annotationTimestamp, err)
		}
		material.TimestampVerificationData = &bundlepb.TimestampVerificationData{
			Rfc3161Timestamps: []*commonpb.RFC3161SignedTimestamp{{SignedTimestamp: stamp.SignedRFC3161Timestamp}},
		}
	}
	return material, nil
}

// logEntry reads what the log promised.
func logEntry(data []byte) (*rekorpb.TransparencyLogEntry, error) {
	var wire struct {
		SignedEntryTimestamp []byte `json:"SignedEntryTimestamp"`
		Payload              struct {
			Body           []byte `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			LogIndex       int64  `json:"logIndex"`
			LogID          string `json:"logID"`
		} `json:"Payload"`
	}
	if err := strict(data, &wire); err != nil {
		return nil, err
	}
	var kind struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
	if err := strict(wire.Payload.Body, &kind); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	id, err := hex.DecodeString(wire.Payload.LogID)
	if err != nil {
		return nil, errors.New("logID: expected hexadecimal digits")
	}
	return &rekorpb.TransparencyLogEntry{
		LogIndex:          wire.Payload.LogIndex,
		LogId:             &commonpb.LogId{KeyId: id},
		KindVersion:       &rekorpb.KindVersion{Kind: kind.Kind, Version: kind.APIVersion},
		IntegratedTime:    wire.Payload.IntegratedTime,
		InclusionPromise:  &rekorpb.InclusionPromise{SignedEntryTimestamp: wire.SignedEntryTimestamp},
		CanonicalizedBody: wire.Payload.Body,
	}, nil
}

// checkPayload says whether a simple signing payload is a signature of the digest. The name of the image in it is not looked at: a
// signature of the same bytes in another repository is as good.
func checkPayload(payload []byte, d artifact.Digest) error {
	var wire struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Identity json.RawMessage `json:"identity"`
		} `json:"critical"`
		Optional json.RawMessage `json:"optional"`
	}
	if err := strict(payload, &wire, kjson.DisallowUnknownFields); err != nil {
		return fmt.Errorf("its payload is not valid: %w", err)
	}
	if wire.Critical.Type != simpleCritical {
		return fmt.Errorf("its payload is of type %q, expected %q", clip(wire.Critical.Type), simpleCritical)
	}
	if of, err := artifact.ParseDigest(wire.Critical.Image.Digest); err != nil || of != d {
		return fmt.Errorf("it is a signature of %q, not of %s", clip(wire.Critical.Image.Digest), d)
	}
	return nil
}

// strict reads JSON in which no key is twice.
func strict(data []byte, into any, options ...kjson.StrictOption) error {
	faults, err := kjson.UnmarshalStrict(data, into, append(options, kjson.DisallowDuplicateFields)...)
	if err == nil && len(faults) > 0 {
		err = faults[0]
	}
	if err != nil {
		return fmt.Errorf("expected JSON with the known keys, each once: %s", clip(err.Error()))
	}
	return nil
}
