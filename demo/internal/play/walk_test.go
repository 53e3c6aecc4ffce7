// SPDX-License-Identifier: Apache-2.0

package play

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExchanges(t *testing.T) {
	const page = "# A page\n\n```console\n$ kubectl get pod hello\nNAME\nhello\n$ kubectl apply -f a.yaml\n```\n\n```sh\n$ not run\n```\n" +
		"```console\n$ fettle version\n1\n```\n"
	want := []Exchange{
		{Command: "kubectl get pod hello", Output: "NAME\nhello"},
		{Command: "kubectl apply -f a.yaml"},
		{Command: "fettle version", Output: "1\n"},
	}
	if diff := cmp.Diff(want, Exchanges(page)); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

// TestSame: what differs from run to run compares as equal, and what a reader relies on does not.
func TestSame(t *testing.T) {
	const nodes = "NAME    READY   GPUS                 CLAIMS   AGE\nnode1   True    8 (1 used, 7 free)   1        2m\n"
	for _, test := range []struct {
		name, a, b string
		same       bool
	}{
		{"ages and counts", nodes, "NAME   READY  GPUS  CLAIMS  AGE\nnode1  True  8 (8 used, 0 free)  12  3d4h", true},
		{"devices", nodes, "NAME   READY  GPUS  CLAIMS  AGE\nnode1  True  7 (1 used, 6 free)  1  2m", false},
		{"not ready", nodes, "NAME   READY  GPUS  CLAIMS  AGE\nnode1  False  8 (1 used, 7 free)  1  2m", false},
		{"a namespace", `pod "hello" deleted`, `pod "hello" deleted from demo-32-start namespace`, true},
		{"a made name", "hello-gpu-x7k2p", "hello-gpu-abcde", true},
		{"another message", "it works", "it does not", false},
		{"further lines", "it waits (a)\n...", "it waits (a)\n\nnode1  no", true},
		{"further lines, another first", "it waits\n...", "it runs\n\nnode1  no", false},
		{"further lines that the page lacks", "it waits", "it waits\nnode1  no", false},
	} {
		if err := (Exchange{Output: test.a}).Same(test.b); (err == nil) != test.same {
			t.Errorf("%s: %v, want same %t", test.name, err, test.same)
		}
	}
}
