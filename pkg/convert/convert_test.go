// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	shell    = "ce48969398f05f33946d560708be108a"
	other    = "9926ab6d6c925a68aabca7d84c545738"
	nlb0     = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3     = "f7df405cbd7acf7222f144b0b93acd18"
	packed   = "zkiWk5jwXzOUbVYHCL4QithCTcSko8QT-J5DNoP5BAs"
	ce48     = resourcePrefix + "region-" + shell
	function = resourcePrefix + "af-ce4.d84." + packed
)

// cases are the archives in testdata, with the options that each is converted with.
func cases() map[string]Options {
	return map[string]Options{
		"kep":        {},
		"deployment": {Class: "team-fpga.example.com"},
		"function":   {},
		"gpus":       {Classes: map[string]string{"example.com/tesla": "tesla.example.com"}},
		"shares":     {},
		"anchors":    {Image: "registry.example/team/nlb0:v1"},
		"podpreset":  {Classes: map[string]string{"example.com/nic": "nic.example.com", "unused": "unused.example.com"}},
		"mapped": {Namespace: "team-c", Functions: map[string]Function{
			"arria10.dcp1.1-nlb0": {InterfaceID: other, ID: nlb0}, "arria10.dcp1.0": {InterfaceID: shell}, "unused": {InterfaceID: shell},
		}},
	}
}

func section(t *testing.T, archive *txtar.Archive, name string) []byte {
	t.Helper()
	for _, f := range archive.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func TestConvert(t *testing.T) {
	for name, options := range cases() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".txtar")
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			in := section(t, archive, "in.yaml")
			result, err := IntelFPGA(in, "in.yaml", options)
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(result.Notes, "\n") + "\n"
			if check.Updating() {
				archive.Files = []txtar.File{{Name: "in.yaml", Data: in}, {Name: "out.yaml", Data: result.YAML}, {Name: "notes", Data: []byte(notes)}}
				if err := os.WriteFile(path, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(section(t, archive, "out.yaml")), string(result.YAML)); diff != "" {
				t.Errorf("out.yaml (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(string(section(t, archive, "notes")), notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
			checkOutput(t, result.YAML, Options{})
		})
	}
}

// checkOutput wants what the admission webhook and the API would take, and what is left as it is when it is converted again.
func checkOutput(t *testing.T, out []byte, options Options) {
	t.Helper()
	findings, err := admission.ValidateYAML(bytes.NewReader(out), "out")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
	for _, d := range split(Input{Data: out}) {
		raw, err := yaml.YAMLToJSONStrict(d.text)
		if err != nil {
			t.Fatal(err)
		}
		var b v1alpha1.ClusterFPGABitstream
		if !bytes.Contains(raw, []byte(`"ClusterFPGABitstream","metadata"`)) {
			continue
		}
		strict, err := strictjson.UnmarshalStrict(raw, &b)
		if err != nil || len(strict) > 0 {
			t.Errorf("%v %v: %s", err, strict, raw)
		}
		if len(b.Spec.Namespaces) == 0 || (b.Spec.HostFile == nil) == (b.Spec.Image == "") {
			t.Errorf("got %+v, want a namespace and either a file or an image", b.Spec)
		}
	}
	again, err := IntelFPGA(out, "out", options)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(out), string(again.YAML)); diff != "" {
		t.Errorf("converted again (-want +got):\n%s", diff)
	}
}

// TestNothingElseChanges compares a converted pod with the original, without what the conversion is about.
func TestNothingElseChanges(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/deployment.txtar")
	if err != nil {
		t.Fatal(err)
	}
	in := section(t, archive, "in.yaml")
	result, err := IntelFPGA(in, "in.yaml", Options{})
	if err != nil {
		t.Fatal(err)
	}
	object := func(documents []document) any {
		for _, d := range documents {
			var o map[string]any
			if err := yaml.UnmarshalStrict(d.text, &o); err != nil {
				t.Fatal(err)
			}
			if o["kind"] == "Deployment" {
				return o
			}
		}
		t.Fatal("no Deployment")
		return nil
	}
	ours := regexp.MustCompile(`^FPGA_|^fpga\.intel\.com/|^fpga-2$|^claims$`)
	var strip func(v any) any
	strip = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			out := map[string]any{}
			for key, value := range v {
				if value = strip(value); !ours.MatchString(key) && value != nil {
					out[key] = value
				}
			}
			if name, ok := out["name"].(string); len(out) == 0 || ok && ours.MatchString(name) {
				return nil
			}
			return out
		case []any:
			var out []any
			for _, item := range v {
				if item = strip(item); item != nil {
					out = append(out, item)
				}
			}
			if out == nil {
				return nil
			}
			return out
		default:
			return v
		}
	}
	if diff := cmp.Diff(strip(object(split(Input{Data: in}))), strip(object(split(Input{Data: result.YAML})))); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	first := split(Input{Data: in})[0].verbatim()
	if !bytes.Contains(result.YAML, append([]byte("---\n"), first...)) {
		t.Errorf("the ConfigMap is not there as it was:\n%s", result.YAML)
	}
}

// pod is a pod of one container in JSON, which is YAML too.
func pod(limits, env string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{` +
		limits + `}},"env":[` + env + `]}]}}`
}

func variable1(name, value string) string { return `{"name":"` + name + `","value":"` + value + `"}` }

func TestConvertRefuses(t *testing.T) {
	one := `"` + ce48 + `":1`
	iface, afu := variable1("FPGA_REGION_1", shell), variable1("FPGA_AFU_1", nlb0)
	params := func(text string) string { return pod(one, iface+","+variable1("FPGA_DRIVER_PARAMS_1", text)) }
	edited := func(old, new string) string { return strings.Replace(pod(one, ""), old, new, 1) }
	two := iface + "," + variable1("FPGA_REGION_2", shell) + "," + variable1("FPGA_AFU_2", nlb3)
	noRegion := "the container's resources have no region left for interface "
	for _, test := range []struct {
		name, in, want string
		options        Options
	}{
		{
			name: "unknown key", in: params("clock=1,ltr=1"),
			want: `in:1: Pod p: container c: env FPGA_DRIVER_PARAMS_1: "clock=1,ltr=1": key "ltr`,
		},
		{name: "key twice", in: params("debug=1,debug=1"), want: "key debug: it is there twice"},
		{name: "no number", in: params("clock=fast"), want: `key clock: "fast": expected a whole number`},
		{name: "too large", in: params("clock=1501"), want: "driverParams.clockMHz: Invalid value: 1501: must be 1 to 1500"},
		{name: "path as id", in: pod(one, iface+","+variable1("FPGA_AFU_1", "../../x")), want: `env FPGA_AFU_1: "../../x": must be 32`},
		{name: "id of zeros", in: pod(one, iface+","+variable1("FPGA_AFU_1", strings.Repeat("0", 32))), want: "must not be all 0"},
		{name: "another interface", in: pod(one, variable1("FPGA_REGION_1", other)), want: "env FPGA_REGION_1: " + noRegion + other},
		{name: "more wishes than regions", in: pod(one, afu+","+two), want: "env FPGA_REGION_2: " + noRegion},
		{name: "no resource", in: pod("", iface+","+afu), want: noRegion},
		{name: "no interface", in: pod(one, afu), want: "env FPGA_AFU_1: there is no FPGA_REGION_1"},
		{
			name: "both names of an id", in: pod(one, iface+","+afu+","+variable1("FPGA_BITSTREAM_ID_1", nlb0)),
			want: "env FPGA_BITSTREAM_ID_1: FPGA_AFU_1 says already which it is",
		},
		{name: "variable twice", in: pod(one, iface+","+iface), want: "env FPGA_REGION_1: FPGA_REGION_1 says already which it is"},
		{
			name: "value from elsewhere", in: pod(one, `{"name":"FPGA_REGION_1","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}`),
			want: "env FPGA_REGION_1: expected a value that stands here",
		},
		{name: "mapped name", in: pod(`"fpga.intel.com/d5005":1`, ""), want: "say what it means with --map d5005=INTERFACE"},
		{name: "empty interface", in: pod(`"fpga.intel.com/region-":1`, ""), want: "the interface id after region-: must be 32"},
		{name: "packed too short", in: pod(`"fpga.intel.com/af-ce4.d84.zkiW":1`, ""), want: "expected af-XXX.YYY.BASE64"},
		{
			name: "packed otherwise", in: pod(`"fpga.intel.com/af-ce4.d85.`+packed+`":1`, ""),
			want: "it packs " + shell + " and " + nlb0 + ", which begin otherwise",
		},
		{
			name: "function of another id", in: pod(`"`+function+`":1`, iface+","+variable1("FPGA_AFU_1", nlb3)),
			want: noRegion + shell + " and bitstream " + nlb3,
		},
		{name: "half a region", in: pod(`"`+ce48+`":"500m"`, ""), want: "expected 0 to 32 whole regions"},
		{name: "many regions", in: pod(`"`+ce48+`":33`, ""), want: "expected 0 to 32 whole regions"},
		{name: "limit and request", in: edited(`"limits"`, `"requests":{"`+ce48+`":2},"limits"`), want: `"1" in limits and "2" in requests`},
		{name: "misspelt field", in: edited(`"image"`, `"imagePolicy":"x","image"`), want: `p: unknown field "spec.containers[0].imagePolicy"`},
		{name: "wrong type", in: edited(`"image":"i"`, `"image":1`), want: "Pod p: a field has a value of the wrong type"},
		{name: "key twice in YAML", in: "kind: Pod\nkind: Pod\n", want: "in:1: expected YAML with each key once"},
		{
			name: "old group", in: `{"apiVersion":"extensions/v1beta1","kind":"Deployment","metadata":{"name":"` + ce48 + `"}}`,
			want: `apiVersion "extensions/v1beta1": expected apps/v1`,
		},
		{name: "no name", in: edited(`"name":"p"`, `"labels":{}`), want: "metadata.name: expected a name"},
		{name: "class", options: Options{Class: "A b"}, want: `class "A b"`},
		{name: "namespace", options: Options{Namespace: "A b"}, want: `namespace "A b"`},
		{
			name: "one image for two", in: pod(`"`+ce48+`":2`, afu+","+two), options: Options{Image: "registry.example/a:b"},
			want: "one image cannot hold two bitstreams for interface " + shell,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := IntelFPGA([]byte(test.in), "in", test.options)
			check.WantErr(t, err, nil, test.want)
		})
	}
}

// TestOneEach wants a region of its own for each number, also where two ask for the same bitstream.
func TestOneEach(t *testing.T) {
	env := variable1("FPGA_REGION_1", shell) + "," + variable1("FPGA_AFU_1", nlb0) + "," +
		variable1("FPGA_REGION_2", shell) + "," + variable1("FPGA_AFU_2", nlb0)
	result, err := IntelFPGA([]byte(pod(`"`+ce48+`":2`, env)), "in", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(result.YAML), "              name: intel-"+shell+"-"+nlb0+"\n"); got != 2 {
		t.Errorf("%d requests with the bitstream, want 2:\n%s", got, result.YAML)
	}
	_, err = IntelFPGA([]byte(pod(`"`+ce48+`":1`, env)), "in", Options{})
	check.WantErr(t, err, nil, "env FPGA_REGION_2: the container's resources have no region left")
}

// TestAllFaults wants every mistake of a stream at once, each with its document's line.
func TestAllFaults(t *testing.T) {
	in := pod(`"fpga.intel.com/a":1,"fpga.intel.com/b":1`, "") + "\n---\n" + pod(`"`+ce48+`":1`, variable1("FPGA_AFU_1", nlb0))
	_, err := IntelFPGA([]byte(in), "in", Options{})
	if err == nil || strings.Count(err.Error(), "\n") != 2 || !strings.Contains(err.Error(), "\nin:3: Pod p: container c: env FPGA_AFU_1: ") {
		t.Errorf("got\n%v\nwant three lines, the last of in:3", err)
	}
}

func TestParseFunction(t *testing.T) {
	for text, want := range map[string]Function{
		shell: {InterfaceID: shell},
		"CE489693-98F0-5F33-946D-560708BE108A/" + nlb0:      {InterfaceID: shell, ID: nlb0},
		shell + "/00112233445566778899AABBCCDDEEFF01234567": {InterfaceID: shell, ID: "00112233445566778899aabbccddeeff01234567"},
	} {
		if got, err := ParseFunction(text); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", shell + "/", shell + "/..", shell + "/" + nlb0 + "/x"} {
		if got, err := ParseFunction(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

func FuzzIntelFPGA(f *testing.F) {
	for name := range cases() {
		archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	caches, err := filepath.Glob("testdata/caches-*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range caches {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	f.Add([]byte(pod(`"`+ce48+`":1`, variable1("FPGA_REGION_1", shell))))
	f.Add([]byte("--- {kind: Pod}\n...\n%YAML 1.1\n---\n!!map {? a : b}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		options := Options{Functions: map[string]Function{"a": {InterfaceID: shell, ID: nlb0}}}
		first, err := IntelFPGA(in, "in", options)
		if err != nil {
			return
		}
		second, err := IntelFPGA(in, "in", options)
		if diff := cmp.Diff(first, second); err != nil || diff != "" {
			t.Fatalf("not the same twice: %v\n%s", err, diff)
		}
		if len(split(Input{Data: first.YAML})) < len(split(Input{Data: in})) {
			t.Fatalf("%d documents became %d:\n%s", len(split(Input{Data: in})), len(split(Input{Data: first.YAML})), first.YAML)
		}
		findings, err := admission.ValidateYAML(bytes.NewReader(first.YAML), "out")
		if err != nil {
			t.Fatal(err)
		}
		if before, _ := admission.ValidateYAML(bytes.NewReader(in), "in"); len(findings) > len(before) {
			t.Fatalf("%v\n%s", findings, first.YAML)
		}
		for _, d := range split(Input{Data: first.YAML}) {
			if _, err := yaml.YAMLToJSONStrict(d.text); err != nil {
				t.Fatalf("%v:\n%s", err, d.text)
			}
		}
		again, err := IntelFPGA(first.YAML, "out", options)
		if err != nil || !bytes.Equal(again.YAML, first.YAML) {
			t.Fatalf("converted again (%v):\n%s", err, cmp.Diff(string(first.YAML), string(again.YAML)))
		}
	})
}
