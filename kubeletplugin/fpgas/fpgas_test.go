// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare/conflict"
	"github.com/fettle-dev/fettle/kubeletplugin/status"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
	"github.com/fettle-dev/fettle/test/nodefixture"
	"github.com/fettle-dev/fettle/test/signed"
)

// twoRegions are a card's, which are programmed one at a time.
func twoRegions() []device.Device {
	return []device.Device{regionOf("r0", "0000:3b:00.0", shell), regionOf("r1", "0000:3b:00.0", shell)}
}

func fpgaResult(request, name string) nodefixture.APIResult {
	return nodefixture.Result(request, device.KindFPGA, name)
}

// fpgaConfig is an nodeconfig.FPGA with members as they are in JSON, for some requests or all.
func fpgaConfig(
	c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, members string, requests ...string,
) *resourceapi.ResourceClaim {
	nodefixture.Configured(c, source, `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig",`+members+`}`)
	config := c.Status.Allocation.Devices.Config
	config[len(config)-1].Requests = requests
	return c
}

func fpgaClass(c *resourceapi.ResourceClaim, members string) *resourceapi.ResourceClaim {
	return fpgaConfig(c, resourceapi.AllocationConfigSourceClass, members)
}

func fpgaOwn(c *resourceapi.ResourceClaim, members string, requests ...string) *resourceapi.ResourceClaim {
	return fpgaConfig(c, resourceapi.AllocationConfigSourceClaim, members, requests...)
}

// openClass lets the namespace load its own objects.
const openClass = `"policy":{"allowedBitstreams":["team-a/*"]}`

// plan resolves a claim and asks for its steps, each once, as the engine records them.
func (l *lab) plan(c *resourceapi.ResourceClaim) ([]step.Step, error) {
	l.t.Helper()
	return l.planAgain(c, nil)
}

// planAgain plans for a claim that had some steps before the reboot.
func (l *lab) planAgain(c *resourceapi.ResourceClaim, earlier []step.Step) ([]step.Step, error) {
	l.t.Helper()
	a, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
	check.Must(l.t, err)
	planned, err := l.Plan(l.t.Context(), prepare.Request{
		Claim: c, NamespaceUID: l.namespaceUID(c.Namespace), Allocation: a, Find: l.device, AfterReboot: earlier != nil, Earlier: earlier,
	})
	if len(planned.Edits) > 0 || planned.Decision != nil {
		l.t.Errorf("planned edits %v, decided %s", planned.Edits, planned.Decision)
	}
	var steps []step.Step
	for _, s := range planned.Steps {
		if !slices.ContainsFunc(steps, s.Same) {
			steps = append(steps, s)
		}
	}
	return steps, err
}

// device looks an allocated device up.
func (l *lab) device(r *claim.Result) (device.Device, bool) {
	if r.Kind != device.KindFPGA {
		return nodefixture.GPU(r.Device, 0), true
	}
	found, ok := l.cards.regions[r.Device]
	return device.Device{Kind: r.Kind, Name: r.Device, Region: found}, ok
}

// run applies steps in their order, as the engine does, up to one that fails.
func (l *lab) run(steps []step.Step) error {
	for _, s := range steps {
		if err := l.Kinds().Apply(l.t.Context(), s); err != nil {
			return err
		}
	}
	return nil
}

// told is a step in a line: its parameters without what is the same in all of a test. Images are called by their AFU ids.
func told(t *testing.T, s step.Step) string {
	t.Helper()
	called := func(i *region.Image) string {
		if i == nil {
			return "-"
		}
		return map[string]string{nlb0: "nlb0", nlb3: "nlb3", blankAFU: "blank"}[i.AFUID]
	}
	switch s.Kind {
	case pin.StepKind:
		var p pin.Params
		check.Must(t, json.Unmarshal(s.Params, &p))
		repository, _, _ := strings.Cut(p.Reference, "@")
		line := "pin for " + p.Owner + " " + path.Base(repository)
		if p.Optional {
			line += ", if it can be had"
		}
		return line
	case region.ScrubKind:
		var p region.Scrub
		check.Must(t, json.Unmarshal(s.Params, &p))
		if p.Keep {
			return "scrub " + p.Device + " never"
		}
		return fmt.Sprintf("scrub %s with %s, required %v", p.Device, called(p.Blank), p.Required)
	case region.ParamsKind:
		var p region.Params
		check.Must(t, json.Unmarshal(s.Params, &p))
		return fmt.Sprintf("params %s to %v, before %v", p.Device, p.Set, p.Before)
	case region.ProgramKind:
		var p region.Program
		check.Must(t, json.Unmarshal(s.Params, &p))
		return fmt.Sprintf("program %s with %s, %s, reset %v, then %s with %s, %s", p.Device, called(p.Image), p.Mode, p.ResetBeforeUse,
			p.OnRelease, called(p.Blank), p.Timeout)
	}
	return s.String()
}

func (l *lab) putBlank() {
	l.t.Helper()
	blank := l.clusterObject("blank", l.image("team/blank", shell, blankAFU))
	blank.Spec.Blank, blank.Spec.Namespaces = true, nil
	l.put(blank)
}

// TestPlan: what is done for a claim, in which order. All files come first, each once; they are fetched before.
func TestPlan(t *testing.T) {
	const image = `"bitstream":{"name":"nlb3"}`
	one := func() *resourceapi.ResourceClaim {
		return fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass)
	}
	both := func() *resourceapi.ResourceClaim {
		return fpgaClass(nodefixture.Allocated("u1", fpgaResult("a", "r0"), fpgaResult("b", "r1")), openClass)
	}
	// usual is what is done to a region. An image may have clocks, so what they were is restored.
	usual := func(name, image string) (out []string) {
		out = append(out, "scrub "+name+" with blank, required "+fmt.Sprint(image == "-"))
		if image != "-" {
			out = append(out, "params "+name+" to [], before [{clockKHz 200000} {clockLowKHz 100000}]")
		}
		return append(out, "program "+name+" with "+image+", IfDifferent, reset true, then Reset with blank, 2m0s")
	}
	pins := func(names ...string) (out []string) {
		for _, name := range names {
			out = append(out, "pin for u1 "+name)
			if name == "blank" {
				out[len(out)-1] += ", if it can be had"
			}
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  []string
	}{
		{"a region as it is", one(), slices.Concat(pins("blank"), usual("r0", "-"))},
		{"an image", fpgaOwn(one(), image), slices.Concat(pins("nlb3", "blank"), usual("r0", "nlb3"))},
		{
			"one image for two regions", fpgaOwn(both(), image),
			slices.Concat(pins("nlb3", "blank"), usual("r0", "nlb3"), usual("r1", "nlb3")),
		},
		{
			"an image each", fpgaOwn(fpgaOwn(both(), image, "a"), `"bitstream":{"name":"nlb0"}`, "b"),
			slices.Concat(pins("nlb3", "blank", "nlb0"), usual("r0", "nlb3"), usual("r1", "nlb0")),
		},
		{
			"all that can be said",
			fpgaClass(
				fpgaOwn(one(), image+`,"program":"Always","resetBeforeUse":false,"onRelease":"Blank","timeout":"9s",`+
					`"driverParams":{"clockMHz":300,"ltr":true}`),
				`"policy":{"allowedDriverParams":[{"name":"clockMHz"},{"name":"ltr"}],"requireBlank":true}`,
			),
			[]string{
				"pin for u1 nlb3", "pin for u1 blank", "scrub r0 with blank, required true",
				"params r0 to [{clockKHz 300000} {ltr 1}], before [{clockKHz 200000} {clockLowKHz 100000} {ltr 0}]",
				"program r0 with nlb3, Always, reset false, then Blank with blank, 9s",
			},
		},
		{
			"what must be there already is not fetched, not wiped, and sets no clock of the image",
			fpgaOwn(one(), image+`,"program":"Never"`),
			append(pins("blank"), "scrub r0 never", "program r0 with nlb3, Never, reset true, then Reset with blank, 2m0s"),
		},
		{"a look", fpgaOwn(fpgaClass(nodefixture.Allocated("u1", nodefixture.Look(fpgaResult("main", "r0"))), openClass), image), nil},
		{"no region", nodefixture.Allocated("u1", nodefixture.Result("main", device.KindGPU, "gpu0")), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, twoRegions()...)
			l.cards.params = map[string]int32{dfl.ParamClock: 200_000, dfl.ParamClockLow: 100_000, dfl.ParamLTR: 0}
			l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
			l.put(l.object("team-a", "nlb0", l.image("team/nlb0", shell, nlb0)))
			l.putBlank()
			steps, err := l.plan(tc.claim)
			check.Must(t, err)
			var got []string
			for _, s := range steps {
				got = append(got, told(t, s))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if len(l.cards.trace) > 0 {
				t.Errorf("planning did %v", l.cards.trace)
			}
			l.wantFetched(steps)
		})
	}
}

// wantFetched wants the files of the steps to be on the node, each fetched once, and no others.
func (l *lab) wantFetched(steps []step.Step) {
	l.t.Helper()
	var files []string
	for _, s := range steps {
		if s.Kind == pin.StepKind {
			files = append(files, s.Target)
		}
	}
	slices.Sort(files)
	held, err := l.Artifacts.Held()
	check.Must(l.t, err)
	if diff := cmp.Diff(files, held); diff != "" {
		l.t.Errorf("files on the node (-want +got):\n%s", diff)
	}
	if got := l.Reads.Load(); got != int64(len(files)) {
		l.t.Errorf("%d blobs were read for %d files", got, len(files))
	}
}

// TestFilesComeFirst: as long as any file of a claim is missing, no region of it is touched: because the file cannot be fetched, or because
// it was evicted before it was pinned.
func TestFilesComeFirst(t *testing.T) {
	l := newLab(t, twoRegions()...)
	late := l.image("team/nlb3", shell, nlb3)
	l.put(l.object("team-a", "nlb3", late))
	l.put(l.object("team-a", "fine", l.image("team/fine", shell, blankAFU)))
	c := fpgaClass(nodefixture.Allocated("u1", fpgaResult("a", "r0"), fpgaResult("b", "r1")), openClass)
	fpgaOwn(c, `"bitstream":{"name":"fine"}`, "a")
	fpgaOwn(c, `"bitstream":{"name":"nlb3"}`, "b")
	untouched := func() {
		t.Helper()
		if len(l.cards.trace) > 0 {
			t.Errorf("touched: %v", l.cards.trace)
		}
		left, err := os.ReadDir(filepath.Join(l.dir, regionsDir))
		if err != nil || len(left) > 0 {
			t.Errorf("noted of regions: %v (%v)", left, err)
		}
	}
	l.Intercept(late.Layer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	steps, err := l.plan(c)
	wants(t, err, artifact.ErrUnavailable, "device r1")
	if reasonOf(err) != reasonBitstream || len(steps) > 0 {
		t.Errorf("reason %s, steps %v", reasonOf(err), steps)
	}
	untouched()
	l.Intercept(late.Layer, nil)
	steps, err = l.plan(c)
	check.Must(t, err)
	check.Must(t, l.Artifacts.Destroy())
	err = l.run(steps)
	if wants(t, err, pin.ErrEvicted); reasonOf(err) != reasonBitstream {
		t.Errorf("reason %s", reasonOf(err))
	}
	untouched()
	steps, err = l.plan(c)
	check.Must(t, err)
	check.Must(t, l.run(steps))
	want := []string{"program " + blankAFU + " r0", "program " + nlb3 + " r1"}
	if diff := cmp.Diff(want, l.cards.trace); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
}

// TestPlanAfterReboot: what parameters were before the claim came is remembered, although a card that kept its power still has what the
// claim set. All else is what objects say now.
func TestPlanAfterReboot(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.cards.params = map[string]int32{dfl.ParamLTR: 0}
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	class := `"policy":{"allowedBitstreams":["team-a/*"],"allowedDriverParams":[{"name":"ltr"}]}`
	c := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), class),
		`"bitstream":{"name":"nlb3"},"driverParams":{"ltr":true}`)
	before, err := l.plan(c)
	check.Must(t, err)
	l.cards.params[dfl.ParamLTR] = 1
	l.put(l.object("team-a", "nlb3", l.image("team/nlb0", shell, nlb0)))
	after, err := l.planAgain(c, before)
	check.Must(t, err)
	var got []string
	for _, s := range after {
		got = append(got, told(t, s))
	}
	want := []string{
		"pin for u1 nlb3", "scrub r0 with -, required false", "params r0 to [{ltr 1}], before [{ltr 0}]",
		"program r0 with nlb0, IfDifferent, reset true, then Reset with -, 2m0s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// TestStagedFileIsChecked: a file of the node that is not what the object declares is not programmed.
func TestStagedFileIsChecked(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.stage("srv/nlb3.gbs", fpgaregistry.GBS(shell, nlb3))
	l.put(onHost("staged", v1alpha1.HostBitstream{Path: "/srv/nlb3.gbs", Digest: digestOf([]byte("another"))}))
	c := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("a", "r0")), `"policy":{"allowedBitstreams":["staged"]}`),
		`"bitstream":{"name":"staged","kind":"ClusterFPGABitstream"}`)
	steps, err := l.plan(c)
	check.Must(t, err)
	err = l.run(steps)
	wants(t, err, region.ErrImage, "ClusterFPGABitstream staged", digestOf([]byte("another")))
	if len(l.cards.trace) > 0 || reasonOf(err) != reasonBitstream {
		t.Errorf("done %v, reason %s", l.cards.trace, reasonOf(err))
	}
	l.put(onHost("staged", v1alpha1.HostBitstream{Path: "/srv/nlb3.gbs", Digest: digestOf(fpgaregistry.GBS(shell, nlb3))}))
	steps, err = l.plan(c)
	check.Must(t, err)
	check.Must(t, l.run(steps))
	if diff := cmp.Diff([]string{"program " + nlb3 + " r0"}, l.cards.trace); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
}

// TestFetch: before its pod is bound a claim's files are brought to the node, and nothing else is done. What would be refused is not
// fetched.
func TestFetch(t *testing.T) {
	l := newLab(t, twoRegions()...)
	image := l.image("team/nlb3", shell, nlb3)
	l.put(l.object("team-a", "nlb3", image))
	l.putBlank()
	fetch := func(class string) error {
		return l.fetch(fpgaOwn(
			fpgaClass(nodefixture.Allocated("u1", fpgaResult("a", "r0"), fpgaResult("b", "r1")), class), `"bitstream":{"name":"nlb3"}`))
	}
	wants(t, fetch(`"policy":{"allowKeep":true}`), nil, string(claim.ReasonForbiddenByPolicy))
	if l.Requests.Load() > 0 {
		t.Errorf("%d requests for what is refused", l.Requests.Load())
	}
	l.Intercept(image.Layer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	wants(t, fetch(openClass), artifact.ErrUnavailable, "device r0")
	wants(t, fetch(openClass), artifacts.ErrNotFetched)
	l.Intercept(image.Layer, nil)
	check.Must(t, fetch(openClass))
	held, err := l.Artifacts.Held()
	if err != nil || len(held) != 2 {
		t.Errorf("the node holds %v (%v), want the image and the blank one", held, err)
	}
	if len(l.cards.trace) > 0 {
		t.Errorf("touched: %v", l.cards.trace)
	}
}

// fetch brings the files of a claim to the node.
func (l *lab) fetch(c *resourceapi.ResourceClaim) error {
	l.t.Helper()
	a, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
	check.Must(l.t, err)
	return l.Fetch(&prepare.Request{Claim: c, NamespaceUID: l.namespaceUID(c.Namespace), Allocation: a, Find: l.device})(l.t.Context())
}

// TestPlanAsksNoRegistry: what was fetched is planned without a request, since other claims wait for the card meanwhile. That holds for
// objects, references and what a policy warns of.
func TestPlanAsksNoRegistry(t *testing.T) {
	c, key := newCourt(t), signed.NewKey(t)
	image := c.image("team/nlb3", shell, nlb3)
	c.put(c.object("team-a", "nlb3", image))
	c.putBlank()
	open, _ := c.both()
	for _, mode := range []v1alpha1.VerificationMode{v1alpha1.VerificationSkip, v1alpha1.VerificationWarn} {
		c.rule("release", "team/*", 1, mode, key)
		for _, bitstream := range []string{byName, `"ref":"` + c.Host + `/team/nlb3@` + image.Manifest + `"`} {
			asked := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), `"policy":{`+open+`}`), `"bitstream":{`+bitstream+`}`)
			check.Must(t, c.fetch(asked))
			before := c.Requests.Load()
			_, err := c.plan(asked)
			check.Must(t, err)
			if n := c.Requests.Load() - before; n != 0 {
				t.Errorf("%s, %s: %d requests", mode, bitstream, n)
			}
		}
	}
}

// TestDamagedBlank: a blank image whose file on this node is damaged, of whatever interface, keeps no claim waiting that needs none.
func TestDamagedBlank(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	l.stage("srv/broken.gbs", []byte("not a bitstream that anything could be wiped with, whatever its name"))
	broken := onHost("broken", v1alpha1.HostBitstream{Path: "/srv/broken.gbs"})
	broken.Spec.Blank, broken.Spec.Namespaces = true, nil
	l.put(broken)
	asks := func(more string) *resourceapi.ResourceClaim {
		c := fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass)
		return fpgaOwn(c, `"bitstream":{"name":"nlb3"}`+more)
	}
	steps, err := l.plan(asks(""))
	check.Must(t, err)
	check.Must(t, l.run(steps))
	_, err = l.plan(asks(`,"onRelease":"Blank"`))
	wants(t, err, nil, "the blank image: ClusterFPGABitstream broken")
}

// TestRefusedBlank: a blank image that a TrustPolicy refuses does not hide the next one, for a claim and for one whose record is lost. If
// there is no other, the refusal is told.
func TestRefusedBlank(t *testing.T) {
	l := newCourt(t)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	refused := l.clusterObject("a-refused", l.image("team/a-refused", shell, nlb0))
	refused.Spec.Blank, refused.Spec.Namespaces = true, nil
	l.put(refused)
	l.rule("release", "team/a-refused", 1, v1alpha1.VerificationEnforce, signed.NewKey(t))
	c := fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass)
	c = fpgaOwn(c, `"bitstream":{"name":"nlb3"},"onRelease":"Blank"`)
	_, err := l.plan(c)
	wants(t, err, errRefused, "the blank image: ClusterFPGABitstream a-refused")

	l.putBlank()
	steps, err := l.plan(c)
	check.Must(t, err)
	if last := told(t, steps[len(steps)-1]); !strings.HasSuffix(last, "then Blank with blank, 2m0s") {
		t.Errorf("planned %s", last)
	}
	l.forget("r0")
	_, err = l.Leftovers(t.Context(), "u1", twoRegions()[0])
	check.Must(t, err)
}

// TestFetchOfTheSameTenant: a blank image that cannot be fetched keeps no claim waiting whose own namespace left the traces.
func TestFetchOfTheSameTenant(t *testing.T) {
	l := twoTenants(t)
	steps, err := l.use(asks("team-a", "u1", "r0", "", nlb3Named))
	check.Must(t, err)
	l.giveBack(steps)
	blank := l.image("team/blank", shell, blankAFU)
	object := l.clusterObject("blank", blank)
	object.Spec.Blank, object.Spec.Namespaces = true, nil
	l.put(object)
	l.Intercept(blank.Layer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	check.Must(t, l.fetch(asks("team-a", "u2", "r0", "", nlb3Named)))
	wants(t, l.fetch(asks("team-b", "u3", "r0", "", nlb3Named)), artifacts.ErrNotFetched)
}

// TestBindAfter: of all classes the one that asks for the most counts. A claim that only looks keeps no pod waiting.
func TestBindAfter(t *testing.T) {
	const fetched, loaded = `"policy":{"bindAfter":"Fetched"}`, `"policy":{"bindAfter":"Loaded"}`
	plain := func() *resourceapi.ResourceClaim {
		return nodefixture.Allocated("u1", fpgaResult("a", "r0"), fpgaResult("b", "r1"))
	}
	for _, tc := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  v1alpha1.BindAfter
	}{
		{"no class asks", fpgaClass(plain(), openClass), ""},
		{"one", fpgaClass(plain(), fetched), v1alpha1.BindAfterFetched},
		{"two", fpgaClass(fpgaClass(plain(), loaded), fetched), v1alpha1.BindAfterLoaded},
		{"of another request", fpgaConfig(plain(), resourceapi.AllocationConfigSourceClass, loaded, "b"), v1alpha1.BindAfterLoaded},
		{"a look", fpgaClass(nodefixture.Allocated("u1", nodefixture.Look(fpgaResult("a", "r0"))), loaded), ""},
		{"no region", nodefixture.Allocated("u1", nodefixture.Result("main", device.KindGPU, "gpu0")), ""},
	} {
		a, err := claim.Resolve(claim.Input{Claim: tc.claim, Driver: v1alpha1.DriverName, Node: nodefixture.Node})
		check.Must(t, err)
		if got := BindAfter(a); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestFileSaysTheID: a claim's reference to an OpenCL program, or to a file whose config does not say the AFU id, is programmed as an
// object's is. The id that its region has to show is read from the file, after its signature was checked.
func TestFileSaysTheID(t *testing.T) {
	file, err := os.ReadFile("../../pkg/fpga/testdata/vector.aocx")
	check.Must(t, err)
	about := inspected(t, file)
	for name, tc := range map[string]struct {
		format       fpga.Format
		config, show string
		file         []byte
	}{
		"OpenCL":             {fpga.AOCX, `{"format":"aocx","interfaceID":"` + shell + `","id":"` + about.ID + `"}`, about.AFUID, file},
		"OpenCL, without id": {fpga.AOCX, `{"format":"aocx","interfaceID":"` + shell + `"}`, about.AFUID, file},
		"GBS, without id":    {fpga.GBS, `{"format":"gbs","interfaceID":"` + shell + `"}`, nlb3, fpgaregistry.GBS(shell, nlb3)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, twoRegions()...)
			id := inspected(t, tc.file).InterfaceID
			pushed := l.Push(t, "team/image", "", fpgaregistry.Bitstream{
				Config: strings.ReplaceAll(tc.config, shell, id), Format: tc.format, File: tc.file,
			})
			for _, r := range l.cards.regions {
				r.InterfaceID = id
			}
			c := fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), `"policy":{"allowedRegistries":["`+l.Host+`"]}`)
			steps, err := l.plan(fpgaOwn(c, `"bitstream":{"ref":"`+l.Host+`/team/image@`+pushed.Digest+`"}`))
			check.Must(t, err, l.run(steps))
			if got := l.cards.shows[l.cards.regions["r0"]]; got != tc.show || got == nlb0 {
				t.Errorf("the region shows %s, want %s", got, tc.show)
			}
		})
	}
}

func inspected(t *testing.T, file []byte) fpga.Bitstream {
	t.Helper()
	about, err := fpga.Inspect(bytes.NewReader(file), int64(len(file)))
	check.Must(t, err)
	return about
}

// TestRawImage: the file of a raw image does not state its interface, so a class that lists digests means the manifest. Who repackages a
// listed file for another interface is refused.
func TestRawImage(t *testing.T) {
	l := newLab(t, twoRegions()...)
	file := []byte("0123456789abcdef0123456789abcdef")
	config := func(id string) string { return `{"format":"rbf","id":"` + nlb3 + `","interfaceID":"` + id + `"}` }
	honest := l.Push(t, "team/raw", "v1", fpgaregistry.Bitstream{Config: config(otherShell), Format: fpga.RBF, File: file})
	forged := l.Push(t, "mallory/raw", "v1", fpgaregistry.Bitstream{Config: config(shell), Format: fpga.RBF, File: file})
	l.put(l.object("team-a", "forged", v1alpha1.BitstreamImage{
		Manifest: forged.Digest, Layer: digestOf(file), Size: int64(len(file)), Format: "rbf", ID: nlb3, AFUID: nlb3, InterfaceID: shell,
	}))
	byRef, byName := `"bitstream":{"ref":"`+l.Host+`/mallory/raw@`+forged.Digest+`"}`, `"bitstream":{"name":"forged"}`
	for name, tc := range map[string]struct {
		listed, own string
		allowed     bool
	}{
		"the file, by reference":              {digestOf(file), byRef, false},
		"the file, by object":                 {digestOf(file), byName, false},
		"another manifest of the file":        {honest.Digest, byRef, false},
		"the manifest, by reference":          {forged.Digest, byRef, true},
		"the manifest of the object's status": {forged.Digest, byName, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), `"policy":{"allowedBitstreams":["`+tc.listed+`"]}`)
			_, err := l.plan(fpgaOwn(c, tc.own))
			if tc.allowed {
				check.Must(t, err)
				return
			}
			refused, ok := errors.AsType[*claim.RefusedError](err)
			if !ok || refused.Reason != claim.ReasonForbiddenByPolicy {
				t.Fatalf("got %v, want a refusal", err)
			}
			wants(t, err, nil, "raw image")
		})
	}
}

// TestPlanRefused: what is judged here last, whatever admission let through.
func TestPlanRefused(t *testing.T) {
	l := newLab(t, twoRegions()...)
	image := l.image("team/nlb3", shell, nlb3)
	l.put(l.object("team-a", "nlb3", image))
	l.put(l.object("team-b", "theirs", image))
	cluster := l.clusterObject("shared", image)
	cluster.Spec.Namespaces = []string{"team-b"}
	l.put(cluster)
	const parameters = "status.allocation.devices.config"
	ref := `"bitstream":{"ref":"` + l.Host + `/team/nlb3@` + image.Manifest + `"}`
	digests := func(digest string) string { return `"policy":{"allowedBitstreams":["` + digest + `"]}` }
	const none, forbidden, invalid = "[1] bitstream", claim.ReasonForbiddenByPolicy, claim.ReasonConfigInvalid
	for _, tc := range []struct {
		name, class, own string
		reason           claim.Reason
		field, words     string
		// silent: nobody is asked.
		silent bool
	}{
		{
			"a closed class", `"policy":{"allowKeep":true}`, `"bitstream":{"name":"nlb3"}`,
			forbidden, none, "no class of request main allows any bitstream", false,
		},
		{
			"another name", `"policy":{"allowedBitstreams":["team-a/nlb0"]}`, `"bitstream":{"name":"nlb3"}`,
			forbidden, none, "FPGABitstream team-a/nlb3 is in neither", false,
		},
		{
			"not for the namespace", `"policy":{"allowedBitstreams":["shared"]}`, `"bitstream":{"name":"shared","kind":"ClusterFPGABitstream"}`,
			forbidden, "[1] bitstream.name", "is not for namespace team-a", false,
		},
		{
			"unsigned", `"policy":{"allowedBitstreams":["team-a/*"],"requireSignature":true}`, `"bitstream":{"name":"nlb3"}`,
			forbidden, none, noPolicy, false,
		},
		{
			"a reference elsewhere", `"policy":{"allowedRegistries":["registry.example/team"]}`, ref,
			forbidden, none, "is in neither allowedBitstreams nor allowedRegistries", true,
		},
		{
			"what must be there already, too", `"policy":{"allowKeep":true}`, `"bitstream":{"name":"nlb3"},"program":"Never"`,
			forbidden, none, "no class of request main allows any bitstream", false,
		},
		{"a reference without leave, too", `"policy":{"allowKeep":true}`, ref + `,"program":"Never"`, forbidden, none, "no class", true},
		{"a reference without leave", `"policy":{"allowKeep":true}`, ref, forbidden, none, "no class of request main", true},
		{"a digest that only the registry tells", digests(digestOf([]byte("x"))), ref, forbidden, none, "is in neither", false},
		{
			"another interface", openClass, `"interfaceID":"` + otherShell + `"`,
			invalid, "[1] interfaceID", "device r0 of request main has " + shell, true,
		},
		{
			"blank without an image", openClass, `"onRelease":"Blank"`,
			invalid, "[1] onRelease", "there is no blank image for interface " + shell, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before, asked := l.Requests.Load(), len(l.asked)
			steps, err := l.plan(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), tc.class), tc.own))
			refused, ok := errors.AsType[*claim.RefusedError](err)
			if !ok || refused.Reason != tc.reason || refused.Claim != "team-a/claim-u1" || len(steps) > 0 {
				t.Fatalf("got %v, %v, want a refusal for %s", steps, err, tc.reason)
			}
			index, name, _ := strings.Cut(tc.field, " ")
			if at := parameters + index + ".opaque.parameters." + name; refused.Faults[0].Field != at {
				t.Errorf("field %s, want %s", refused.Faults[0].Field, at)
			}
			wants(t, err, nil, tc.words)
			if tc.silent && (l.Requests.Load() != before || len(l.asked) != asked) {
				t.Errorf("the registry got %d requests, the API server %v", l.Requests.Load()-before, l.asked[asked:])
			}
		})
	}
	for _, allowed := range []string{digests(image.Layer), digests(image.Manifest), `"policy":{"allowedRegistries":["` + l.Host + `/team"]}`} {
		if _, err := l.plan(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), allowed), ref)); err != nil {
			t.Errorf("%s: %v", allowed, err)
		}
	}
	_, err := l.plan(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"theirs"}`))
	wants(t, err, errNotFound, "request main, device r0", "team-a/theirs")
}

// TestReferenceIsNoRight: a manifest of one's own that names another tenant's file does not get that file from the node's store.
func TestReferenceIsNoRight(t *testing.T) {
	l := newLab(t, twoRegions()...)
	alice, mallory := l.image("alice/nlb3", shell, nlb3), l.image("mallory/nlb3", shell, nlb3)
	plan := func(repository string, image v1alpha1.BitstreamImage) error {
		c := fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), `"policy":{"allowedRegistries":["`+l.Host+`"]}`)
		_, err := l.plan(fpgaOwn(c, `"bitstream":{"ref":"`+l.Host+"/"+repository+"@"+image.Manifest+`"}`))
		return err
	}
	check.Must(t, plan("alice/nlb3", alice))
	l.Intercept(alice.Layer, http.NotFound)
	wants(t, plan("mallory/nlb3", mallory), artifacts.ErrNotFetched, "mallory/nlb3", "not from this repository")
	check.Must(t, plan("alice/nlb3", alice))
	l.Intercept(alice.Layer, nil)
	check.Must(t, plan("mallory/nlb3", mallory))
}

// TestNoProgramming: where nothing is to be written to regions, claims get them as they are, and nobody is asked for anything.
func TestNoProgramming(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.File.Programming = false
	l.setBroken(true)
	plain := func() *resourceapi.ResourceClaim { return nodefixture.Allocated("u1", fpgaResult("main", "r0")) }
	steps, err := l.plan(fpgaOwn(fpgaClass(plain(), openClass), `"onRelease":"Reset","resetBeforeUse":true`))
	if err != nil || len(steps) > 0 {
		t.Errorf("got %v, %v", steps, err)
	}
	_, err = l.plan(fpgaClass(plain(), `"policy":{"requireBlank":true}`))
	wants(t, err, nil, string(claim.ReasonForbiddenByPolicy), "config[0].opaque.parameters.policy.requireBlank", "this node wipes no FPGAs")
	for name, own := range map[string]string{
		"bitstream": `"bitstream":{"name":"nlb0"}`, "driverParams": `"driverParams":{"debug":1}`, "onRelease": `"onRelease":"Blank"`,
	} {
		_, err := l.plan(fpgaOwn(fpgaClass(plain(), `"policy":{"allowedBitstreams":["team-a/*"],"allowedDriverParams":[{"name":"debug"}]}`), own))
		refused, ok := errors.AsType[*claim.RefusedError](err)
		if !ok || refused.Reason != claim.ReasonForbiddenByPolicy || !strings.HasSuffix(refused.Faults[0].Field, "parameters."+name) {
			t.Errorf("%s: got %v", name, err)
		}
		wants(t, err, nil, "this node programs no FPGAs", "fpga.programming")
	}
	l.Holder.Set(nodefixture.SnapshotWith(twoRegions()...))
	l.forget("r0")
	if got := l.Orphans(t.Context()); len(got) > 0 {
		t.Errorf("orphans %+v", got)
	}
	if steps, err := l.Leftovers(t.Context(), "u1", twoRegions()[0]); err != nil || len(steps) > 0 {
		t.Errorf("leftovers %v, %v", steps, err)
	}
}

// isRefusedToOthers wants another namespace's claim to be kept from a region whose card's memory nothing clears.
func (l *lab) isRefusedToOthers(name string) {
	l.t.Helper()
	c := fpgaClass(nodefixture.Allocated("other", fpgaResult("main", name)), openClass)
	c.Namespace = "team-b"
	steps, err := l.plan(c)
	check.Must(l.t, err)
	wants(l.t, l.run(steps), region.ErrMemory, "region "+name)
}

// TestProgrammingSwitchedOff: while a node programs nothing, the files of its regions grow old: other namespaces' claims use the regions
// unseen. When it programs again, no namespace gets what may be theirs; the one in the files does not either.
func TestProgrammingSwitchedOff(t *testing.T) {
	l := newLab(t, append(twoRegions(), regionOf("new", "0000:5e:00.0", shell))...)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	mine := func() *resourceapi.ResourceClaim {
		return fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`)
	}
	steps, err := l.plan(mine())
	check.Must(t, err)
	check.Must(t, l.run(steps))
	check.Must(t, l.contents.Distrust("new"))
	l.shows(append(twoRegions(), regionOf("new", "0000:5e:00.0", shell))...)

	l.File.Programming = false
	theirs := nodefixture.Allocated("u2", fpgaResult("main", "r1"), fpgaResult("more", "new")) // r1 is of the same card
	theirs.Namespace = "team-b"
	_, err = l.plan(theirs)
	check.Must(t, err)

	l.File.Programming = true
	steps, err = l.plan(mine())
	check.Must(t, err)
	wants(t, l.run(steps), region.ErrMemory, "region r0")
	if content, err := l.contents.Read("new"); err != nil || content.ForeignTo("") {
		t.Errorf("a region that was never programmed: %+v, %v", content, err)
	}
}

// forget spoils what is known of a region, as a failing disk does.
func (l *lab) forget(name string) {
	l.t.Helper()
	check.Must(l.t, l.contents.Make())
	check.Must(l.t, os.WriteFile(filepath.Join(l.dir, regionsDir, name+".json"), []byte("00000000 {}\n"), 0o600))
}

// breakRegion lets a programming for a claim fail, so that nobody knows what the region holds.
func (l *lab) breakRegion(c *resourceapi.ResourceClaim) {
	l.t.Helper()
	steps, err := l.plan(c)
	check.Must(l.t, err)
	l.cards.fail = errors.New("the card says no")
	wants(l.t, l.run(steps), nil, "may hold anything")
	l.cards.fail, l.cards.trace = nil, nil
}

// TestOrphans: regions in an unknown state, as those of the claim that left them so; and what remains to be done, which puts them right.
func TestOrphans(t *testing.T) {
	l := newLab(t, append(twoRegions(), regionOf("r2", "0000:5e:00.0", otherShell))...)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	l.putBlank()
	if got := l.Orphans(t.Context()); got != nil {
		t.Errorf("orphans of a machine that was not looked at: %+v", got)
	}
	devices := []device.Device{nodefixture.GPU("gpu0", 0)}
	for _, name := range []string{"r0", "r1", "r2"} {
		devices = append(devices, device.Device{Kind: device.KindFPGA, Name: name, Region: l.cards.regions[name]})
	}
	l.Holder.Set(nodefixture.SnapshotWith(devices...))
	if got := l.Orphans(t.Context()); got != nil {
		t.Errorf("orphans of a machine that is well: %+v", got)
	}
	l.breakRegion(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`))
	l.forget("r2")
	want := []prepare.Orphan{{UID: "u1", Device: devices[1]}, {UID: "region-r2", Device: devices[3]}}
	if diff := cmp.Diff(want, l.Orphans(t.Context())); diff != "" {
		t.Fatalf("orphans (-want +got):\n%s", diff)
	}
	steps, err := l.Leftovers(t.Context(), "u1", devices[1])
	check.Must(t, err)
	if len(steps) != 3 { // with the file that the claim programmed
		t.Fatalf("leftovers %v", steps)
	}
	if got := told(t, steps[0]) + told(t, steps[2]); got != "pin for u1 blank"+"program r0 with -, , reset false, then Reset with blank, 0s" {
		t.Errorf("leftovers %s", got)
	}
	// The engine undoes them, the last first. The blank image is here already, since the claim had it.
	for _, s := range slices.Backward(steps) {
		check.Must(t, l.Kinds().Undo(t.Context(), s))
	}
	steps, err = l.Leftovers(t.Context(), "region-r2", devices[3])
	check.Must(t, err)
	if len(steps) != 1 { // there is no blank image for its interface
		t.Errorf("leftovers %v", steps)
	}
	check.Must(t, l.Kinds().Undo(t.Context(), steps[0]))
	if diff := cmp.Diff([]string{"program " + blankAFU + " r0", "reset r2"}, l.cards.trace); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
	if got := l.Orphans(t.Context()); got != nil {
		t.Errorf("orphans after they were put right: %+v", got)
	}
}

// TestLeftovers: a claim whose record is lost gives its region back, once.
func TestLeftovers(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	steps, err := l.plan(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`))
	check.Must(t, err)
	check.Must(t, l.run(steps))
	l.cards.trace = nil
	if claims, err := l.Claims(); err != nil || !slices.Equal(claims, []string{"u1"}) {
		t.Errorf("claims %v, %v, want u1", claims, err)
	}
	steps, err = l.Leftovers(t.Context(), "u1", twoRegions()[0])
	check.Must(t, err)
	for range 2 { // undoing twice is undoing once
		for _, s := range steps {
			check.Must(t, l.Kinds().Undo(t.Context(), s))
		}
	}
	if diff := cmp.Diff([]string{"reset r0"}, l.cards.trace); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
	if kept, err := l.Artifacts.PinnedBy("u1"); err != nil || len(kept) > 0 {
		t.Errorf("files %v are still kept for the claim, %v", kept, err)
	}
	if steps, err := l.Leftovers(t.Context(), "u1", nodefixture.GPU("gpu0", 0)); err != nil || len(steps) > 0 {
		t.Errorf("of a GPU leftovers %v, %v", steps, err)
	}
}

// TestLeftoversAlone: a claim whose record is lost gives back a region whose content is known, whatever becomes of blank images: nobody
// answers, or a TrustPolicy refuses the one that there is. A region that may hold anything waits for one.
func TestLeftoversAlone(t *testing.T) {
	for name, spoil := range map[string]func(c *court){
		"no answer of the API server": func(c *court) { c.setBroken(true) },
		"a refused image": func(c *court) {
			c.putBlank()
			c.rule("release", "team/blank", 1, v1alpha1.VerificationEnforce, signed.NewKey(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newCourt(t)
			l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
			asked := fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`)
			steps, err := l.plan(asked)
			check.Must(t, err)
			check.Must(t, l.run(steps))
			l.cards.trace = nil
			spoil(l)
			steps, err = l.Leftovers(t.Context(), "u1", twoRegions()[0])
			check.Must(t, err)
			for _, s := range slices.Backward(steps) {
				check.Must(t, l.Kinds().Undo(t.Context(), s))
			}
			if diff := cmp.Diff([]string{"reset r0"}, l.cards.trace); diff != "" {
				t.Errorf("done (-want +got):\n%s", diff)
			}
			l.forget("r0")
			if _, err := l.Leftovers(t.Context(), "u1", twoRegions()[0]); err == nil {
				t.Error("no image is looked for, although the region may hold anything")
			}
		})
	}
}

// audit keeps Events with what they are about.
type audit struct{ events []string }

var _ events.EventRecorder = (*audit)(nil)

func (a *audit) Eventf(about, related runtime.Object, kind, reason, action, note string, args ...any) {
	name := func(o runtime.Object) string {
		ref := o.(*corev1.ObjectReference)
		return ref.Kind + " " + ref.Namespace + "/" + ref.Name + " " + string(ref.UID)
	}
	a.events = append(a.events, fmt.Sprintf("%s; %s; %s %s %s: ", name(about), name(related), kind, reason, action)+fmt.Sprintf(note, args...))
}

// TestProgrammed: every attempt is told, with the bytes' digest, where they are from, and for whom; and is counted by what came of it.
func TestProgrammed(t *testing.T) {
	recorder := &audit{}
	told := &status.NodeEvents{Node: nodefixture.Node, Events: recorder}
	f := newFeature(t, newSite(t), Config{
		StateDir: t.TempDir(), File: &nodeconfig.FPGA{Programming: true},
		Event: told.ProgramEvent,
	})
	digest := digestOf([]byte("image"))
	attempt := region.Attempt{
		Device: "r0", Claim: region.Claim{Namespace: "team-a", Name: "work", UID: "u1"}, Why: "program", Took: 1500 * time.Millisecond,
		Image: region.Image{Digest: digest, AFUID: nlb3, Origin: "FPGABitstream team-a/nlb3"},
	}
	ctx := klog.NewContext(t.Context(), klog.Logger{}) // which says nothing
	f.reportAttempt(ctx, attempt)
	attempt.Err = &backend.Error{Kind: backend.Retryable, Device: "dfl-port.0", Op: "program", Err: errors.New("busy")}
	f.reportAttempt(ctx, attempt)
	attempt.Claim, attempt.Why = region.Claim{UID: "u1"}, "release" // of a claim whose record was lost
	attempt.Err = errors.New("100% wrong " + strings.Repeat("x", 2000))
	f.reportAttempt(ctx, attempt)

	const node = "Node /" + nodefixture.Node + " " + nodefixture.Node + "; "
	const claimed = "ResourceClaim team-a/work u1; " + node
	want := []string{
		claimed + "Normal Programmed Program: region r0 of node node-1 (program): programmed " + digest +
			" of FPGABitstream team-a/nlb3, AFU id " + nlb3 + ", in 1.5s",
		claimed + "Warning ProgramFailed Program: region r0 of node node-1 (program): programming " + digest +
			" of FPGABitstream team-a/nlb3 failed after 1.5s: program dfl-port.0: busy",
		node + node + "Warning ProgramFailed Program: region r0 of node node-1 (release): programming " + digest +
			" of FPGABitstream team-a/nlb3 failed after 1.5s: 100% wrong xxx",
	}
	if len(recorder.events) != len(want) {
		t.Fatalf("events %q", recorder.events)
	}
	for i, event := range recorder.events {
		if !strings.HasPrefix(event, want[i]) || i < 2 && event != want[i] || len(event) > message.MaxEventNote+200 {
			t.Errorf("event %q, want %q", event, want[i])
		}
	}
	for labels, want := range map[[2]string]float64{{"program", "ok"}: 1, {"program", "retryable"}: 1, {"release", "unknown state"}: 1} {
		if got := testutil.ToFloat64(f.metrics.programmings.WithLabelValues(labels[0], labels[1])); got != want {
			t.Errorf("counted %v of %v, want %v", got, labels, want)
		}
	}
	if n := testutil.CollectAndCount(f.metrics.seconds); n != 1 {
		t.Errorf("%d histograms", n)
	}
	select {
	case <-f.Rescan: // the region's attributes are read anew
	default:
		t.Error("the machine is not looked at again")
	}
}

// TestReasons: reasons are stable, since alerts and scripts match them.
func TestReasons(t *testing.T) {
	failure := func(k backend.Kind) error {
		return fmt.Errorf("wrapped: %w", &backend.Error{Kind: k, Err: errors.New("EIO")})
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("wrapped: %w", errNotFound), "BitstreamUnusable"},
		{errNotResolved, "BitstreamUnusable"},
		{errNoImage, "BitstreamUnusable"},
		{errNotVerified, "BitstreamUnusable"},
		{errRefused, "BitstreamUnusable"},
		{fmt.Errorf("wrapped: %w", region.ErrImage), "BitstreamUnusable"},
		{failure(backend.Unknown), "ProgramFailed"},
		{failure(backend.Retryable), "RegionUnusable"},
		{failure(backend.Terminal), "RegionUnusable"},
		{fmt.Errorf("region r0: %w", region.ErrGone), "RegionUnusable"},
		{region.ErrOther, "RegionUnusable"},
		{region.ErrTraces, "RegionUnusable"},
		{region.ErrUnknownState, "RegionUnusable"},
		{fmt.Errorf("wrapped: %w", artifacts.ErrNotFetched), "BitstreamUnusable"},
		{fmt.Errorf("wrapped: %w", pin.ErrEvicted), "BitstreamUnusable"},
		{errors.New("of another package"), ""},
	} {
		if got := reasonOf(tc.err); got != tc.want {
			t.Errorf("%v has reason %s, want %s", tc.err, got, tc.want)
		}
	}
	if got := prepare.Reason(fmt.Errorf("wrapped: %w", &conflict.TenantError{Device: "r0"})); got != "ChipInUse" {
		t.Errorf("a chip of another tenant has reason %s", got)
	}
}

// TestFindRegion: a region that is not there is another matter than a machine that was not looked at.
func TestFindRegion(t *testing.T) {
	l := newLab(t)
	_, err := l.find("r0")
	wants(t, err, errNotScanned)
	if errors.Is(err, region.ErrGone) {
		t.Error("a region that nobody looked for counts as gone: its claim would be given back without a reset")
	}
	l.Holder.Set(nodefixture.SnapshotWith(twoRegions()...))
	if found, err := l.find("r1"); err != nil || found.Card != "0000:3b:00.0" {
		t.Errorf("found %+v, %v", found, err)
	}
	_, err = l.find("r2")
	wants(t, err, region.ErrGone)
}

// TestDestroy: a node that is retired keeps no files, and of what was known of regions only whose traces are in them.
func TestDestroy(t *testing.T) {
	l := newLab(t, twoRegions()...)
	l.put(l.object("team-a", "nlb3", l.image("team/nlb3", shell, nlb3)))
	steps, err := l.plan(fpgaOwn(fpgaClass(nodefixture.Allocated("u1", fpgaResult("main", "r0")), openClass), `"bitstream":{"name":"nlb3"}`))
	check.Must(t, err)
	check.Must(t, l.run(steps))
	check.Must(t, os.MkdirAll(l.xclbins(), 0o700))
	check.Must(t, errors.Join(l.Destroy(), l.Artifacts.Destroy()))
	left, err := os.ReadDir(filepath.Join(l.dir, regionsDir))
	if err != nil || len(left) != 2 {
		t.Errorf("of regions %v is left (%v), want the files of the card's", left, err)
	}
	l.isRefusedToOthers("r0")
	l.isRefusedToOthers("r1")
	for _, dir := range []string{artifactsDir, xclbinsDir} {
		if _, err := os.Stat(filepath.Join(l.dir, dir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left (%v)", dir, err)
		}
	}
}
