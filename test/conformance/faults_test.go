// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// faultCase is one thing that is wrong with the fake, the check that must see it, and words of what it must say.
type faultCase struct {
	check, fault, want string
	// after is a check that has to run first, "" for none.
	after string
}

func faultCases() []faultCase {
	return []faultCase{
		{check: "registration/info", fault: "info: type", want: `type is "CSIPlugin"`},
		{check: "registration/info", fault: "info: name", want: `name is "other.example.com"`},
		{check: "registration/info", fault: "info: relative endpoint", want: "absolute path"},
		{check: "registration/info", fault: "info: dead endpoint", want: "does not listen"},
		{check: "registration/info", fault: "info: unknown versions", want: `supported versions are ["v0.DRAPlugin"]`},
		{check: "registration/info", fault: "info: error", want: "not now"},
		{check: "registration/services", fault: "services: lists what it does not serve", want: "v1beta1.DRAPlugin is listed"},
		{check: "registration/notify", fault: "notify: only once", want: "I am registered already"},
		{check: "registration/notify", fault: "notify: changes the information", want: "after the registration"},

		{check: "slices/present", fault: "slices: none", want: "not published"},
		{check: "slices/present", fault: "slices: half a pool", want: "1 slices of generation 1, want 2"},
		{check: "slices/valid", fault: "slices: half a pool", want: "1 slices of its newest generation, they say 2"},
		{check: "slices/valid", fault: "slices: a device twice", want: "device dev-0 is in slice slice-0 too"},
		{check: "slices/stable", fault: "slices: written again and again", want: "written with the content that it had"},
		{check: "slices/stable", fault: "slices: deleted and made again and again", want: "slice slice-"},

		{check: "prepare/empty-call", fault: "prepare: refuses the empty call", want: "no claims"},
		{check: "prepare/every-claim", fault: "prepare: answers the first claim only", want: "answered nothing for claim prepare-every-claim-2"},
		{check: "prepare/every-claim", fault: "prepare: answers a claim that was not asked for", want: `"somebody"`},
		{check: "prepare/every-claim", fault: "prepare: another pool", want: "has device pool/dev-0"},
		{check: "prepare/every-claim", fault: "prepare: no device name", want: "without pool or device name"},
		{check: "prepare/every-claim", fault: "prepare: the last device is missing", want: "lacks device node-1/dev-0"},
		{check: "prepare/several-requests", fault: "prepare: the last device is missing", want: `lacks device node-1/dev-2 for request "single"`},
		{check: "prepare/several-requests", fault: "prepare: all for the first request", want: `dev-2 for request "pair"`},
		{check: "prepare/sub-request", fault: "prepare: names the sub-request", want: `request "main/sub"`},
		{check: "prepare/other-driver", fault: "prepare: takes the results of others for its own", want: "other-device"},
		{check: "prepare/idempotent", fault: "prepare: refuses the second time", want: "prepared already"},
		{check: "prepare/idempotent", fault: "prepare: other ids the second time", want: "keeps its answer"},
		{check: "prepare/idempotent", fault: "prepare: a device more each time", want: "twice"},
		{check: "prepare/partial-failure", fault: "prepare: one bad claim fails the call", want: "that claim's error and not the call's"},
		{check: "prepare/partial-failure", fault: "prepare: accepts an unknown device", want: "there is no such device"},
		{check: "prepare/unready-claim", fault: "prepare: accepts a claim that is not there", want: "there is no such claim"},
		{check: "prepare/unready-claim", fault: "prepare: accepts a claim without allocation", want: "it has no allocation"},
		{check: "prepare/unready-claim", fault: "prepare: accepts another UID", want: "has another UID"},

		{check: "use/double", fault: "use: gives what is held", want: "was accepted"},
		{check: "use/double", fault: "unprepare: frees by the claim's devices", want: "the end of a refused claim frees nothing"},
		{check: "use/double", fault: "unprepare: keeps the device", want: "after the holder was unprepared"},
		{check: "use/partly-held", fault: "use: gives what is held", want: "holds one of its devices"},
		{check: "use/partly-held", fault: "use: keeps a part of what was refused", want: "after a claim for this and a held device was refused"},
		{check: "use/admin-access", fault: "use: refuses adminAccess", want: "no adminAccess"},
		{check: "use/admin-access", fault: "use: adminAccess holds", want: "which holds nothing"},
		{check: "use/admin-access", fault: "use: the end of adminAccess frees", want: "with adminAccess frees nothing"},
		{check: "use/same-claim-again", fault: "use: a claim ends for good", want: "for pod 2 of the same claim"},
		{check: "use/same-name-new-uid", fault: "use: knows claims by name", want: "was accepted"},
		{check: "use/same-name-new-uid", fault: "use: gives what is held", want: "the claim that had its name is still prepared"},

		{check: "shared/together", fault: "shares: gives a device once", want: "the device is held"},
		{check: "shared/together", fault: "shares: answers without the share", want: `lacks device node-1/dev-2 for request "main", share `},
		{check: "shared/apart", fault: "shares: the end of one ends all", want: "after another share of the device was unprepared"},
		{check: "shared/apart", fault: "shares: keeps a share that ended", want: "is not free for a share"},
		{check: "shared/one-claim", fault: "shares: one of a claim", want: `lacks device node-1/dev-2 for request "right"`},

		{check: "unprepare/unknown", fault: "unprepare: refuses what it does not know", want: "not prepared"},
		{check: "unprepare/unknown", fault: "unprepare: passes over claims that it does not know", want: "answered nothing"},
		{check: "unprepare/twice", fault: "unprepare: refuses the second time", want: "the second time"},
		{check: "unprepare/twice", fault: "unprepare: keeps the device", want: "is not free"},
		{check: "unprepare/every-claim", fault: "unprepare: passes over claims that it does not know", want: "answered nothing"},
		{check: "unprepare/deleted-claim", fault: "unprepare: wants the claim to exist", want: "not found"},

		{check: "cdi/resolve", fault: "cdi: no files", want: "does not resolve"},
		{check: "cdi/resolve", fault: "cdi: unqualified id", want: "unqualified device"},
		{check: "cdi/valid", fault: "cdi: an invalid file", want: "invalid spec, no devices"},
		{check: "cdi/inject", fault: "cdi: node that is not there", want: "/dev/no-such-node"},
		{check: "cdi/inject", fault: "cdi: mount of what is not there", want: "/no/such/directory"},
		{check: "cdi/unique", fault: "cdi: an id twice", want: "comes twice"},
		{check: "cdi/unique", fault: "cdi: one id for all devices", want: "have the same ids"},
		{check: "cdi/immutable", fault: "cdi: a prepare changes what others hold", want: "means something else after another claim was prepared"},
		{check: "cdi/immutable", fault: "cdi: another meaning for the next claim", want: "means something else for the next claim"},
		{check: "cdi/wiped", fault: "cdi: no files on a hit", want: "does not resolve"},
		{check: "cdi/wiped", fault: "cdi: other ids after a wipe", want: "keeps its answer"},

		{check: "concurrency/different-claims", fault: "concurrency: refuses calls side by side", want: "busy"},
		{check: "concurrency/different-claims", fault: "concurrency: loses devices under load", want: "the device is held"},
		{check: "concurrency/same-claim", fault: "concurrency: refuses calls side by side", want: "busy"},
		{check: "concurrency/same-claim", fault: "prepare: other ids the second time", want: "keeps its answer"},
		{check: "concurrency/one-device", fault: "concurrency: looks before it takes", want: "want exactly one"},
		{check: "concurrency/prepare-unprepare", fault: "concurrency: an unprepare in between keeps the device", want: "side by side"},
		{check: "concurrency/abandoned-prepare", fault: "concurrency: goes on after it was abandoned", want: "kubelet gave up"},

		{check: "health/first-report", fault: "health: a device is left out", want: "lacks node-1/dev-3"},
		{check: "health/resent", fault: "health: nothing is sent again", want: "4 devices were not reported again within 1s"},
		{check: "health/resent", fault: "health: a device is not sent again", want: "1 devices were not reported again within 1s"},
		{check: "health/reconnect", fault: "health: second stream is empty", want: "the second stream"},

		{check: "restart/registration", fault: "restart: other versions", want: "after the restart"},
		{check: "restart/registration", fault: "restart: refuses the registration", want: "I am registered already"},
		{check: "restart/slices", fault: "restart: publishes anew", want: "was deleted by a restart"},
		{check: "restart/slices", fault: "restart: publishes less", want: "not published"},
		{check: "restart/prepare", fault: "restart: forgets who holds what", want: "since before the plugin was restarted"},
		{check: "restart/prepare", fault: "restart: sweeps spec files in use", want: "does not resolve"},
		{check: "restart/prepare", fault: "restart: other ids", want: "keeps its answer"},
		{check: "restart/unprepare", fault: "restart: forgets the claims", want: "is not free"},
		{check: "restart/unprepare", fault: "restart: refuses claims of before", want: "not prepared"},
		{check: "reboot/prepare", fault: "cdi: no files on a hit", want: "does not resolve"},
		{check: "reboot/prepare", fault: "restart: forgets who holds what", want: "since before the reboot"},
		{check: "reboot/unprepare", fault: "reboot: keeps devices of forgotten claims", want: "is not free"},

		{check: "cleanup/devices", fault: "prepare: answers the first claim only", want: "answered nothing"},
		{check: "cleanup/devices", fault: "unprepare: keeps the device", want: "the device is held"},
		{check: "cleanup/cdi", fault: "unprepare: leaves its files", want: "these files are still there", after: "cdi/resolve"},
	}
}

// outcome runs some checks against a fake.
func outcome(t *testing.T, f *fakePlugin, config Config, names ...string) map[string]Result {
	t.Helper()
	focus := regexp.MustCompile("^(" + strings.Join(names, "|") + ")$")
	results := map[string]Result{}
	if err := Run(t.Context(), config, Select(Checks(), focus, nil), func(r Result) { results[r.Check.Name] = r }); err != nil {
		t.Fatalf("run: %v", err)
	}
	return results
}

// TestFaults proves that each check can fail, and fails for what it is there to find.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range faultCases() {
		t.Run(strings.ReplaceAll(c.check+" "+c.fault, "/", "-"), func(t *testing.T) {
			t.Parallel()
			for patience := 100 * time.Millisecond; ; patience *= 2 { // fragile: one that is too short is followed by a longer one
				f := newFake(t, c.fault, patience)
				got := outcome(t, f, f.config(), c.check, c.after)[c.check]
				if got.Status == Failed && strings.Contains(got.Message, c.want) {
					return
				}
				if patience > longPatience {
					t.Fatalf("%s: %q, want it failed with %q", got.Status, got.Message, c.want)
				}
			}
		})
	}
}

// TestEveryCheckHasAFault keeps the proof complete.
func TestEveryCheckHasAFault(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{}
	for _, c := range faultCases() {
		tried[c.check] = true
	}
	for _, c := range Checks() {
		if !tried[c.Name] {
			t.Errorf("no fault shows that %s can fail", c.Name)
		}
		delete(tried, c.Name)
	}
	for name := range tried {
		t.Errorf("%s is no check", name)
	}
}

// TestGoodPlugin wants every check passed, so that a fault is the only reason for a failure above.
func TestGoodPlugin(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode   string
		change func(*Config)
		checks string
		skips  int
	}{
		"all":                                 {mode: "mode: shared devices", change: func(*Config) {}, checks: ".*"},
		"devices for one claim each":          {change: func(*Config) {}, checks: ".*", skips: len(sharedChecks())},
		"older services":                      {mode: "mode: older services", change: func(*Config) {}},
		"endpoint from the registration only": {change: func(c *Config) { c.Endpoint = "" }},
		"node from the slices":                {change: func(c *Config) { c.Node = "" }},
		"endpoint only":                       {change: func(c *Config) { c.Registration = "" }, skips: len(registrationChecks())},
		"endpoint only, older services": {
			mode: "mode: older services", change: func(c *Config) { c.Registration = "" },
			skips: len(registrationChecks()),
		},
		"configuration": {change: func(c *Config) { c.Parameters = []byte(`{"kind":"Config"}`) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, test.mode, longPatience)
			config := f.config()
			test.change(&config)
			results := outcome(t, f, config, cmp.Or(test.checks, "(registration|prepare|health)/.*"))
			if test.checks != "" && len(results) != len(Checks()) {
				t.Errorf("%d results of %d checks", len(results), len(Checks()))
			}
			skipped := 0
			for name, r := range results {
				switch {
				case r.Status == Skipped && test.skips > 0:
					skipped++
				case r.Status != Passed:
					t.Errorf("%s: %s %s", name, r.Status, r.Message)
				}
			}
			if skipped != test.skips {
				t.Errorf("%d checks were skipped, want %d", skipped, test.skips)
			}
			f.wantClean()
		})
	}
}

// TestParameters wants the driver's configuration in every allocation, as the class's.
func TestParameters(t *testing.T) {
	t.Parallel()
	s := &scene{session: &session{config: &Config{Driver: fakeDriver, Parameters: []byte(`{"a":1}`)}}}
	got := s.allocation([]request{{name: "a"}, {name: "b", driver: "other.example.com"}}).Devices.Config
	if len(got) != 2 || string(got[0].Opaque.Parameters.Raw) != `{"a":1}` || got[0].Opaque.Driver != fakeDriver ||
		got[0].Requests[0] != "a" || got[0].Source != resourceapi.AllocationConfigSourceClass || got[1].Opaque.Driver == fakeDriver {
		t.Errorf("configuration %+v", got)
	}
}

// TestSkips takes away what checks need.
func TestSkips(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  string
		change func(*Config)
		want   map[string]string
	}{
		"no registration": {change: func(c *Config) { c.Registration = "" }, want: map[string]string{
			"registration/info": "no registration socket", "restart/registration": "no registration socket",
		}},
		"no CDI directory": {change: func(c *Config) { c.CDIDirs = nil }, want: map[string]string{
			"cdi/resolve": "no CDI directory", "cleanup/cdi": "no CDI directory",
		}},
		"no ids": {fault: "cdi: no ids", want: map[string]string{"cdi/unique": "without CDI ids"}},
		"no commands": {change: func(c *Config) { c.Restart, c.Reboot = nil, nil }, want: map[string]string{
			"restart/unprepare": "restarts the plugin", "reboot/prepare": "a reboot does",
		}},
		"no shared devices": {want: map[string]string{"shared/apart": "needs 1 free devices that allow several allocations of driver"}},
		"only shared devices": {
			fault: "mode: shared devices", change: func(c *Config) { c.Devices = regexp.MustCompile(`/dev-[23]$`) },
			want: map[string]string{"use/double": "needs 1 free devices that allow one allocation of driver"},
		},
		"few devices": {change: func(c *Config) { c.Devices = regexp.MustCompile(`/dev-[03]$`) }, want: map[string]string{
			"prepare/several-requests": "needs 3 free devices of driver dra.example.com on node \"node-1\", there are 2",
		}},
		"no slices": {fault: "slices: none", want: map[string]string{
			"slices/valid": "no ResourceSlice", "slices/stable": "no ResourceSlice", "prepare/idempotent": "needs 2 free devices",
			"health/first-report": "no ResourceSlice",
		}},
		"no health": {fault: "health: not offered", want: map[string]string{"health/resent": "no health service"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// fragile: what a check waits for is not there, so that no limit is too short
			f := newFake(t, test.fault, 300*time.Millisecond)
			config := f.config()
			if test.change != nil {
				test.change(&config)
			}
			var names []string
			for name := range test.want {
				names = append(names, name)
			}
			for name, r := range outcome(t, f, config, names...) {
				if r.Status != Skipped || !strings.Contains(r.Message, test.want[name]) {
					t.Errorf("%s: %s %q, want it skipped with %q", name, r.Status, r.Message, test.want[name])
				}
			}
		})
	}
}

// TestInterrupted wants a run that is cut off to clean up.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	f := newFake(t, "", longPatience)
	ctx, cancel := context.WithCancelCause(t.Context())
	var results []Result
	enough := errors.New("enough")
	err := Run(ctx, f.config(), Select(Checks(), regexp.MustCompile("^(prepare|use)/"), nil), func(r Result) {
		results = append(results, r)
		cancel(enough)
	})
	if !errors.Is(err, enough) || len(results) != 1 {
		t.Errorf("%d results, error %v", len(results), err)
	}
	f.wantClean()
}
