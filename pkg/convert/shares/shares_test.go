// SPDX-License-Identifier: Apache-2.0

package shares_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/convert/shares"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPartsOfGPUs: a fraction or a percentage is of the memory that somebody said the GPUs have, rounded up to MiB.
func TestPartsOfGPUs(t *testing.T) {
	total := resource.MustParse("81559Mi")
	hami := shares.Projects()[0]
	for percent, want := range map[string]string{"50": "40780Mi", "1": "816Mi", "100": ""} {
		share, err := hami.Read(map[string]string{"nvidia.com/gpumem-percentage": percent}, &total)
		check.Must(t, err)
		if got := memory(share); got != want {
			t.Errorf("%s %%: got %s, want %s", percent, got, want)
		}
	}
	for fraction, want := range map[string]string{"0.5": "40780Mi", "0.333": "27160Mi", "1": "", "1.0": ""} {
		kai, err := shares.FromKAI(map[string]string{shares.KAIFraction: fraction}, &total)
		check.Must(t, err)
		if got := memory(kai.Share); got != want || kai.Devices != 1 {
			t.Errorf("%s: got %s of %d GPUs, want %s", fraction, got, kai.Devices, want)
		}
	}
	for _, wrong := range []string{"0", "-1", "101", "much"} {
		_, err := hami.Read(map[string]string{"nvidia.com/gpumem-percentage": wrong}, &total)
		check.WantErr(t, err, nil, "resource nvidia.com/gpumem-percentage: ", "expected a part of 100")
	}
	_, err := shares.FromKAI(map[string]string{shares.KAIFraction: "0.5"}, nil)
	check.WantErr(t, err, nil, "write the annotation gpu-memory with MiB, or give --gpu-memory")
}

func memory(s shares.Share) string {
	if s.Memory == nil {
		return ""
	}
	return s.Memory.String()
}

// TestChoices reads HAMi's annotations that choose GPUs.
func TestChoices(t *testing.T) {
	got := map[string]string{}
	for _, c := range shares.Choices(map[string]string{
		"nvidia.com/use-gpuuuid": "GPU-2,GPU-1", "nvidia.com/nouse-gpuuuid": "GPU-3", "nvidia.com/use-gputype": "A100, h100",
		"nvidia.com/nouse-gputype": "T4", "nvidia.com/vgpu-mode": "mig",
	}) {
		got[c.Annotation] = c.Expression
	}
	const ours = `device.attributes["fettle.dev"]`
	want := map[string]string{
		"nvidia.com/use-gpuuuid":   `"uuid" in ` + ours + ` && (` + ours + `.uuid in ["GPU-1", "GPU-2"])`,
		"nvidia.com/nouse-gpuuuid": `"uuid" in ` + ours + ` && !(` + ours + `.uuid in ["GPU-3"])`,
		"nvidia.com/use-gputype": `"productName" in ` + ours + ` && (` + ours + `.productName.lowerAscii().contains("a100") || ` +
			ours + `.productName.lowerAscii().contains("h100"))`,
		"nvidia.com/nouse-gputype": `"productName" in ` + ours + ` && !(` + ours + `.productName.lowerAscii().contains("t4"))`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
