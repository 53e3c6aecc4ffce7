// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// presetCase is the spec of a preset in YAML and what is wrong with it. It is judged by Validate and by the API server, which have to
// agree.
type presetCase struct {
	name, spec string
	// want are the beginnings of the faults of a DevicePreset, one each. None: it is good.
	want []string
	// cluster are those of a ClusterDevicePreset where they are others.
	cluster []string
	// only is "cluster" for fields that a DevicePreset does not have.
	only string
	// lenient says why the API server takes what Validate does not, strict why it is the other way round.
	lenient, strict string
}

const selectGPU = "deviceSelector: {deviceClassNames: [gpu.fettle.dev]}\n"

// good and bad are of presets for a class of GPUs.
func good(name, rules string) presetCase { return presetCase{name: name, spec: selectGPU + rules} }

func bad(name, rules string, want ...string) presetCase {
	return presetCase{name: name, spec: selectGPU + rules, want: want}
}

// badUnless is good in a ClusterDevicePreset.
func badUnless(name, rules string, want ...string) presetCase {
	return presetCase{name: name, spec: selectGPU + rules, want: want, cluster: []string{}}
}

// ofCluster is for fields that only a ClusterDevicePreset has.
func ofCluster(name, rules string, want ...string) presetCase {
	return presetCase{name: name, spec: selectGPU + rules, want: want, only: "cluster"}
}

// onlyGo is why the API server takes what Validate refuses: the controller then says so in the preset's condition Valid.
const onlyGo = "the CRD does not say it; the condition Valid does"

func because(lenient, strict string, c presetCase) presetCase {
	c.lenient, c.strict = lenient, strict
	return c
}

func presetCases() []presetCase {
	var all []presetCase
	all = append(all, selectorCases()...)
	all = append(all, envCases()...)
	all = append(all, configMapCases()...)
	all = append(all, mountCases()...)
	all = append(all, fileCases()...)
	all = append(all, hookCases()...)
	all = append(all, nodeCases()...)
	all = append(all, driverCases()...)
	all = append(all, sumCases()...)
	return append(all, limitCases()...)
}

// sumCases are a tenant's who makes presets as large as the single fields allow, since every node keeps them.
func sumCases() []presetCase {
	variables := func(n int, value string) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("{name: V%d, value: %s}", i, value))
		}
		return "env: [" + strings.Join(out, ", ") + "]"
	}
	links := func(hooks, n int, more string) string {
		var out []string
		for range hooks {
			var one []string
			for i := range n {
				one = append(one, fmt.Sprintf("{path: /mnt/%03d, target: %s}", i, strings.Repeat("t", 248)))
			}
			out = append(out, "{name: links, links: ["+strings.Join(one, ", ")+"]}")
		}
		return "hooks: [" + strings.Join(out, ", ") + "]" + more
	}
	labels := func(n int) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("l%d: a", i))
		}
		return "podSelector: {matchLabels: {" + strings.Join(out, ", ") + "}}"
	}
	return []presetCase{
		good("values of 64 KiB", variables(64, strings.Repeat("v", 1024))),
		bad("values of 64 KiB and a byte", strings.Replace(variables(64, strings.Repeat("v", 1024)), "value: v", "value: vv", 1),
			"spec.env: Invalid value: the values together must have at most 65536 bytes and have 65537"),
		bad("attacker's 64 values of 16 kB", variables(64, strings.Repeat("\U0001F600", 4096)),
			"spec: Invalid value: the preset must have at most",
			"spec.env: Invalid value: the values together must have at most 65536 bytes and have 1048576"),
		good("links of 64 KiB", links(8, 32, "")),
		bad("links of 64 KiB and a byte", links(8, 32, "\nmounts: [{hostPath: /a, containerPath: /b}]"),
			"spec: Invalid value: the paths and names of mounts, libraries, tools and hooks together must have at most 65536 bytes and have 65540"),
		good("labels", labels(32)),
		bad("attacker's labels", labels(33), "spec.podSelector.matchLabels: Too many"),
	}
}

func driverCases() []presetCase {
	return []presetCase{
		ofCluster("driver", "driver: {vendor: NVIDIA}"),
		ofCluster("driver in a directory", "driver: {vendor: NVIDIA, root: /run/nvidia/driver, optional: true}"),
		ofCluster("driver in the root", "driver: {vendor: NVIDIA, root: /}"),
		ofCluster("driver of nobody", "driver: {vendor: ''}", `spec.driver.vendor: Unsupported value: ""`),
		ofCluster("driver of another", "driver: {vendor: nvidia}", `spec.driver.vendor: Unsupported value: "nvidia"`),
		ofCluster("driver's relative root", "driver: {vendor: NVIDIA, root: x}", `spec.driver.root: Invalid value: "x": must be absolute`),
		ofCluster("driver's root above", "driver: {vendor: NVIDIA, root: /a/../b}", `spec.driver.root: Invalid value: "/a/../b": must be clean`),
		ofCluster("driver's long root", "driver: {vendor: NVIDIA, root: /"+strings.Repeat("x", 1024)+"}", "spec.driver.root: Too long"),
	}
}

func selectorCases() []presetCase {
	const labels = "the schema of a label selector is not ours"
	selector := func(text string) string { return "deviceSelector: " + text }
	return []presetCase{
		{name: "nothing selected", spec: "priority: 1", want: []string{"spec: Required value: select something"}},
		{name: "pods only", spec: "podSelector: {matchLabels: {a: b}}"},
		{name: "all pods", spec: "podSelector: {}"},
		{name: "both", spec: selectGPU + "podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}"},
		{name: "condition", spec: selector(`{cel: 'device.attributes["fettle.dev"].vendor == "nvidia"'}`)},
		{name: "condition that does not compile", spec: selector(`{cel: "not CEL"}`)},
		{name: "absent only", spec: selector(`{absent: {cel: "true"}}`)},
		{
			name: "all of it",
			spec: selector(`{deviceClassNames: [a, b.c], cel: "true", minCount: 128, absent: {deviceClassNames: [d], cel: "true"}}`),
		},
		{
			name: "empty device selector", spec: selector("{}"),
			want: []string{"spec.deviceSelector: Required value: set deviceClassNames, cel or absent"},
		},
		{
			name: "count of nothing", spec: selector(`{absent: {cel: "true"}, minCount: 2}`),
			want: []string{"spec.deviceSelector.minCount: Invalid value: 2: counts what"},
		},
		{
			name: "count and nothing else", spec: selector(`{minCount: 2}`),
			want: []string{"spec.deviceSelector: Required value", "spec.deviceSelector.minCount: Invalid value: 2: counts what"},
		},
		{
			name: "empty absent", spec: selector(`{cel: "true", absent: {}}`),
			want: []string{"spec.deviceSelector.absent: Required value: set deviceClassNames, cel or both"},
		},
		{
			name: "class names", spec: selector(`{deviceClassNames: [UPPER, "", a/b, -a, a.], absent: {deviceClassNames: [B]}}`),
			want: []string{
				`spec.deviceSelector.deviceClassNames[0]: Invalid value: "UPPER"`, `spec.deviceSelector.deviceClassNames[1]: Invalid value: ""`,
				`spec.deviceSelector.deviceClassNames[2]: Invalid value: "a/b"`, `spec.deviceSelector.deviceClassNames[3]: Invalid value: "-a"`,
				`spec.deviceSelector.deviceClassNames[4]: Invalid value: "a."`, `spec.deviceSelector.absent.deviceClassNames[0]: Invalid value: "B"`,
			},
		},
		{
			name: "class names twice", spec: selector(`{deviceClassNames: [a, b, a], absent: {deviceClassNames: [b, b]}}`),
			want: []string{
				`spec.deviceSelector.deviceClassNames[2]: Duplicate value: "a"`, `spec.deviceSelector.absent.deviceClassNames[1]: Duplicate value: "b"`,
			},
		},
		because("", "in Go the empty text is the same as none",
			presetCase{name: "empty condition", spec: selector("{deviceClassNames: [a], cel: ''}")}),
		because(labels, "", bad("operator", "podSelector: {matchExpressions: [{key: a, operator: Has}]}",
			`spec.podSelector.matchExpressions[0].operator: Invalid value: "Has"`)),
		because(labels, "", bad("no values", "podSelector: {matchExpressions: [{key: a, operator: In}]}",
			`spec.podSelector.matchExpressions[0].values: Required value`)),
		because(labels, "", bad("label's name", "podSelector: {matchLabels: {a b: c}}", `spec.podSelector.matchLabels: Invalid value: "a b"`)),
		ofCluster("namespaces", "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: dev}}"),
		because(labels, "", ofCluster("label's value", "namespaceSelector: {matchLabels: {a: b c}}",
			`spec.namespaceSelector.matchLabels: Invalid value: "b c"`)),
	}
}

func envCases() []presetCase {
	const (
		from      = "valueFrom: {configMapKeyRef: {name: m, key: k}}"
		exactly   = "spec.env[0]: Required value: set exactly one of value and valueFrom"
		joins     = "spec.env[0].separator: Forbidden: is for mode prepend and append"
		path      = "spec.env[0]: Forbidden: PATH takes only mode append"
		libraries = "spec.env[0]: Forbidden: LD_LIBRARY_PATH takes only mode append"
	)
	env := func(entry string) string { return "env: [{" + entry + "}]" }
	return []presetCase{
		good("value", env("name: A, value: b")),
		good("empty value", env("name: _a1, value: ''")),
		good("value from a ConfigMap", env("name: A, "+from)),
		good("default", env("name: A, value: b, mode: default")),
		good("prepend", env("name: A, value: b, mode: prepend")),
		good("append with a separator", env("name: A, value: b, mode: append, separator: ' '")),
		good("separator of nothing", env("name: A, value: b, mode: append, separator: ''")),
		good("one name twice", "env: [{name: A, value: b}, {name: A, value: c}]"),
		bad("no name", env("value: b"), `spec.env[0].name: Invalid value: ""`),
		bad("name with a dash", env("name: A-B, value: b"), `spec.env[0].name: Invalid value: "A-B"`),
		bad("name with a digit first", env("name: 1A, value: b"), `spec.env[0].name: Invalid value: "1A"`),
		bad("name with =", env("name: A=B, value: b"), `spec.env[0].name: Invalid value: "A=B"`),
		bad("no value", env("name: A"), exactly),
		bad("two values", env("name: A, value: b, "+from), exactly),
		bad("NUL", env(`name: A, value: "b\0c"`), "spec.env[0].value: Invalid value: \"b\\x00c\": must have printable characters"),
		good("lines in a value", env(`name: A, value: "a\n\tb\u00e9"`)),
		bad("escape in a value", env(`name: A, value: "a\eb"`), "spec.env[0].value: Invalid value"),
		bad("carriage return in a value", env(`name: A, value: "a\r\n"`), "spec.env[0].value: Invalid value"),
		bad("blank in a library directory", env("name: LD_LIBRARY_PATH, value: '/a:/b c', mode: append"),
			`spec.env[0].value: Invalid value: "/b c": must have none of the characters that mean something to a loader`),
		bad("NUL in the separator", env(`name: A, value: b, mode: append, separator: "\0"`), "spec.env[0].separator: Invalid value"),
		bad("mode", env("name: A, value: b, mode: replace"), `spec.env[0].mode: Unsupported value: "replace"`),
		bad("separator of mode set", env("name: A, value: b, mode: set, separator: ':'"), joins),
		bad("separator of no mode", env("name: A, value: b, separator: ':'"), joins),
		bad("separator of mode default", env("name: A, value: b, mode: default, separator: ':'"), joins),
		because("", "in Go the empty text is the same as none", good("empty mode", env("name: A, value: b, mode: ''"))),

		good("library directory", env("name: LD_LIBRARY_PATH, value: /usr/local/lib/nvidia, mode: append")),
		good("tool directories", env("name: PATH, value: '/opt/bin:/opt/..bin:/.a/... b', mode: append")),
		bad("PATH set", env("name: PATH, value: /opt/bin"), path),
		bad("PATH prepended", env("name: PATH, value: /opt/bin, mode: prepend"), path),
		bad("PATH by default", env("name: PATH, value: /opt/bin, mode: default"), path),
		bad("PATH with a separator", env("name: PATH, value: /opt/bin, mode: append, separator: ':'"), path),
		bad("PATH from a ConfigMap", env("name: PATH, mode: append, "+from), path),
		bad("LD_LIBRARY_PATH set", env("name: LD_LIBRARY_PATH, value: /a"), libraries),
		bad("no directory", env("name: PATH, value: '', mode: append"), `spec.env[0].value: Invalid value: "": must be absolute`),
		bad("relative directory", env("name: PATH, value: '/a:bin', mode: append"), `spec.env[0].value: Invalid value: "bin": must be absolute`),
		bad("working directory", env("name: PATH, value: '/a:', mode: append"), `spec.env[0].value: Invalid value: "": must be absolute`),
		bad("unclean directories", env("name: LD_LIBRARY_PATH, value: '/a/../b:/c/', mode: append"),
			`spec.env[0].value: Invalid value: "/a/../b": must be clean`, `spec.env[0].value: Invalid value: "/c/": must be clean`),
		bad("newline in a directory", env(`name: LD_LIBRARY_PATH, value: "/a\n/b", mode: append`), `spec.env[0].value: Invalid value: "/a\n/b"`),
		good("variable that only looks like it", env("name: PATHS, value: '', mode: prepend")),

		badUnless("the loader's", env("name: LD_PRELOAD, value: /x.so"), "spec.env[0].name: Forbidden: LD_PRELOAD changes the loader"),
		badUnless("the auditor's", env("name: LD_AUDIT, mode: default, "+from), "spec.env[0].name: Forbidden: LD_AUDIT changes"),
		badUnless("the C library's", env("name: GLIBC_TUNABLES, value: a"), "spec.env[0].name: Forbidden: GLIBC_TUNABLES changes"),
		badUnless("all devices", env("name: NVIDIA_VISIBLE_DEVICES, value: all"), "spec.env[0].name: Forbidden: NVIDIA_VISIBLE_DEVICES changes"),
		bad("a region", env("name: FPGA_REGION_0, value: x"), "spec.env[0].name: Forbidden: FPGA_REGION_0 is a variable of Fettle's"),
		bad("a bitstream", env("name: FPGA_BITSTREAM_ID_1, "+from), "spec.env[0].name: Forbidden: FPGA_BITSTREAM_ID_1 is"),
		bad("an accelerator", env("name: FPGA_AFU, value: x"), "spec.env[0].name: Forbidden: FPGA_AFU is"),
		bad("our own", env("name: FETTLE_X, value: x"), "spec.env[0].name: Forbidden: FETTLE_X is"),
		good("names that only look reserved", "env: [{name: OLD_X, value: a}, {name: LDX, value: a}, {name: NVIDIAX, value: a}, "+
			"{name: FPGA, value: a}, {name: ld_preload, value: a}]"),
	}
}

func configMapCases() []presetCase {
	key := func(entry string) string { return "env: [{name: A, valueFrom: {configMapKeyRef: {" + entry + "}}}]" }
	all := func(entry string) string { return "envFrom: [{" + entry + "}]" }
	const ref = "spec.env[0].valueFrom.configMapKeyRef"
	return []presetCase{
		good("key", key("name: a.b-c, key: x.Y_z-1, optional: true")),
		good("key with a dot first", key("name: a, key: .bashrc")),
		bad("ConfigMap's name", key("name: A_B, key: k"), ref+`.name: Invalid value: "A_B"`),
		bad("no name of a ConfigMap", key("key: k"), ref+`.name: Invalid value: ""`),
		bad("no key", key("name: a"), ref+`.key: Invalid value: ""`),
		bad("key with a slash", key("name: a, key: b/c"), ref+`.key: Invalid value: "b/c"`),
		bad("key that is a dot", key("name: a, key: ."), ref+`.key: Invalid value: "."`),
		bad("key with two dots", key("name: a, key: ..a"), ref+`.key: Invalid value: "..a"`),

		good("all keys", all("configMapRef: {name: a}")),
		good("all keys with everything", all("configMapRef: {name: a, optional: true}, prefix: NCCL_, mode: default")),
		bad("all keys of no ConfigMap", all("prefix: A"), `spec.envFrom[0].configMapRef.name: Invalid value: ""`),
		bad("all keys of a bad name", all("configMapRef: {name: a/b}"), `spec.envFrom[0].configMapRef.name: Invalid value: "a/b"`),
		bad("prefix", all("configMapRef: {name: a}, prefix: A-"), `spec.envFrom[0].prefix: Invalid value: "A-"`),
		bad("mode of all keys", all("configMapRef: {name: a}, mode: append"), `spec.envFrom[0].mode: Unsupported value: "append"`),
		bad("unknown mode of all keys", all("configMapRef: {name: a}, mode: x"), `spec.envFrom[0].mode: Unsupported value: "x"`),
	}
}

func mountCases() []presetCase {
	mount := func(entry string) string { return "mounts: [{" + entry + "}]" }
	const (
		one     = "spec.mounts[0]: Required value: set exactly one of hostPath and scratch"
		empty   = "spec.mounts[0]: Forbidden: a scratch directory is empty, writable and private"
		scratch = "containerPath: /scratch, scratch: {sizeLimit: 1Gi}"
		size    = "spec.mounts[0].scratch.sizeLimit: Invalid value"
	)
	all := []presetCase{
		good("mount", mount("hostPath: /opt/lib64, containerPath: /usr/local/lib/nvidia")),
		good("mount with everything",
			mount("hostPath: /etc/... é, containerPath: /data, readOnly: false, optional: true, recursive: true, propagation: None")),
		good("scratch", mount(scratch)),
		good("scratch with everything", mount("containerPath: /s, scratch: {sizeLimit: 1.5G, medium: Memory}")),
		good("scratch with what is unset anyway", mount(scratch+", optional: false, recursive: false")),
		good("two mounts", "mounts: [{hostPath: /a, containerPath: /a}, {hostPath: /a, containerPath: /b}]"),
		badUnless("propagation", mount("hostPath: /a, containerPath: /a, propagation: HostToContainer"),
			"spec.mounts[0].propagation: Forbidden: only a ClusterDevicePreset"),
		bad("propagation both ways", mount("hostPath: /a, containerPath: /a, propagation: Bidirectional"),
			`spec.mounts[0].propagation: Unsupported value: "Bidirectional"`),
		bad("one path twice", "mounts: [{hostPath: /a, containerPath: /a}, {hostPath: /b, containerPath: /a}]",
			`spec.mounts[1].containerPath: Duplicate value: "/a"`),
		bad("neither", mount("containerPath: /a"), one),
		bad("hostPath and scratch", mount("hostPath: /a, "+scratch), one),
		bad("no path in the container", mount("hostPath: /a"), `spec.mounts[0].containerPath: Invalid value: "": must be absolute`),
		bad("scratch read-only", mount(scratch+", readOnly: true"), empty),
		bad("scratch not read-only", mount(scratch+", readOnly: false"), empty),
		bad("optional scratch", mount(scratch+", optional: true"), empty),
		bad("recursive scratch", mount(scratch+", recursive: true"), empty),
		bad("propagated scratch", mount(scratch+", propagation: None"), empty),
		bad("no size", mount("containerPath: /s, scratch: {}"), size),
		bad("size of nothing", mount("containerPath: /s, scratch: {sizeLimit: '0'}"), size),
		bad("size below nothing", mount("containerPath: /s, scratch: {sizeLimit: -1Gi}"), size),
		bad("size of which the value is 0", mount("containerPath: /s, scratch: {sizeLimit: '1e40'}"), size),
		bad("size in words", mount("containerPath: /s, scratch: {sizeLimit: much}"), size),
		bad("medium", mount("containerPath: /s, scratch: {sizeLimit: 1Gi, medium: HugePages}"),
			`spec.mounts[0].scratch.medium: Unsupported value: "HugePages"`),
	}
	for _, dir := range []string{
		"a", "", "./a", "/a/../../etc", "/a/./b", "/a//b", "/a/",
		"//", "/..", "/.", "/", "/a\nb", "/a\tb", "/a\u00a0b", "/a\ufffd",
	} {
		path := fmt.Sprintf("%q", dir)
		all = append(all,
			bad("hostPath "+path, mount("containerPath: /x, hostPath: "+path), "spec.mounts[0].hostPath: Invalid value: "+path),
			bad("containerPath "+path, mount("hostPath: /x, containerPath: "+path), "spec.mounts[0].containerPath: Invalid value: "+path))
	}
	all[len(all)-30+2].want = []string{one} // an empty hostPath is none
	for _, dir := range []string{
		"/usr", "/usr/local", "/usr/local/fettle/lib",
		"/var", "/run", "/etc", "/etc/ld.so.conf.d", "/usr/lib", "/usr/lib/x", "/usr/bin", "/lib64", "/dev/shm",
		"/run/secrets/kubernetes.io",
		"/var/run", "/bin",
	} {
		all = append(all, badUnless("over "+dir, mount("hostPath: /x, containerPath: "+dir), "spec.mounts[0].containerPath: Invalid value: "+
			fmt.Sprintf("%q: must not cover or lie in ", dir)))
	}
	for _, dir := range []string{"/.fettle", "/.fettle/caches/x", "/proc", "/sys", "/proc/driver/nvidia", "/sys/fs"} {
		all = append(all, bad("over "+dir, mount("hostPath: /x, containerPath: "+dir), "spec.mounts[0].containerPath: Invalid value: "+
			fmt.Sprintf("%q: must not cover or lie in ", dir)))
	}
	for _, dir := range []string{
		"/usr/local/x", "/usr/local/fettles", "/usr/lib128", "/libs", "/runs", "/var/lib/x", "/run/nvidia", "/procs", "/system",
		"/xfettle", "/.fettles",
	} {
		all = append(all, good("beside "+dir, mount("hostPath: /x, containerPath: "+dir)))
	}
	return all
}

func fileCases() []presetCase {
	return []presetCase{
		good("libraries", "libraries: [{names: ['libcuda.so.*', libnvidia-ml.so.1, 'lib?.so', _a+b-c]}]"),
		good("libraries with everything",
			"libraries: [{names: [a], root: /run/nvidia/driver, directories: [/usr/lib64/nvidia], optional: true}]"),
		good("root of the node", "libraries: [{names: [a], root: /}]"),
		good("tools", "tools: [{names: [nvidia-smi], directories: [/opt/bin]}]"),
		bad("no names", "libraries: [{names: []}]", "spec.libraries[0].names: Required value"),
		bad("no list of names", "tools: [{root: /a}]", "spec.tools[0].names: Required value"),
		bad("names", "tools: [{names: [a/b, .., '', .hidden, -x, 'a b', 'a[b]', é]}]",
			`spec.tools[0].names[0]: Invalid value: "a/b"`,
			`spec.tools[0].names[1]: Invalid value: ".."`, `spec.tools[0].names[2]: Invalid value: ""`,
			`spec.tools[0].names[3]: Invalid value: ".hidden"`, `spec.tools[0].names[4]: Invalid value: "-x"`,
			`spec.tools[0].names[5]: Invalid value: "a b"`,
			`spec.tools[0].names[6]: Invalid value: "a[b]"`, `spec.tools[0].names[7]: Invalid value: "é"`),
		bad("one name twice", "libraries: [{names: [a, b, a]}]", `spec.libraries[0].names[2]: Duplicate value: "a"`),
		bad("relative root", "libraries: [{names: [a], root: driver}]", `spec.libraries[0].root: Invalid value: "driver": must be absolute`),
		bad("unclean root", "libraries: [{names: [a], root: /a/..}]", `spec.libraries[0].root: Invalid value: "/a/..": must be clean`),
		bad("root with a control character", `libraries: [{names: [a], root: "/a\x1b"}]`, `spec.libraries[0].root: Invalid value: "/a\x1b"`),
		bad("unclean directory", "tools: [{names: [a], directories: [/b, /a/../c]}]", `spec.tools[0].directories[1]: Invalid value: "/a/../c"`),
		bad("relative directory", "tools: [{names: [a], directories: [b]}]", `spec.tools[0].directories[0]: Invalid value: "b"`),
		bad("no directory", "tools: [{names: [a], directories: ['']}]", `spec.tools[0].directories[0]: Invalid value: ""`),
		bad("directory twice", "tools: [{names: [a], directories: [/b, /b]}]", `spec.tools[0].directories[1]: Duplicate value: "/b"`),
	}
}

func hookCases() []presetCase {
	const (
		directories = "spec.hooks[0].directories: Required value: are what ldconfig needs"
		links       = "spec.hooks[0].links: Required value: are what the hook links needs"
	)
	return []presetCase{
		good("hooks", "hooks: [{name: ldconfig, directories: [/usr/local/lib, /etc/x]}, {name: links, links: [{path: /opt/a, target: ../b c}]}]"),
		bad("unknown hook", "hooks: [{name: sh}]", `spec.hooks[0].name: Unsupported value: "sh"`),
		bad("no hook", "hooks: [{directories: [/a]}]", `spec.hooks[0].name: Unsupported value: ""`),
		bad("ldconfig of nothing", "hooks: [{name: ldconfig}]", directories),
		bad("links of nothing", "hooks: [{name: links}]", links),
		bad("ldconfig with links", "hooks: [{name: ldconfig, directories: [/a], links: [{path: /a, target: b}]}]", links),
		bad("links with directories", "hooks: [{name: links, directories: [/a], links: [{path: /a, target: b}]}]", directories),
		because("", "in Go the empty list is the same as none", good("empty list", "hooks: [{name: ldconfig, directories: [/a], links: []}]")),
		bad("unclean directory of a hook",
			"hooks: [{name: ldconfig, directories: [/a/../b]}]", `spec.hooks[0].directories[0]: Invalid value: "/a/../b"`),
		bad("root as directory of a hook", "hooks: [{name: ldconfig, directories: [/]}]", `spec.hooks[0].directories[0]: Invalid value: "/"`),
		bad("newline in a directory of a hook",
			`hooks: [{name: ldconfig, directories: ["/a\n/b"]}]`, `spec.hooks[0].directories[0]: Invalid value`),
		bad("directory of a hook twice",
			"hooks: [{name: ldconfig, directories: [/a, /a]}]", `spec.hooks[0].directories[1]: Duplicate value: "/a"`),
		bad("unclean link",
			"hooks: [{name: links, links: [{path: /a/../b, target: c}]}]", `spec.hooks[0].links[0].path: Invalid value: "/a/../b"`),
		bad("no link", "hooks: [{name: links, links: [{target: c}]}]", `spec.hooks[0].links[0].path: Invalid value: ""`),
		bad("no target", "hooks: [{name: links, links: [{path: /a}]}]", `spec.hooks[0].links[0].target: Invalid value: ""`),
		bad("mountpath.Unprintable target",
			`hooks: [{name: links, links: [{path: /a, target: "b\n"}]}]`, `spec.hooks[0].links[0].target: Invalid value: "b\n"`),
		bad("blank in a directory of a hook", "hooks: [{name: ldconfig, directories: [/a b]}]",
			`spec.hooks[0].directories[0]: Invalid value: "/a b": must have none of the characters that mean something to a loader`),
		bad("unclean target", "hooks: [{name: links, links: [{path: /a, target: ./b}, {path: /c, target: /d/}]}]",
			`spec.hooks[0].links[0].target: Invalid value: "./b": must be clean`,
			`spec.hooks[0].links[1].target: Invalid value: "/d/": must be clean`),
		bad("target that reads as another link", "hooks: [{name: links, links: [{path: /a, target: 'x::/usr/lib/y'}]}]",
			`spec.hooks[0].links[0].target: Invalid value: "x::/usr/lib/y": must have no ::`),
		bad("target that ends with a colon", "hooks: [{name: links, links: [{path: /a, target: 'x:'}]}]",
			`spec.hooks[0].links[0].target: Invalid value: "x:": must have no ::`),
		because(onlyGo, "", bad("link in a mount",
			"mounts: [{hostPath: /a, containerPath: /opt/b}]\n"+
				"hooks: [{name: links, links: [{path: /opt/b/c, target: d}, {path: /opt/bc, target: d}]}]",
			`spec.hooks[0].links[0].path: Invalid value: "/opt/b/c": must not be in a mount of the preset, /opt/b`)),
		bad("link twice", "hooks: [{name: links, links: [{path: /a, target: b}, {path: /a, target: c}]}]",
			`spec.hooks[0].links[1].path: Duplicate value: "/a"`),
		badUnless("link in a directory of the loader", "hooks: [{name: links, links: [{path: /usr/lib/libcuda.so, target: c}]}]",
			`spec.hooks[0].links[0].path: Invalid value: "/usr/lib/libcuda.so": must not cover or lie in /usr/lib`),
		bad("link in /proc", "hooks: [{name: links, links: [{path: /proc/a, target: c}]}]",
			`spec.hooks[0].links[0].path: Invalid value: "/proc/a": must not cover or lie in /proc`),
	}
}

func nodeCases() []presetCase {
	all := []presetCase{
		ofCluster("nodes", "deviceNodes: [{path: /dev/kfd}, {path: '/dev/dri/by-path/pci-0000:01:00.0-render', readOnly: true, optional: true}]"),
		ofCluster("node twice",
			"deviceNodes: [{path: /dev/a}, {path: /dev/a, readOnly: true}]", `spec.deviceNodes[1].path: Duplicate value: "/dev/a"`),
	}
	for _, node := range []string{
		"", "/dev", "/dev/", "/etc/passwd", "/dev/../etc/passwd",
		"/dev/a/", "/dev//a", "/dev/a b", "/dev/.a", "dev/a", "/devices/a",
	} {
		all = append(all, ofCluster(fmt.Sprintf("node %q", node), fmt.Sprintf("deviceNodes: [{path: %q}]", node),
			fmt.Sprintf("spec.deviceNodes[0].path: Invalid value: %q", node)))
	}
	return all
}

// limitCases are at each limit and one beyond.
func limitCases() []presetCase {
	var all []presetCase
	for _, limit := range []struct {
		name  string
		most  int
		spec  func(n int) string
		field string
	}{
		{"priority", 1_000_000, of("priority: %d"), "priority"},
		{"count", 128, of("deviceSelector: {cel: 'true', minCount: %d}"), "deviceSelector.minCount"},
		{"classes", 16, list("deviceSelector: {deviceClassNames: [%s]}", "a%d"), "deviceSelector.deviceClassNames"},
		{"absent classes", 16, list("deviceSelector: {absent: {deviceClassNames: [%s]}}", "a%d"), "deviceSelector.absent.deviceClassNames"},
		{"class name", 253, long("deviceSelector: {deviceClassNames: [%s]}", "a"), "deviceSelector.deviceClassNames[0]"},
		{"CEL", 4096, long("deviceSelector: {cel: %s}", "é"), "deviceSelector.cel"},
		{"absent CEL", 4096, long("deviceSelector: {absent: {cel: %s}}", "é"), "deviceSelector.absent.cel"},
		{"variables", 64, list("env: [%s]", "{name: A%d, value: b}"), "env"},
		{"ConfigMaps", 8, list("envFrom: [%s]", "{configMapRef: {name: a%d}}"), "envFrom"},
		{"mounts", 32, list("mounts: [%s]", "{hostPath: /a, containerPath: /a%d}"), "mounts"},
		{"libraries", 8, list("libraries: [%s]", "{names: [a%d]}"), "libraries"},
		{"tools", 8, list("tools: [%s]", "{names: [a%d]}"), "tools"},
		{"hooks", 8, list("hooks: [%s]", "{name: ldconfig, directories: [/a%d]}"), "hooks"},
		{"variable", 256, long("env: [{name: %s, value: b}]", "A"), "env[0].name"},
		{"value", 4096, long("env: [{name: A, value: %s}]", "é"), "env[0].value"},
		{"PATH", 4096, long("env: [{name: PATH, mode: append, value: /%s}]", "é", 1), "env[0].value"},
		{"separator", 8, long("env: [{name: A, value: b, mode: append, separator: %s}]", "é"), "env[0].separator"},
		{"key", 253, long("env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: %s}}}]", "k"), "env[0].valueFrom.configMapKeyRef.key"},
		{"ConfigMap", 253, long("envFrom: [{configMapRef: {name: %s}}]", "k"), "envFrom[0].configMapRef.name"},
		{"prefix", 128, long("envFrom: [{configMapRef: {name: a}, prefix: %s}]", "A"), "envFrom[0].prefix"},
		{"hostPath", 1024, long("mounts: [{hostPath: /%s, containerPath: /a}]", "é", 1), "mounts[0].hostPath"},
		{"containerPath", 256, long("mounts: [{hostPath: /a, containerPath: /%s}]", "é", 1), "mounts[0].containerPath"},
		{"size", 32, long("mounts: [{containerPath: /a, scratch: {sizeLimit: '%s1'}}]", "0", 1), "mounts[0].scratch.sizeLimit"},
		{"names", 64, list("libraries: [{names: [%s]}]", "a%d"), "libraries[0].names"},
		{"name", 128, long("tools: [{names: [%s]}]", "a"), "tools[0].names[0]"},
		{"root", 1024, long("tools: [{names: [a], root: /%s}]", "é", 1), "tools[0].root"},
		{"directories", 16, list("tools: [{names: [a], directories: [%s]}]", "/a%d"), "tools[0].directories"},
		{"directory", 1024, long("tools: [{names: [a], directories: [/%s]}]", "é", 1), "tools[0].directories[0]"},
		{"directories of a hook", 16, list("hooks: [{name: ldconfig, directories: [%s]}]", "/a%d"), "hooks[0].directories"},
		{"directory of a hook", 256, long("hooks: [{name: ldconfig, directories: [/%s]}]", "é", 1), "hooks[0].directories[0]"},
		{"links", 32, list("hooks: [{name: links, links: [%s]}]", "{path: /a%d, target: b}"), "hooks[0].links"},
		{"link", 256, long("hooks: [{name: links, links: [{path: /%s, target: b}]}]", "é", 1), "hooks[0].links[0].path"},
		{"target", 256, long("hooks: [{name: links, links: [{path: /a, target: %s}]}]", "é"), "hooks[0].links[0].target"},
		{"nodes", 32, list("deviceNodes: [%s]", "{path: /dev/a%d}"), "deviceNodes"},
		{"node", 256, long("deviceNodes: [{path: /dev/%s}]", "a", 5), "deviceNodes[0].path"},
	} {
		for n, want := range map[int][]string{limit.most: nil, limit.most + 1: {"spec." + limit.field + ": "}} {
			c := presetCase{name: fmt.Sprintf("%s %d", limit.name, n), spec: limit.spec(n), want: want}
			if !strings.HasPrefix(c.spec, "deviceSelector") {
				c.spec = selectGPU + c.spec
			}
			if strings.HasPrefix(c.spec, selectGPU+"deviceNodes") {
				c.only = "cluster"
			}
			all = append(all, c)
		}
	}
	return append(all,
		good("lowest priority", "priority: -1000000"),
		bad("below the lowest priority", "priority: -1000001", "spec.priority: Invalid value: -1000001"),
		presetCase{
			name: "count of 0", spec: "deviceSelector: {cel: 'true', minCount: 0}",
			want: []string{"spec.deviceSelector.minCount: Invalid value: 0"},
		},
	)
}

// of is a spec with a number.
func of(format string) func(int) string { return func(n int) string { return fmt.Sprintf(format, n) } }

// list is a spec with a list of n entries, each with its number.
func list(format, entry string) func(int) string {
	return func(n int) string {
		var entries []string
		for i := range n {
			entries = append(entries, fmt.Sprintf(entry, i))
		}
		return fmt.Sprintf(format, strings.Join(entries, ", "))
	}
}

// long is a spec with a text of n characters, of which so many are there already.
func long(format, character string, there ...int) func(int) string {
	return func(n int) string {
		for _, t := range there {
			n -= t
		}
		return fmt.Sprintf(format, strings.Repeat(character, n))
	}
}

// kinds are those that a case is for, with the faults of each.
func (c presetCase) kinds() map[string][]string {
	cluster := c.want
	if c.cluster != nil {
		cluster = c.cluster
	}
	if c.only != "" {
		return map[string][]string{"ClusterDevicePreset": c.want}
	}
	return map[string][]string{"DevicePreset": c.want, "ClusterDevicePreset": cluster}
}

func validate(t *testing.T, kind, spec string) field.ErrorList {
	t.Helper()
	var namespaced v1alpha1.DevicePresetSpec
	var cluster v1alpha1.ClusterDevicePresetSpec
	var into any = &namespaced
	if kind == "ClusterDevicePreset" {
		into = &cluster
	}
	if err := yaml.UnmarshalStrict([]byte(spec), into); err != nil {
		t.Fatal(err)
	}
	if kind == "ClusterDevicePreset" {
		return cluster.Validate(field.NewPath("spec"))
	}
	return namespaced.Validate(field.NewPath("spec"))
}

func TestDevicePresetValidate(t *testing.T) {
	for _, c := range presetCases() {
		for kind, want := range c.kinds() {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				faults := validate(t, kind, c.spec)
				for i, fault := range faults {
					if i >= len(want) || !strings.HasPrefix(fault.Error(), want[i]) {
						t.Errorf("fault %d is %q", i, fault.Error())
					}
				}
				if len(faults) != len(want) {
					t.Errorf("%d faults, want %q", len(faults), want)
				}
			})
		}
	}
}
