// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/hooktext"
	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hook"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// specFaults reads a spec and has its own function judge it.
func specFaults[T any](spec string, validate func(*T, *field.Path) field.ErrorList) error {
	var s T
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	return validate(&s, field.NewPath("spec")).ToAggregate()
}

// presetField is a field of both kinds of presets. The node reads its value once more.
type presetField struct {
	spec      string
	node      func(value string) error
	good, bad []string
}

// parsed leaves out what a parser returned beside its error.
func parsed[T any](_ T, err error) error { return err }

func readAlready(string) error { return nil }

// presetFields are fields of both kinds of presets. "fettle validate", the controller and the node judge them by one function, and the node
// once more by what it makes of the value.
func presetFields(t *testing.T) map[string]judgedTwice {
	t.Helper()
	ofTenant, ofCluster := definition(t, "devicepresets"), definition(t, "clusterdevicepresets")
	all := map[string]judgedTwice{}
	for _, f := range slices.Concat(presetValues(), presetHooks()) {
		spec := func(value string) string {
			return fmt.Sprintf(`{"podSelector":{"matchLabels":{"a":"b"}},`+f.spec+`}`, quoted(value))
		}
		late := func(judge func(string) error) func(string) error {
			return func(value string) error { return errors.Join(judge(spec(value)), f.node(value)) }
		}
		all["DevicePreset "+f.spec] = judgedTwice{
			func(value string) bool { return ofTenant.accepts(t.Context(), spec(value)) },
			late(func(s string) error { return specFaults(s, (*v1alpha1.DevicePresetSpec).Validate) }), f.good, f.bad,
		}
		all["ClusterDevicePreset "+f.spec] = judgedTwice{
			func(value string) bool { return ofCluster.accepts(t.Context(), spec(value)) },
			late(func(s string) error { return specFaults(s, (*v1alpha1.ClusterDevicePresetSpec).Validate) }), f.good, f.bad,
		}
	}
	return all
}

func containerPaths() []string { return []string{"/mnt/data", "/opt/a-b/c_d", "/srv/é"} }

func presetValues() []presetField {
	edits := func(value string) error {
		return errors.Join(container.Edits{Mounts: []container.Mount{{HostPath: "/data", ContainerPath: value}}}.Validate()...)
	}
	size := func(value string) error {
		q, err := resource.ParseQuantity(value)
		if err == nil && q.Value() <= 0 {
			err = fmt.Errorf("is %d bytes", q.Value())
		}
		return err
	}
	paths := containerPaths()
	return []presetField{
		{
			`"env":[{"name":"A","value":%s}]`, func(v string) error { return container.CheckVariable("A=" + v) },
			[]string{"", "a", "a b\tc\n"},
			[]string{"a\x1fb", "\u202e", "\ufffd", "\u2028"},
		},
		{
			`"env":[{"name":%s,"value":"a"}]`, func(v string) error { return container.CheckVariable(v + "=a") },
			[]string{"A", "_b"},
			[]string{"FETTLE_A", "a-b", "a=b"},
		},
		{
			`"env":[{"name":"LD_LIBRARY_PATH","mode":"append","value":%s}]`, readAlready,
			paths,
			[]string{"/a b", "/a:/b/", "/a,b", "/a;b", "/a::/b"},
		},
		{`"env":[{"name":"PATH","mode":"append","value":%s}]`, readAlready, paths, []string{"/a:b", "/a:", "relative"}},
		{
			`"env":[{"name":"A","value":"a","mode":"append","separator":%s}]`, func(v string) error { return container.CheckVariable("A=" + v) },
			[]string{":", "", ", "},
			[]string{"\x00", "\x1f"},
		},
		{`"mounts":[{"hostPath":"/data","containerPath":%s}]`, edits, paths, []string{"/", "/proc/x", "/.fettle", "/a/../b"}},
		{`"mounts":[{"hostPath":%s,"containerPath":"/mnt/x"}]`, readAlready, paths, []string{"/", "a", "/a/", "/a//b"}},
		{
			`"mounts":[{"scratch":{"sizeLimit":%s},"containerPath":"/mnt/x"}]`, size,
			[]string{"512Mi", "1", "1e3", "5n", "2Ei"},
			[]string{"0", "-1", "0.0", "1e-30", "8Ei", "99999E", "1e40", "", "1MB", "1e-100", "1234567890123456789e1000000000"},
		},
		{`"libraries":[{"names":[%s]}]`, readAlready, []string{"liba.so", "lib*.so.?", "_a+b"}, []string{"a/b", ".a", ".."}},
		{`"tools":[{"names":["a"],"root":%s}]`, readAlready, append([]string{"/"}, paths...), []string{"//", "/a/.."}},
	}
}

func presetHooks() []presetField {
	link := func(target, at string) error { return parsed(hook.ParseLink(target + hooktext.LinkSeparator + at)) }
	return []presetField{
		{
			`"hooks":[{"name":"ldconfig","directories":[%s]}]`, func(v string) error { return hook.CheckDirs([]string{v}) },
			containerPaths(),
			[]string{"/a b", "/a=b", "/a:b", `/a\b`, "/a$b", "/a#b", "/a[b]"},
		},
		{
			`"hooks":[{"name":"links","links":[{"path":"/opt/link","target":%s}]}]`, func(v string) error { return link(v, "/opt/link") },
			[]string{"a", "../a", "/opt/a:b"},
			[]string{"a/", "./a", "a::b", "a:", "a//b", "", "a/../b", "/../a"},
		},
		{
			`"hooks":[{"name":"links","links":[{"path":%s,"target":"a"}]}]`, func(v string) error { return link("a", v) },
			containerPaths(),
			[]string{"/", "/sys/a", "a", "/a::b", "/a:"},
		},
	}
}

// trustFields are fields of a TrustPolicy, of which the nodes' own reader has the last word.
func trustFields(t *testing.T) map[string]judgedTwice {
	t.Helper()
	kind := definition(t, "trustpolicies")
	const someone = `"authorities":[{"name":"a","keyless":{"identities":[{"issuer":"i","subject":"s"}]}}]`
	of := func(format string, good, bad []string) judgedTwice {
		spec := func(value string) string { return fmt.Sprintf(format, quoted(value)) }
		return judgedTwice{
			func(value string) bool { return kind.accepts(t.Context(), spec(value)) },
			func(value string) error {
				var p v1alpha1.TrustPolicy
				if err := json.Unmarshal([]byte(spec(value)), &p.Spec); err != nil {
					return err
				}
				if err := p.Spec.Validate(field.NewPath("spec")).ToAggregate(); err != nil {
					return err
				}
				_, err := trust.Compile(&p, nil)
				if err != nil && strings.Contains(err.Error(), "trusted root") {
					return nil // what there is on the node
				}
				return err
			}, good, bad,
		}
	}
	const (
		identity  = `{"images":["**"],"authorities":[{"name":"a","keyless":{"identities":[{"issuer":"i","subjectRegExp":%s}]}}]}`
		authority = `{"images":["**"],"authorities":[{"name":%s,"keyless":{"identities":[{"issuer":"i","subject":"s"}]}}]}`
	)
	return map[string]judgedTwice{
		"TrustPolicy subjectRegExp": of(identity, []string{"a+", "(a|b)@c", `.+@b\.c`, "[a-z]{1,3}"},
			[]string{".*", "(", "a)|(b", "a{2,1}", `\Qa`, "()", "a{1001}", `\pX`}),
		"TrustPolicy namespaces":           of(`{"images":["**"],"namespaces":[%s],`+someone+`}`, []string{"a", "a-b"}, []string{"a.b", "-a"}),
		"TrustPolicy name of an authority": of(authority, []string{"a", "a-b"}, []string{"A", "", "a."}),
	}
}
