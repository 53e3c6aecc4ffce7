// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// start is on a whole second, the precision of a certificate.
var start = time.Unix(1_800_000_000, 0) //nolint:gochecknoglobals // a constant that Go cannot express as one

var names = []string{"fettle-controller.fettle-system.svc", "other.svc"} //nolint:gochecknoglobals // likewise

// certified is the state after a first creation, or a renewal of before, at now.
func certified(t *testing.T, before *State, now time.Time) *State {
	t.Helper()
	data, err := next(before, now, names)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// trusted fails unless an API server with this bundle accepts the certificate for every name at now.
func trusted(t *testing.T, bundle []byte, cert *tls.Certificate, now time.Time) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, name := range names {
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
			t.Errorf("verify for %s at %s: %v", name, now, err)
		}
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	s := certified(t, nil, start)
	tests := []struct {
		name  string
		after time.Duration
		names []string
		want  bool
	}{
		{"fresh", 0, names, false},
		{"half its life", lifetime / 2, names, false},
		{"just before two thirds", lifetime*2/3 - 2*time.Hour, names, false},
		{"two thirds", lifetime * 2 / 3, names, true},
		{"over", 2 * lifetime, names, true},
		{"another name", 0, []string{"elsewhere.svc"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := s.due(start.Add(tt.after), tt.names); got != tt.want {
				t.Errorf("due = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestRotation follows three certificates: at no time is one served that the API server does not trust, whether it has the
// bundle of before or of after the rotation.
func TestRotation(t *testing.T) {
	t.Parallel()
	first := certified(t, nil, start)
	trusted(t, first.Bundle(), first.Serving(start, names[0]), start)
	trusted(t, first.Bundle(), first.Serving(start, names[0]), start.Add(-30*time.Minute)) // a slow clock

	renewed := start.Add(lifetime * 2 / 3)
	second := certified(t, first, renewed)
	trusted(t, first.Bundle(), second.Serving(renewed, names[0]), renewed)
	trusted(t, second.Bundle(), second.Serving(renewed, names[0]), renewed)
	trusted(t, second.Bundle(), first.Serving(renewed, names[0]), renewed) // a replica that has not looked yet

	settled := renewed.Add(settle)
	if !second.Serving(settled, names[0]).Leaf.Equal(second.current.Leaf) {
		t.Error("the new certificate is not served after it settled")
	}
	trusted(t, second.Bundle(), second.Serving(settled, names[0]), settled)

	again := renewed.Add(lifetime * 2 / 3)
	third := certified(t, second, again)
	if got := strings.Count(string(third.Bundle()), "BEGIN CERTIFICATE"); got != 2 {
		t.Errorf("bundle holds %d authorities, want the newest two", got)
	}
	trusted(t, second.Bundle(), third.Serving(again, names[0]), again)
	trusted(t, third.Bundle(), third.Serving(again.Add(settle), names[0]), again.Add(settle))
}

// TestServingAfterOutage: the certificate before is over, so the new one is served without settling.
func TestServingAfterOutage(t *testing.T) {
	t.Parallel()
	late := start.Add(2 * lifetime)
	s := certified(t, certified(t, nil, start), late)
	trusted(t, s.Bundle(), s.Serving(late, names[0]), late)
}

// TestServingAnotherName: a certificate that is not for the name is never served, however new the one for it is.
func TestServingAnotherName(t *testing.T) {
	t.Parallel()
	data, err := next(certified(t, nil, start), start, []string{"new.svc"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Serving(start, "new.svc").Leaf.Equal(s.current.Leaf) || !s.Serving(start, names[0]).Leaf.Equal(s.previous.Leaf) {
		t.Error("the certificate is not for the name that was asked for")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	good, err := next(certified(t, nil, start), start, names)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := next(nil, start, names)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		change  func(map[string][]byte)
		wantErr string
	}{
		{"good", func(map[string][]byte) {}, ""},
		{"empty", func(m map[string][]byte) { clear(m) }, "tls.crt"},
		{"garbage", func(m map[string][]byte) { m["tls.crt"] = []byte("x") }, "tls.crt"},
		{"another key", func(m map[string][]byte) { m["tls.key"] = foreign["tls.key"] }, "private key does not match"},
		{"no authority", func(m map[string][]byte) { delete(m, "ca.crt") }, "ca.crt"},
		{"another authority", func(m map[string][]byte) { m["ca.crt"] = foreign["ca.crt"] }, "not signed by"},
		{"garbage before", func(m map[string][]byte) { m["previous.crt"] = []byte("x") }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data := maps.Clone(good)
			tt.change(data)
			s, err := Parse(data)
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Fatalf("error = %v, want %q", err, tt.wantErr)
			}
			if err == nil && s.Serving(start, names[0]) == nil {
				t.Error("nothing to serve")
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	good, err := next(nil, start, names)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good["tls.crt"], good["tls.key"], good["ca.crt"], []byte{})
	f.Add([]byte("x"), []byte{}, []byte{}, []byte("y"))
	f.Fuzz(func(t *testing.T, cert, key, ca, previous []byte) {
		s, err := Parse(map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca, "previous.crt": previous, "previous.key": key})
		if err == nil && s.Serving(start, names[0]) == nil {
			t.Error("nothing to serve")
		}
	})
}

func TestInject(t *testing.T) {
	t.Parallel()
	hook := func(namespace, service, bundle string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{ClientConfig: admissionregistrationv1.WebhookClientConfig{
			Service:  &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: service},
			CABundle: []byte(bundle),
		}}
	}
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{
		hook("ns", "svc", ""), hook("ns", "other", "keep"), hook("elsewhere", "svc", "keep"), {},
	}}
	var targets []*admissionregistrationv1.WebhookClientConfig
	for i := range config.Webhooks {
		targets = append(targets, &config.Webhooks[i].ClientConfig)
	}
	if !Inject(targets, "ns", "svc", "/secret", []byte("new")) {
		t.Error("first call changed nothing")
	}
	if Inject(targets, "ns", "svc", "/secret", []byte("new")) {
		t.Error("second call changed something")
	}
	if !Inject(targets, "ns", "svc", "/other", []byte("new")) {
		t.Error("another path changed nothing")
	}
	var got []string
	for _, w := range config.Webhooks {
		path := ""
		if w.ClientConfig.Service != nil {
			path = ptr.Deref(w.ClientConfig.Service.Path, "")
		}
		got = append(got, string(w.ClientConfig.CABundle)+path)
	}
	if diff := cmp.Diff([]string{"new/other", "keep", "keep", ""}, got); diff != "" {
		t.Errorf("bundles and paths (-want +got):\n%s", diff)
	}
}
