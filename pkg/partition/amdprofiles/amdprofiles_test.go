// SPDX-License-Identifier: Apache-2.0

package amdprofiles_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/partition/amdprofiles"
	"github.com/fettle-dev/fettle/test/check"
)

const example = `{
  "gpu-config-profiles": {
    "mixed": {
      "skippedGPUs": {"ids": [2, 0]},
      "profiles": [
        {"computePartition": "CPX", "memoryPartition": "NPS1", "numGPUsAssigned": 3},
        {"computePartition": "SPX", "memoryPartition": "NPS1", "numGPUsAssigned": 1}
      ]
    },
    "all": {"profiles": [{"computePartition": "CPX", "memoryPartition": "NPS4", "numGPUsAssigned": 2}]}
  },
  "gpuClientSystemdServices": {"names": ["gpuagent"]}
}`

func TestParse(t *testing.T) {
	got, err := amdprofiles.Parse([]byte(example))
	check.Must(t, err)
	want := &amdprofiles.Document{
		Profiles: map[string]amdprofiles.Profile{
			"mixed": {Memory: "NPS1", Skipped: []int{0, 2}, Parts: []amdprofiles.Part{
				{Compute: "CPX", GPUs: []int{1, 3, 4}}, {Compute: "SPX", GPUs: []int{5}},
			}},
			"all": {Memory: "NPS4", Parts: []amdprofiles.Part{{Compute: "CPX", GPUs: []int{0, 1}}}},
		},
		Services: []string{"gpuagent"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"all", "mixed"}, got.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestFaults(t *testing.T) {
	one := func(profile string) string { return `{"gpu-config-profiles":{"p":` + profile + `}}` }
	for in, want := range map[string]string{
		`{`:    "want JSON",
		`[]`:   "want a configuration of AMD's config manager",
		`{}`:   "gpu-config-profiles: want at least one profile",
		`a: b`: `unknown field "a"`,
		`{"gpu-config-profiles":{"p":{"profiles":[{"gpus":1}]}}}`: `unknown field "gpu-config-profiles.p.profiles[0].gpus"`,
		one(`{}`): "gpu-config-profiles.p.profiles: want at least one",
		one(`{"profiles":[{"computePartition":"cpx"}]}`):                          `profiles[0].computePartition "cpx": want SPX, DPX`,
		one(`{"profiles":[{"computePartition":"CPX","memoryPartition":"NPS8"}]}`): `profiles[0].memoryPartition "NPS8": want NPS1, NPS2 or NPS4`,
		one(`{"profiles":[{"computePartition":"CPX","memoryPartition":"NPS1"}]}`): "profiles[0].numGPUsAssigned 0: want a number of GPUs",
		one(part(`-1`)):         "profiles[0].numGPUsAssigned -1",
		one(part(`9999999`)):    "profiles[0].numGPUsAssigned 9999999",
		one(skipping(`[1, 1]`)): "skippedGPUs.ids: want each number once",
		one(skipping(`[3]`)):    "skippedGPUs.ids: 3: want numbers of the 3 GPUs that the profile is for, 0 to 2",
		one(skipping(`[-1]`)):   "skippedGPUs.ids: -1",
		one(`{"profiles":[{"computePartition":"SPX","memoryPartition":"NPS1","numGPUsAssigned":1},` +
			`{"computePartition":"CPX","memoryPartition":"NPS4","numGPUsAssigned":1}]}`): "NPS4: want NPS1 as in profiles[0]",
	} {
		_, err := amdprofiles.Parse([]byte(in))
		check.WantErr(t, err, nil, want)
	}
}

func part(gpus string) string {
	return `{"profiles":[{"computePartition":"CPX","memoryPartition":"NPS1","numGPUsAssigned":` + gpus + `}]}`
}

func skipping(ids string) string {
	return `{"skippedGPUs":{"ids":` + ids + `},` + part("2")[1:]
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("gpu-config-profiles: &a {c: *a}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := amdprofiles.Parse(text)
		if err != nil {
			return
		}
		for name, p := range d.Profiles {
			seen := map[int]bool{}
			for _, part := range p.Parts {
				for _, i := range part.GPUs {
					seen[i] = true
				}
			}
			for _, i := range p.Skipped {
				if seen[i] {
					t.Errorf("%s: GPU %d is skipped and has a mode", name, i)
				}
				seen[i] = true
			}
			for i := range p.Total() {
				if !seen[i] {
					t.Errorf("%s: GPU %d of %d is left out", name, i, p.Total())
				}
			}
		}
	})
}
