// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const ours = `device.attributes["fettle.dev"]`

// TestCheck: names and types are those that this driver publishes. What is right, however it is written, has no fault.
func TestCheck(t *testing.T) {
	var c Checker
	for name, tt := range map[string]struct {
		expression, driver string
		want               []string // parts of the faults; none: the selector is right
	}{
		"right": {ours + `.vendor == "nvidia"`, "fettle.dev", nil},
		"misspelt": {
			ours + `.vender == "nvidia"`,
			"fettle.dev",
			[]string{`no device of fettle.dev has vender in device.attributes["fettle.dev"]: use one of addressingMode, `},
		},
		"of any driver": {ours + `.vender == "nvidia"`, "", []string{"has vender in"}},
		"of another":    {ours + `.vender == "nvidia"`, "gpu.nvidia.com", nil},
		"twice": {
			ours + `.vender == "amd" || ` + ours + `.vender == "intel" || ` + ours + `.colour == "x"`,
			"",
			[]string{"has vender in", "has colour in"},
		},
		"by index":        {ours + `["vender"] == "nvidia"`, "", []string{"has vender in"}},
		"by index, right": {ours + `["vendor"] == "nvidia"`, "", nil},
		"presence":        {`has(` + ours + `.modell)`, "", []string{"has modell in"}},
		"presence, right": {`has(` + ours + `.productName) && ` + ours + `.productName.startsWith("NVIDIA")`, "", nil},
		"in":              {`"modell" in ` + ours, "", []string{"has modell in"}},
		"in, right":       {`"productName" in ` + ours + ` && ` + ours + `.productName.contains("H100")`, "", nil},
		"optional":        {ours + `.?modell.orValue("") == "x"`, "", []string{"has modell in"}},
		"optional, right": {ours + `.?productName.orValue("") == "x"`, "", nil},
		"optional index":  {ours + `[?"productName"].orValue("") == "x"`, "", nil},
		"bound":           {`cel.bind(a, ` + ours + `, a.vender == "nvidia")`, "", []string{"has vender: use one of"}},
		"bound, right":    {`cel.bind(a, ` + ours + `, "productName" in a && a.vendor == "nvidia" && a["type"] == "gpu")`, "", nil},
		"capacity": {
			`device.capacity["fettle.dev"].memry.compareTo(quantity("1Gi")) > 0`,
			"",
			[]string{`has memry in device.capacity["fettle.dev"]: use one of computeUnits, `},
		},
		"capacity, right": {`device.capacity["fettle.dev"].memory.compareTo(quantity("1Gi")) > 0`, "", nil},
		"attribute, not":  {ours + `.memory.compareTo(quantity("1Gi")) > 0`, "", []string{"has memory in device.attributes"}},
		"number for text": {ours + `.vendor == 1`, "", []string{"'==' does not fit '(string, int)'"}},
		"text for version": {
			ours + `.driverVersion == "580.0.0"`,
			"",
			[]string{`'(version, string)'; compare versions by compareTo(semver("1.2.3"))`},
		},
		"version, right":  {ours + `.driverVersion.compareTo(semver("580.0.0")) >= 0`, "", nil},
		"text for amount": {`device.capacity["fettle.dev"].memory == "80Gi"`, "", []string{"compare quantities by compareTo"}},
		"number, amount":  {`device.capacity["fettle.dev"].memory > 80`, "", []string{"compare quantities by compareTo"}},
		"text for flag":   {ours + `.sriovVF == "true"`, "", []string{"'(bool, string)'"}},
		"not a flag":      {ours + `.regionIndex`, "", []string{"must be true or false, and is of type int"}},
		"two faults":      {ours + `.vender == "a" && ` + ours + `.vendor == 1`, "", []string{"has vender", "(string, int)"}},
		"no CEL":          {`device.driver ==`, "", []string{"Syntax error"}},
		"no field":        {`device.vendor == "nvidia"`, "", []string{"undefined field 'vendor'"}},
		"standard":        {`device.attributes["resource.kubernetes.io"].numaNode == 0`, "fettle.dev", nil},
		"standard, wrong": {`device.attributes["resource.kubernetes.io"].numa == 0`, "fettle.dev", []string{"has numa in"}},
		"foreign": {
			`device.attributes["gpu.nvidia.com"].productName == "x"`,
			"fettle.dev",
			[]string{"no device of fettle.dev has attributes or capacities of gpu.nvidia.com"},
		},
		"foreign, unknown": {`device.attributes["gpu.nvidia.com"].productName == "x"`, "", nil},
		"foreign, asked": {
			`"gpu.nvidia.com" in device.attributes && device.attributes["gpu.nvidia.com"].productName == "x"`,
			"fettle.dev",
			nil,
		},
		"foreign, has": {
			`has(device.attributes["gpu.nvidia.com"].index) && device.attributes["gpu.nvidia.com"].index == 0`,
			"fettle.dev",
			nil,
		},
		"either driver": {
			`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu" || device.driver == "fettle.dev"`,
			"fettle.dev",
			nil,
		},
		"keys":          {ours + `.exists(k, k == "vendor") && size(` + ours + `) > 0`, "", nil},
		"of a variable": {`["vendor", "type"].all(k, k in ` + ours + `)`, "", nil},
		"list":          {ours + `.vendor in ["nvidia", "amd"]`, "", nil},
		"matches":       {ours + `.productName.matches("H[12]00") && ` + ours + `.type == "gpu" ? true : false`, "", nil},
		"shares":        {`device.allowMultipleAllocations`, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.Check(tt.expression, tt.driver)
			if len(got) != len(tt.want) {
				t.Fatalf("faults of %s:\n%s\nwant %d", tt.expression, strings.Join(got, "\n"), len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) || strings.Contains(got[i], "\n") {
					t.Errorf("fault %q, want %q in one line", got[i], want)
				}
			}
		})
	}
}

// TestFacts: what a conjunction demands, and nothing that only one side of an alternative does.
func TestFacts(t *testing.T) {
	var c Checker
	for expression, want := range map[string]string{
		`device.driver == "fettle.dev"`:                                           `{"driver":"fettle.dev"}`,
		`"fettle.dev" == device.driver && ` + ours + `.type == "fpga"`:            `{"driver":"fettle.dev","fettle.dev/type":"fpga"}`,
		`device.driver == "a.dev" || device.driver == "fettle.dev"`:               `{}`,
		`!(device.driver == "a.dev")`:                                             `{}`,
		`device.driver.startsWith("fettle") && has(` + ours + `.type)`:            `{}`,
		`(device.driver == "a.dev" && true) && device.capacity["a.dev"].x == "y"`: `{"driver":"a.dev"}`,
		`device.driver ==`: `null`,
	} {
		got, err := json.Marshal(c.Facts(expression))
		if err != nil || string(got) != want {
			t.Errorf("facts of %s: %s, want %s", expression, got, want)
		}
	}
}

func TestAttribute(t *testing.T) {
	for name, tt := range map[resourceapi.FullyQualifiedName]struct{ driver, want string }{
		"fettle.dev/parentUUID":              {"", ""},
		"fettle.dev/parent":                  {"", "use one of addressingMode"},
		"resource.kubernetes.io/pcieRoot":    {"fettle.dev", ""},
		"gpu.nvidia.com/parentUUID":          {"fettle.dev", "no device of fettle.dev has attributes of gpu.nvidia.com"},
		"dra.net/numaNode":                   {"", ""},
		"resource.kubernetes.io/pciBusIdent": {"", "use one of numaNode, "},
	} {
		if got := Attribute(name, tt.driver); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s for %q: %q, want %q", name, tt.driver, got, tt.want)
		}
	}
}

// TestPublished: every attribute that discovery finds on any machine of the tests is in the table with its type, and every
// standard one is in the users' page.
func TestPublished(t *testing.T) {
	files, err := filepath.Glob("../discover/testdata/*.golden.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no machines: %v", err)
	}
	attributes, amounts := newTable(published()), newTable(capacities())
	found := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var inventory struct {
			Devices []struct {
				Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
				Capacity   map[resourceapi.QualifiedName]json.RawMessage             `json:"capacity"`
			} `json:"devices"`
		}
		if err := json.Unmarshal(data, &inventory); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, d := range inventory.Devices {
			for qualified, value := range d.Attributes {
				domain, name := split(qualified)
				found[name] = true
				if want := typeOf(value); attributes[domain][name] != want && attributes[domain][name] != typeAny {
					t.Errorf("%s: %s is a %s, the table says %q", file, qualified, want, attributes[domain][name])
				}
			}
			for qualified := range d.Capacity {
				if domain, name := split(qualified); amounts[domain][name] == "" {
					t.Errorf("%s: capacity %s is not in the table", file, qualified)
				}
			}
		}
	}
	if len(found) < 15 {
		t.Errorf("only %d attributes found in %d files", len(found), len(files))
	}
	page, err := os.ReadFile("../../docs/user/attributes.md")
	if err != nil {
		t.Fatal(err)
	}
	for domain, names := range attributes { // of this driver's own, TestReference writes a page
		for name := range names {
			if domain != v1alpha1.DriverName && !strings.Contains(string(page), "`"+domain+"/"+name+"`") {
				t.Errorf("docs/user/attributes.md does not have %s/%s", domain, name)
			}
		}
	}
}

func typeOf(a resourceapi.DeviceAttribute) valueType {
	switch {
	case a.VersionValue != nil:
		return typeVersion
	case a.IntValue != nil:
		return typeInt
	case a.BoolValue != nil:
		return typeBool
	default:
		return typeText
	}
}
