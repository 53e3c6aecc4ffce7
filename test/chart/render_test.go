// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os/exec"
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

const (
	repository = "../.."
	chartDir   = repository + "/deployments/helm/fettle"
	namespace  = "fettle-system"
)

// variant is one way to install the chart.
type variant struct {
	name string
	args []string
}

// variants are the installations that golden files, type checks and label checks cover.
func variants() []variant {
	return []variant{
		{name: "default"},
		{name: "all-on", args: []string{
			"--values=testdata/all-on.yaml", "--api-versions=monitoring.coreos.com/v1",
			"--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
		}},
		{name: "openshift", args: []string{
			"--set=openshift.enabled=true", "--api-versions=security.openshift.io/v1",
		}},
		{name: "machine", args: []string{"--values=testdata/machine.yaml"}},
		{name: "fpga", args: []string{"--values=testdata/fpga.yaml"}},
		{name: "force", args: []string{"--set=uninstall.force=true,uninstall.deleteCRDs=true"}},
	}
}

// helmTemplate runs `helm template` as for a Kubernetes 1.37 cluster and returns its output. Later args win.
func helmTemplate(t *testing.T, args ...string) (stdout []byte, stderr string, err error) {
	t.Helper()
	args = append([]string{
		"template", "fettle", chartDir, "--namespace=" + namespace, "--kube-version=1.37.1",
	}, args...)
	var out, faults bytes.Buffer
	command := exec.CommandContext(t.Context(), check.Helm(t, repository), args...)
	command.Stdout, command.Stderr = &out, &faults
	err = command.Run()
	return out.Bytes(), faults.String(), err
}

// render returns the documents that the chart renders with args, in Helm's order.
func render(t *testing.T, args ...string) [][]byte {
	t.Helper()
	stdout, stderr, err := helmTemplate(t, args...)
	if err != nil {
		t.Fatalf("helm template %q: %v\n%s", args, err, stderr)
	}
	return documents(t, sameEachTime(stdout))
}

// sameEachTime replaces what each rendering has its own of: the webhook's certificate, the secret of its path, and when both were made.
func sameEachTime(stream []byte) []byte {
	for pattern, with := range map[string]string{
		`(?m)^( +(?:caBundle|ca\.crt|tls\.crt|tls\.key|token): )[A-Za-z0-9+/]+=*$`: "${1}cmVkYWN0ZWQ=",
		`(path: /(?:mutate-pods|validate-config)/)[a-z0-9]{64}`:                    "${1}SECRET",
		`(fettle\.dev/made: )"\d+"`:                                                `${1}"0"`,
	} {
		stream = regexp.MustCompile(pattern).ReplaceAll(stream, []byte(with))
	}
	return stream
}

// documents splits a YAML stream; empty documents are left out.
func documents(t *testing.T, stream []byte) [][]byte {
	t.Helper()
	var result [][]byte
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return result
		}
		if err != nil {
			t.Fatal(err)
		}
		document = bytes.TrimSpace(bytes.TrimPrefix(document, []byte("---\n")))
		if len(document) > 0 {
			result = append(result, document)
		}
	}
}

// renderObjects is render, parsed; duplicate keys are faults.
func renderObjects(t *testing.T, args ...string) []unstructured.Unstructured {
	t.Helper()
	return parse(t, render(t, args...))
}

func parse(t *testing.T, manifests [][]byte) []unstructured.Unstructured {
	t.Helper()
	var result []unstructured.Unstructured
	for _, document := range manifests {
		var object unstructured.Unstructured
		if err := sigsyaml.UnmarshalStrict(document, &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		result = append(result, object)
	}
	return result
}

// find returns the one object of this kind and name.
func find(t *testing.T, objects []unstructured.Unstructured, kind, name string) unstructured.Unstructured {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	t.Fatalf("no %s %s rendered", kind, name)
	return unstructured.Unstructured{}
}
