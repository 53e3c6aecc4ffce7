// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FuzzDecodeConfig checks that foreign bytes never crash the decoder or its validation, that a config comes exactly when there
// are no faults, and that what was read can be written and read again.
func FuzzDecodeConfig(f *testing.F) {
	f.Add([]byte(gpuHead + `}`))
	f.Add([]byte(gpuHead + `,"sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":5,"pinnedMemoryLimit":"1Gi"}}}`))
	f.Add([]byte(gpuHead + `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}}`))
	f.Add([]byte(hostHead + `,"mountPath":"/data","policy":{"allowedNamespaces":["a","b"],"onRelease":"Keep"}}`))
	f.Add([]byte(hostHead + `,"policy":{"allowedNamespaces":[null]},"policy":{}}`))
	f.Add([]byte(fpgaHead + `,"interfaceID":"` + dashedID + `","bitstream":{"name":"nlb0"},` +
		`"driverParams":{"clockMHz":1000,"ltr":true},"timeout":"90s"}`))
	f.Add([]byte(fpgaHead + `,"bitstream":{"ref":"registry.example/nlb0@` + pinnedDigest + `"},"resetBeforeUse":false,"onRelease":"Keep"}`))
	f.Add([]byte(fpgaHead + `,"policy":{"allowedBitstreams":["a/*"],` +
		`"allowedDriverParams":[{"name":"debug","min":1,"values":[1]}],"maxTimeout":"1m"}}`))
	f.Add([]byte(`{"kind":{"kind":[]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := field.NewPath("parameters")
		config, faults := DecodeConfig(raw, path)
		if (config == nil) != (len(faults) > 0) {
			t.Fatalf("config %+v with faults %v", config, faults)
		}
		if config == nil {
			return
		}
		_ = config.Validate(true, path).ToAggregate()
		_ = config.Validate(false, path).ToAggregate()
		written, err := json.Marshal(config)
		if err != nil {
			t.Fatalf("write back: %v", err)
		}
		again, faults := DecodeConfig(written, path)
		if len(written) > MaxConfigSize {
			return // escaping can make the written form longer than what was read
		}
		if len(faults) > 0 {
			t.Fatalf("read back %s: %v", written, faults.ToAggregate())
		}
		rewritten, err := json.Marshal(again)
		if err != nil {
			t.Fatalf("write again: %v", err)
		}
		if diff := cmp.Diff(string(written), string(rewritten)); diff != "" {
			t.Errorf("not stable (-first +second):\n%s", diff)
		}
		config.Default()
		_ = config.Validate(true, path).ToAggregate()
	})
}
