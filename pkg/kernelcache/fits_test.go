// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"strings"
	"testing"
)

func h100() Device {
	return Device{Name: "h100", Backend: CUDA, Arch: "90", WarpSize: 32, Driver: 580, MaxPTX: 90}
}

func b200() Device {
	return Device{Name: "b200", Backend: CUDA, Arch: "100", WarpSize: 32, Driver: 580, MaxPTX: 90}
}

func mi300x() Device { return Device{Name: "mi300x", Backend: HIP, Arch: "gfx942", WarpSize: 64} }

// oneKernel is a cache of one kernel with the target and code given.
func oneKernel(target string, endings ...string) tree {
	return tree{}.entry(homeTriton, keyA, "k", target, endings...)
}

// ptxFor is a cache that has PTX alone.
func ptxFor(version, target string) tree {
	text := strings.ReplaceAll(strings.ReplaceAll(ptxText, "8.7", version), "sm_90a", target)
	return oneKernel(hopper, ".ptx").put(keyA+"/k.ptx", text)
}

func withManifest(tr tree, format, text string) tree {
	return tr.with("io."+format+".cache").put("io."+format+".manifest/manifest.json", text)
}

func labelled(format, backend, arch string, warp string) Options {
	return Options{Labels: mcvLabels(format, `{"targets":[{"backend":"`+backend+`","arch":"`+arch+`","warp_size":`+warp+`}]}`)}
}

// TestFits is a table of caches and devices. want has the code and parts of the message; none: it fits.
func TestFits(t *testing.T) {
	aot := vllmAOTTree()
	binary := vllmBinaryTree(homeVLLM, false)
	rocm := strings.ReplaceAll(string(binary[vllmCompile+"/"+binaryHash+"/rank_0_0/backbone/"+vllmFactors].Data), `"cuda"`, `"rocm"`)
	rocmBinary := vllmBinaryTree(homeVLLM, false).put(vllmCompile+"/"+binaryHash+"/rank_0_0/backbone/"+vllmFactors, rocm)
	model := `{"vllm":[{"vllmHash":"` + binaryHash + `","cacheFormat":"binary","binary":[{"rank":"rank_0_0","target_device":"rocm"}]}]}`
	for _, test := range []struct {
		name   string
		tree   tree
		opts   Options
		device Device
		want   []string
	}{
		{"binary of the same architecture", oneKernel(hopper, ".cubin"), Options{}, h100(), nil},
		{"hsaco of the same architecture", oneKernel(mi300, ".hsaco"), Options{}, mi300x(), nil},
		{"features of AMD's", oneKernel(strings.ReplaceAll(mi300, "gfx942", "gfx942:sramecc+:xnack-"), ".hsaco"), Options{}, mi300x(), nil},
		{"features of NVIDIA's", oneKernel(strings.ReplaceAll(hopper, "90", `"sm_90a"`), ".cubin"), Options{}, h100(), nil},
		{"architecture as text", oneKernel(strings.ReplaceAll(hopper, "90", `"90"`), ".cubin"), Options{}, h100(), nil},
		{"architecture as a fraction", oneKernel(strings.ReplaceAll(hopper, "90", "90.0"), ".cubin"), Options{}, h100(), nil},
		{"target as a list, before Triton 3", oneKernel(`["cuda", 90]`, ".cubin"), Options{}, h100(), nil},
		{
			"one of two architectures", tritonTree(homeTriton).entry(homeTriton, keyC, "k", strings.ReplaceAll(hopper, "90", "100"), ".cubin"),
			Options{},
			b200(), nil,
		},
		{"an older architecture's binary", oneKernel(hopper, ".cubin"), Options{}, b200(), []string{
			"Architecture", "file " + keyA + "/k.json", "for cuda sm_90", "device b200 (cuda sm_100)",
		}},
		{
			"a newer stepping's binary", oneKernel(mi300, ".hsaco"),
			Options{},
			Device{Name: "mi250", Backend: HIP, Arch: "gfx90a", WarpSize: 64},
			[]string{"Architecture", "for hip gfx942", "device mi250 (hip gfx90a)"},
		},
		{"another vendor's", oneKernel(mi300, ".hsaco"), Options{}, h100(), []string{"Backend", "for hip", "device h100 (cuda sm_90)"}},
		{"warp size", oneKernel(strings.ReplaceAll(mi300, "64", "32"), ".hsaco"), Options{}, mi300x(), []string{
			"WarpSize", "warps of 32", "device mi300x (hip gfx942) have 64",
		}},
		{"device without architecture", oneKernel(hopper, ".cubin"), Options{}, Device{Name: "x", Backend: CUDA}, []string{
			"DeviceUnknown", "device x (cuda)",
		}},

		// PTX alone.
		{"PTX for an older device", ptxFor("8.0", "sm_80"), Options{}, b200(), nil},
		{"PTX for a newer device", ptxFor("8.7", "sm_100"), Options{}, h100(), []string{"Architecture", "sm_100 (PTX) and newer", "h100"}},
		{"PTX of one architecture", ptxFor("8.7", "sm_90a"), Options{}, h100(), nil},
		{"PTX of another architecture alone", ptxFor("8.7", "sm_90a"), Options{}, b200(), []string{"Architecture", "sm_90a (PTX) and no other"}},
		{"PTX of the family", ptxFor("8.8", "sm_100f"), Options{}, Device{Name: "b300", Backend: CUDA, Arch: "103", MaxPTX: 90}, nil},
		{
			"PTX of the family by its later name", ptxFor("8.8", "sm_101f"),
			Options{},
			Device{Name: "thor", Backend: CUDA, Arch: "110", MaxPTX: 90},
			nil,
		},
		{
			"PTX of a family with a number nearby", ptxFor("8.8", "sm_100f"),
			Options{},
			Device{Name: "thor", Backend: CUDA, Arch: "101", MaxPTX: 90},
			[]string{"Architecture", "family of cuda sm_100f", "thor"},
		},
		{
			"PTX of another family", ptxFor("8.8", "sm_100f"),
			Options{},
			Device{Name: "rtx", Backend: CUDA, Arch: "120", MaxPTX: 90},
			[]string{"Architecture", "family of cuda sm_100f", "rtx"},
		},
		{"PTX too new for the driver", ptxFor("9.1", "sm_90"), Options{}, h100(), []string{"Driver", "PTX 9.1", "driver 580", "up to 9.0"}},
		{"PTX and a driver that is not known", ptxFor("9.1", "sm_90"), Options{}, Device{Name: "x", Backend: CUDA, Arch: "90"}, nil},
		{
			"PTX beside a binary", oneKernel(hopper, ".cubin", ".ptx").put(keyA+"/k.ptx", strings.ReplaceAll(ptxText, "8.7", "9.9")),
			Options{},
			h100(), nil,
		},

		// Labels and manifests, with the faults of the tools that write them.
		{"PTX version that is the driver's major", aot, Options{Labels: mcvLabels("vllm",
			`{"targets":[{"backend":"cuda","arch":"sm_90","warp_size":32,"ptx_version":590}]}`)}, h100(), nil},
		{"PTX version that is the driver's major, in a manifest", withManifest(tree{}.put("x", ""), "triton",
			`{"triton":[{"hash":"h","dummy_key":"d","ptx_version":590,"backend":"cuda","arch":"90","warp_size":32}]}`), Options{}, h100(), nil},
		{"rocm is hip, in labels", aot, labelled("vllm", "rocm", "gfx942", "64"), mi300x(), nil},
		{"rocm is hip, in vLLM's factors", rocmBinary, labelled("vllm", "hip", "gfx942", "64"), mi300x(), nil},
		{"rocm is hip, in a manifest", withManifest(aot, "vllm", model), labelled("vllm", "hip", "gfx942", "64"), mi300x(), nil},
		{
			"files against labels of the machine that built the image", oneKernel(hopper, ".cubin"), labelled("triton", "cuda", "75", "32"),
			h100(), nil,
		},
		{
			"files against labels, refused", oneKernel(hopper, ".cubin"), labelled("triton", "cuda", "75", "32"),
			Device{Name: "t4", Backend: CUDA, Arch: "75"},
			[]string{"Architecture", "file ", "sm_90"},
		},
		{
			"manifest against labels", withManifest(tree{}.put("x", ""), "triton",
				`{"triton":[{"hash":"h","backend":"cuda","arch":"90","warp_size":32}]}`), labelled("triton", "cuda", "75", "32"),
			Device{Name: "t4", Backend: CUDA, Arch: "75"},
			[]string{"Architecture", "manifest io.triton.manifest/manifest.json", "sm_90"},
		},
		{"factors against labels", rocmBinary, labelled("vllm", "cuda", "90", "32"), h100(), []string{
			"Backend", "file " + vllmCompile, vllmFactors, "for hip",
		}},
		{"version of CUDA for an architecture", binary, labelled("vllm", "cuda", "sm_12.9", "32"), h100(), []string{
			"CacheUnknown", "not known to fit device h100", `"sm_12.9" is a version of CUDA`,
		}},
		{"architecture that is unknown in so many words", aot, labelled("vllm", "cuda", "unknown", "32"), h100(), []string{
			"CacheUnknown", "label cache.vllm.image/summary says cuda",
		}},
		{"model without labels", aot, Options{}, h100(), []string{"CacheUnknown", "neither its files nor a manifest", "build the image"}},
		{"unknown architecture is no default's", aot, Options{}, Device{Name: "t4", Backend: CUDA, Arch: "75"}, []string{"CacheUnknown"}},
		{"Habana's", tree{}.put("io.habana.cache/x", ""), labelled("habana", "hpu", "", "0"), h100(), []string{"Backend", "for hpu"}},
		{
			"Inductor's sources", tree{}.put("ab/cabcdefghijklmnopqrstuvwxyz234567.py", sourceText("'gfx942'", "hip", 64)),
			Options{},
			h100(),
			[]string{"Backend", "file ab/c", "for hip"},
		},
		{
			"Inductor's sources, the same", tree{}.put("ab/cabcdefghijklmnopqrstuvwxyz234567.py", sourceText("90", "cuda", 32)),
			Options{},
			h100(),
			nil,
		},

		// What has no targets.
		{"any directory", tree{}.put("x", ""), Options{}, mi300x(), nil},
		{"CUDA's driver", computeTree(), Options{}, h100(), nil},
		{"CUDA's driver on AMD", computeTree(), Options{}, mi300x(), []string{"Backend", "CUDA's driver", "mi300x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := inspect(t, test.tree, test.opts)
			reasons := cache.Fits(test.device)
			if len(test.want) == 0 {
				if len(reasons) > 0 {
					t.Errorf("got %v, want that it fits", reasons)
				}
				return
			}
			if len(reasons) != 1 || string(reasons[0].Code) != test.want[0] {
				t.Fatalf("got %+v, want one reason %s", reasons, test.want[0])
			}
			for _, part := range test.want[1:] {
				if !strings.Contains(reasons[0].Message, part) {
					t.Errorf("got %q, want %q in it", reasons[0].Message, part)
				}
			}
		})
	}
}

// TestFitsEachTarget wants a reason for each kind of kernel, so that a person sees what would have to be built.
func TestFitsEachTarget(t *testing.T) {
	tr := tritonTree(homeTriton).entry(homeTriton, keyC, "k", mi300, ".hsaco")
	cache := inspect(t, tr, Options{})
	reasons := cache.Fits(b200())
	if len(reasons) != 2 || reasons[0].Code != ReasonArchitecture || reasons[1].Code != ReasonBackend {
		t.Errorf("got %v, want the architecture of the one and the backend of the other", reasons)
	}
}

// TestOneTargetForBinaries: what PTX binaries were made of does not tell them apart.
func TestOneTargetForBinaries(t *testing.T) {
	tr := oneKernel(hopper, ".cubin").entry(homeTriton, keyB, "k2", hopper, ".cubin")
	tr.put(keyB+"/k2.json", strings.ReplaceAll(metadata("k2", hopper), `"ptx_version": null`, `"ptx_version": 87`))
	if cache := inspect(t, tr, Options{}); len(cache.Targets) != 1 || cache.Targets[0].Kernels != 2 {
		t.Errorf("got %+v, want one target with 2 kernels", cache.Targets)
	}
}
