// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

const (
	shell = "9926ab6d6c925a68aabca7d84c545738"
	other = "ce48969398f05f33946d560708be108a"
	nlb0  = "d8424dc4a4a3c413f89e433683f9040b"
	team  = "default"
)

// gbs is nlb0 for an interface.
func gbs(t *testing.T, iface string) []byte {
	t.Helper()
	data, err := os.ReadFile("../pkg/fpga/testdata/nlb0.gbs")
	if err != nil {
		t.Fatal(err)
	}
	dashed := iface[:8] + "-" + iface[8:12] + "-" + iface[12:16] + "-" + iface[16:20] + "-" + iface[20:]
	return []byte(strings.Replace(string(data), "9926AB6D-6C92-5A68-AABC-A7D84C545738", dashed, 1))
}

func own(name, image string, secrets ...string) *v1alpha1.FPGABitstream {
	b := &v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name}}
	b.Spec.Image = image
	for _, s := range secrets {
		b.Spec.ImagePullSecrets = append(b.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return b
}

// ofCluster is a ClusterFPGABitstream for all namespaces.
func ofCluster(name string, change func(*v1alpha1.ClusterFPGABitstreamSpec)) *v1alpha1.ClusterFPGABitstream {
	b := &v1alpha1.ClusterFPGABitstream{ObjectMeta: metav1.ObjectMeta{Name: name}}
	b.Spec.Namespaces = []string{"*"}
	change(&b.Spec)
	return b
}

// testBitstreamRules: the API server itself refuses what the definitions say.
func (c cluster) testBitstreamRules(t *testing.T) {
	const (
		image   = "registry.example:5000/team/nlb0:v1"
		digest  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		form    = "spec.image: Invalid value: must be registry/repository:TAG or registry/repository@sha256:DIGEST, in lower case"
		place   = "spec.image: Invalid value: must name its registry by a host with a dot or a port, such as docker.io"
		badPath = "spec.hostFile.path in body should match"
	)
	apitest.Eventually(t, func() string {
		return cmp.Or(errorText(c.client.List(t.Context(), &v1alpha1.FPGABitstreamList{})),
			errorText(c.client.List(t.Context(), &v1alpha1.ClusterFPGABitstreamList{})))
	})
	type spec = v1alpha1.ClusterFPGABitstreamSpec
	host := func(h v1alpha1.HostBitstream) func(*spec) {
		return func(s *spec) { s.HostFile = &h }
	}
	for _, test := range []struct {
		name   string
		object client.Object
		want   string // empty: accepted
	}{
		{"tag", own("x", image), ""},
		{"digest", own("x", "registry.example/nlb0@"+digest), ""},
		{"tag and digest", own("x", image+"@"+digest), ""},
		{"neither", own("x", "registry.example/a/b_c/d--e.f"), ""},
		{"registry on this machine", own("x", "localhost/nlb0"), ""},
		{"secrets", own("x", image, "a", "b"), ""},
		{"no image", own("x", ""), "spec.image in body should be at least 3 chars long"},
		{"long image", own("x", "registry.example/"+strings.Repeat("a", 500)), "spec.image: Too long: may not be more than 512"},
		{"no repository", own("x", "registry.example"), form},
		{"scheme", own("x", "https://registry.example/a"), form},
		{"dots", own("x", "registry.example/../a"), form},
		{"empty part", own("x", "registry.example//a"), form},
		{"upper case", own("x", "registry.example/A"), form},
		{"short digest", own("x", "registry.example/a@sha256:01"), form},
		{"space", own("x", "registry.example/a b"), form},
		{"Docker Hub's by accident", own("x", "team/nlb0:v1"), place},
		{
			"many secrets", own("x", image, "a", "b", "c", "d", "e", "f", "g", "h", "i"),
			"spec.imagePullSecrets: Too many: 9: must have at most 8 items",
		},
		{"secret twice", own("x", image, "a", "a"), "spec.imagePullSecrets[1]: Duplicate value"},
		{"secret without name", own("x", image, ""), "spec.imagePullSecrets: Invalid value: name each Secret"},

		{"cluster", ofCluster("x", func(s *spec) { s.Image = image }), ""},
		{"cluster for some", ofCluster("x", func(s *spec) { s.Image, s.Namespaces = image, []string{"a", "b-c"} }), ""},
		{"blank", ofCluster("x", func(s *spec) { s.Image, s.Namespaces, s.Blank = image, nil, true }), ""},
		{"blank that clears memory", ofCluster("x", func(s *spec) {
			s.Image, s.Blank, s.MemoryClearTime = image, true, &metav1.Duration{Duration: 8 * time.Second}
		}), ""},
		{"logic that clears memory", ofCluster("x", func(s *spec) {
			s.Image, s.MemoryClearTime = image, &metav1.Duration{Duration: 8 * time.Second}
		}), "memoryClearTime is for a blank image"},
		{"memory that takes too long to clear", ofCluster("x", func(s *spec) {
			s.Image, s.Blank, s.MemoryClearTime = image, true, &metav1.Duration{Duration: time.Hour}
		}), "must be 1ms to 10m"},
		{"path", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/srv/fpga/a.gbs", Digest: digest})), ""},
		{"store", ofCluster("x", host(v1alpha1.HostBitstream{Store: "/srv/intel.com/fpga", ID: nlb0})), ""},
		{"OpenCL in a store", ofCluster("x", host(v1alpha1.HostBitstream{Store: "/srv/fpga", ID: nlb0 + "01234567", Digest: digest})), ""},
		{"neither image nor file", ofCluster("x", func(*spec) {}), "spec: Invalid value: set exactly one of image and hostFile"},
		{"image and file", ofCluster("x", func(s *spec) {
			s.Image, s.HostFile = image, &v1alpha1.HostBitstream{Path: "/a", Digest: digest}
		}), "spec: Invalid value: set exactly one of image and hostFile"},
		{"for none", ofCluster("x", func(s *spec) { s.Image, s.Namespaces = image, nil }), "spec: Invalid value: name at least one namespace"},
		{
			"bad namespace", ofCluster("x", func(s *spec) { s.Image, s.Namespaces = image, []string{"A"} }),
			"spec.namespaces[0] in body should match",
		},
		{
			"pattern of namespaces", ofCluster("x", func(s *spec) { s.Image, s.Namespaces = image, []string{"team-*"} }),
			"spec.namespaces[0] in body should match",
		},
		{
			"namespace twice", ofCluster("x", func(s *spec) { s.Image, s.Namespaces = image, []string{"a", "a"} }),
			"spec.namespaces[1]: Duplicate value",
		},
		{"cluster's bad image", ofCluster("x", func(s *spec) { s.Image = "registry.example" }), form},
		{"cluster's Docker Hub", ofCluster("x", func(s *spec) { s.Image = "team/nlb0" }), place},
		{"secrets for a file", ofCluster("x", func(s *spec) {
			s.HostFile, s.ImagePullSecrets = &v1alpha1.HostBitstream{Path: "/a", Digest: digest}, []corev1.LocalObjectReference{{Name: "a"}}
		}), "spec: Invalid value: imagePullSecrets are for an image"},
		{"no file", ofCluster("x", host(v1alpha1.HostBitstream{})), "spec.hostFile: Invalid value: set exactly one of path and store"},
		{
			"path and store", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/a", Digest: digest, Store: "/b", ID: nlb0})),
			"spec.hostFile: Invalid value: set exactly one of path and store",
		},
		{
			"store without id", ofCluster("x", host(v1alpha1.HostBitstream{Store: "/srv/fpga"})),
			"spec.hostFile: Invalid value: id goes with store",
		},
		{
			"id without store", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/a", Digest: digest, ID: nlb0})),
			"spec.hostFile: Invalid value: id goes with store",
		},
		{
			"path without digest", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/srv/a.gbs"})),
			"spec.hostFile: Invalid value: a path needs the digest of its file",
		},
		{
			"id that leads out", ofCluster("x", host(v1alpha1.HostBitstream{Store: "/srv/fpga", ID: "../../etc/shadow"})),
			"spec.hostFile.id in body should match",
		},
		{"relative path", ofCluster("x", host(v1alpha1.HostBitstream{Path: "srv/a", Digest: digest})), badPath},
		{"dots in a path", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/srv/../etc/a", Digest: digest})), badPath},
		{"directory", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/srv/", Digest: digest})), badPath},
		{
			"bad digest", ofCluster("x", host(v1alpha1.HostBitstream{Path: "/a", Digest: "sha256:01"})),
			"spec.hostFile.digest in body should match",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := c.client.Create(t.Context(), test.object, client.DryRunAll)
			if test.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			// The API server repeats the value between the two parts of such an error.
			for _, part := range strings.SplitAfterN(test.want, "Invalid value: ", 2) {
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it refused with %q", err, part)
				}
			}
		})
	}
}

// resolved says "STATUS REASON" of the condition, or why there is none.
func (c cluster) resolved(t *testing.T, object client.Object) string {
	t.Helper()
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		return err.Error()
	}
	status := statusOf(object)
	condition := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionResolved)
	if condition == nil || condition.ObservedGeneration != object.GetGeneration() {
		return "no condition of this generation"
	}
	return string(condition.Status) + " " + condition.Reason
}

func statusOf(object client.Object) v1alpha1.FPGABitstreamStatus {
	switch b := object.(type) {
	case *v1alpha1.FPGABitstream:
		return b.Status
	case *v1alpha1.ClusterFPGABitstream:
		return b.Status
	}
	return v1alpha1.FPGABitstreamStatus{}
}

// await waits until the condition is as wanted; the object is then as it was read last.
func (c cluster) await(t *testing.T, object client.Object, want string) {
	t.Helper()
	apitest.Eventually(t, func() string {
		if got := c.resolved(t, object); got != want {
			return fmt.Sprintf("%s is %s, want %s: %+v", object.GetName(), got, want, statusOf(object))
		}
		return ""
	})
}

// testBitstreams: what is in the registry is in the status, and in the columns.
func (c cluster) testBitstreams(t *testing.T, r replica) {
	first := c.registry.Push(t, "team/nlb0", "", fpgaregistry.Bitstream{
		Config: `{"interfaceID":"` + shell + `"}`, Format: fpga.GBS, File: gbs(t, shell),
	})
	second := c.registry.Push(t, "team/nlb0", "", fpgaregistry.Bitstream{
		Config: `{"interfaceID":"` + other + `"}`, Format: fpga.GBS, File: gbs(t, other),
	})
	index := c.registry.Manifest(t, "team/nlb0", "both", fpgaregistry.Manifest{Manifests: []fpgaregistry.Descriptor{second, first}})
	c.registry.Push(t, "team/nlb0", "torn", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: gbs(t, shell)[:100]})

	both := own("both", c.registry.Host+"/team/nlb0:both")
	pinned := ofCluster("pinned", func(s *v1alpha1.ClusterFPGABitstreamSpec) { s.Image = c.registry.Host + "/team/nlb0@" + first.Digest })
	staged := ofCluster("staged", func(s *v1alpha1.ClusterFPGABitstreamSpec) {
		s.HostFile = &v1alpha1.HostBitstream{Store: "/srv/fpga", ID: nlb0}
	})
	torn, missing := own("torn", c.registry.Host+"/team/nlb0:torn"), own("missing", c.registry.Host+"/team/nlb0:never")
	for object, want := range map[client.Object]string{
		both: "True Resolved", pinned: "True Resolved", staged: "True HostFile", torn: "False NotABitstream", missing: "False NotFound",
	} {
		c.create(t, object)
		c.await(t, object, want)
	}
	image := func(d fpgaregistry.Descriptor, iface string) v1alpha1.BitstreamImage {
		layer := c.registry.Blob(t, "team/nlb0", fpga.GBS.LayerType(), gbs(t, iface))
		return v1alpha1.BitstreamImage{
			Manifest: d.Digest, Layer: layer.Digest, Size: layer.Size, Format: "gbs", ID: nlb0, AFUID: nlb0, InterfaceID: iface, Name: "nlb_400",
		}
	}
	if diff := gocmp.Diff([]v1alpha1.BitstreamImage{image(first, shell), image(second, other)}, both.Status.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if both.Status.Digest != index.Digest || both.Status.ObservedGeneration != both.Generation {
		t.Errorf("status %+v, want digest %s", both.Status, index.Digest)
	}
	verified := meta.FindStatusCondition(both.Status.Conditions, v1alpha1.ConditionVerified)
	if verified == nil || verified.Status != metav1.ConditionUnknown || verified.Reason != "NoTrustPolicy" {
		t.Errorf("condition Verified: %+v", verified)
	}
	size := fmt.Sprint(both.Status.Images[0].Size)
	// The API server prints the first of several values.
	c.wantRow(t, "namespaces/"+team+"/fpgabitstreams/both", map[string]string{
		"Resolved": "True", "Verified": "Unknown", "Interface": shell, "AFU": nlb0, "Size": size,
		"Image": both.Spec.Image, "Digest": index.Digest,
	})
	c.wantRow(t, "clusterfpgabitstreams/staged", map[string]string{"Resolved": "True", "Namespaces": "*", "Image": "<nil>"})
	apitest.Eventually(t, func() string { return c.missingEvent("torn", "NotABitstream") })
	apitest.Eventually(t, func() string { return c.missingEvent("pinned", "Resolved") })
	apitest.Eventually(t, func() string { return missingReasons(t, r, "Resolved", "HostFile", "NotABitstream", "NotFound") })
	settled := pinned.ResourceVersion
	c.await(t, missing, "False NotFound")
	if c.await(t, pinned, "True Resolved"); pinned.ResourceVersion != settled {
		t.Error("a settled object was written again")
	}
}

// testHolders: the nodes that hold a file are counted as they come and go, without any registry.
func (c cluster) testHolders(t *testing.T) {
	first := c.registry.Push(t, "team/held", "", fpgaregistry.Bitstream{
		Config: `{"interfaceID":"` + shell + `"}`, Format: fpga.GBS, File: gbs(t, shell),
	})
	second := c.registry.Push(t, "team/held", "", fpgaregistry.Bitstream{
		Config: `{"interfaceID":"` + other + `"}`, Format: fpga.GBS, File: gbs(t, other),
	})
	index := c.registry.Manifest(t, "team/held", "both", fpgaregistry.Manifest{Manifests: []fpgaregistry.Descriptor{second, first}})
	at := c.registry.Host + "/team/held@" + index.Digest
	mine, all := own("held", at), ofCluster("held", func(s *v1alpha1.ClusterFPGABitstreamSpec) { s.Image = at })
	staged := ofCluster("staged-too", func(s *v1alpha1.ClusterFPGABitstreamSpec) {
		s.HostFile = &v1alpha1.HostBitstream{Store: "/srv/fpga", ID: nlb0}
	})
	counted := func(want int32) {
		t.Helper()
		for _, object := range []client.Object{mine, all} {
			apitest.Eventually(t, func() string {
				resolved := c.resolved(t, object)
				if got := statusOf(object).Nodes; got == nil || *got != want || resolved != "True Resolved" {
					return fmt.Sprintf("%s: %s, nodes %v, want %d", object.GetName(), resolved, ptr.Deref(got, -1), want)
				}
				return ""
			})
		}
	}
	hold := func(node *v1alpha1.AcceleratorNode, digests ...string) {
		t.Helper()
		before := node.DeepCopy()
		node.Status.Bitstreams = digests
		if err := c.client.Status().Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	layer := func(iface string) string {
		return c.registry.Blob(t, "team/held", fpga.GBS.LayerType(), gbs(t, iface)).Digest
	}
	early := c.accelerator(t, "early", "", true)
	hold(early, layer(shell))
	c.create(t, mine)
	c.create(t, all)
	c.create(t, staged)
	counted(1)
	c.registry.Down.Store(true)
	defer c.registry.Down.Store(false)
	late := c.accelerator(t, "late", "", true)
	hold(late, layer(shell), layer(other))
	counted(2)
	c.wantRow(t, "namespaces/"+team+"/fpgabitstreams/held", map[string]string{"Nodes": "2"})
	c.wantRow(t, "clusterfpgabitstreams/held", map[string]string{"Nodes": "2"})
	hold(early, "sha256:"+strings.Repeat("0", 64))
	counted(1)
	if err := c.client.Delete(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	counted(0)
	c.await(t, staged, "True HostFile")
	if got := staged.Status.Nodes; got != nil {
		t.Errorf("%d nodes are counted of files that are there anyway", *got)
	}
}

// missingReasons says which reasons the metric lacks.
func missingReasons(t *testing.T, r replica, want ...string) string {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if f.GetName() == "fettle_controller_bitstream_resolutions_total" && label.GetName() == "reason" && m.GetCounter().GetValue() > 0 {
					want = slices.DeleteFunc(want, func(s string) bool { return s == label.GetValue() })
				}
			}
		}
	}
	return strings.Join(want, ", ")
}

// wantRow compares some columns of what a client prints.
func (c cluster) wantRow(t *testing.T, path string, want map[string]string) {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(c.config)
	if err != nil {
		t.Fatal(err)
	}
	server, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		t.Fatal(err)
	}
	at := server.JoinPath("apis/fettle.dev/v1alpha1", path).String()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := httpClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("%s: %v: %s", path, err, data)
	}
	got := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		if _, wanted := want[column.Name]; wanted {
			got[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("columns of %s (-want +got):\n%s", path, diff)
	}
}

// testMovingTag: a tag is followed, an outage loses nothing, and nothing keeps an object.
func (c cluster) testMovingTag(t *testing.T) {
	push := func(iface string) string {
		return c.registry.Push(t, "team/moving", "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: gbs(t, iface)}).Digest
	}
	before := push(shell)
	object := own("moving", c.registry.Host+"/team/moving:v1")
	c.create(t, object)
	c.await(t, object, "True Resolved")
	if object.Status.Digest != before {
		t.Errorf("digest %s, want %s", object.Status.Digest, before)
	}
	after := push(other)
	apitest.Eventually(t, func() string {
		if got := c.resolved(t, object); got != "True Resolved" || object.Status.Digest != after || object.Status.Images[0].InterfaceID != other {
			return fmt.Sprintf("%s %+v", got, object.Status)
		}
		return ""
	})
	c.registry.Down.Store(true)
	defer c.registry.Down.Store(false)
	c.await(t, object, "Unknown RegistryUnavailable")
	if object.Status.Digest != after || len(object.Status.Images) != 1 {
		t.Errorf("an outage lost what was known: %+v", object.Status)
	}
	late := own("late", c.registry.Host+"/team/moving:v1")
	c.create(t, late)
	c.await(t, late, "False RegistryUnavailable")
	if err := c.client.Delete(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(late), late); !apierrors.IsNotFound(err) {
		t.Errorf("deleted in an outage: %v, want it gone at once", err)
	}
	c.registry.Down.Store(false)
	c.await(t, object, "True Resolved")
	c.registry.Delete(t, "team/moving", "v1")
	c.await(t, object, "False NotFound")
	if object.Status.Digest != "" || len(object.Status.Images) > 0 {
		t.Errorf("a tag that is gone means something: %+v", object.Status)
	}
}

// pullSecret makes a Secret for the registry.
func (c cluster) pullSecret(t *testing.T, namespace, name, password string) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"auths": map[string]any{
		c.registry.Host: map[string]string{"username": fpgaregistry.User, "password": password},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
	})
}

// testPullSecrets: an object is read with its own secrets, which the kubelet plugin may read as long as the object names them.
func (c cluster) testPullSecrets(t *testing.T) {
	c.registry.Push(t, "private/nlb0", "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: gbs(t, shell)})
	image := c.registry.Host + "/private/nlb0:v1"
	c.pullSecret(t, team, "pull", fpgaregistry.Password)
	c.pullSecret(t, team, "pull2", "wrong")
	c.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "opaque"}})

	object := own("private", image)
	c.create(t, object)
	c.await(t, object, "False Unauthorized")
	change := func(secrets ...string) {
		t.Helper()
		c.update(t, object, func() { object.Spec.ImagePullSecrets = own("", "", secrets...).Spec.ImagePullSecrets })
	}
	for _, step := range []struct {
		secrets []string
		want    string
	}{
		{[]string{"never"}, "False PullSecretUnavailable"},
		{[]string{"opaque"}, "False PullSecretUnavailable"},
		{[]string{"pull2"}, "False Unauthorized"},
		{[]string{"pull2", "pull"}, "False Unauthorized"}, // the earlier secret counts
		{[]string{"pull", "pull2"}, "True Resolved"},
		{[]string{"pull"}, "True Resolved"},
		{nil, "False Unauthorized"},
	} {
		change(step.secrets...)
		c.await(t, object, step.want)
		apitest.Eventually(t, func() string { return c.wrongGrants(t, object, step.secrets...) })
	}
	c.testForeignRole(t, image)
	c.testClusterSecret(t, image)
}

// testForeignRole: a Role of the name that belongs to another object is not changed.
func (c cluster) testForeignRole(t *testing.T, image string) {
	foreign := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "fettle.dev:fpgabitstream:taken"}}
	c.create(t, foreign)
	object := own("taken", image, "pull")
	c.create(t, object)
	c.await(t, object, "False PullSecretUnavailable")
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err != nil || len(foreign.Rules) > 0 {
		t.Errorf("the foreign Role became %+v, %v", foreign.Rules, err)
	}
	if err := c.client.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	c.await(t, object, "True Resolved")
}

// testClusterSecret: the secrets of a ClusterFPGABitstream are in the driver's namespace.
func (c cluster) testClusterSecret(t *testing.T, image string) {
	object := ofCluster("private", func(s *v1alpha1.ClusterFPGABitstreamSpec) {
		s.Image, s.ImagePullSecrets = image, []corev1.LocalObjectReference{{Name: "pull"}}
	})
	c.create(t, object)
	c.await(t, object, "False PullSecretUnavailable")
	c.pullSecret(t, namespace, "pull", fpgaregistry.Password)
	c.await(t, object, "True Resolved")
	apitest.Eventually(t, func() string { return c.wrongGrants(t, object, "pull") })
}

// grantedBitstream is an object for whose secret there is a Role.
func (c cluster) grantedBitstream(t *testing.T, name string) *v1alpha1.FPGABitstream {
	t.Helper()
	c.registry.Push(t, "private/nlb0", "v1", fpgaregistry.Bitstream{Config: `{}`, Format: fpga.GBS, File: gbs(t, shell)})
	c.pullSecret(t, team, name, fpgaregistry.Password)
	object := own(name, c.registry.Host+"/private/nlb0:v1", name)
	c.create(t, object)
	c.await(t, object, "True Resolved")
	apitest.Eventually(t, func() string { return c.wrongGrants(t, object, name) })
	return object
}

// wrongGrants says what is wrong with the object's Role, or with what the API server lets the kubelet plugin do by it.
func (c cluster) wrongGrants(t *testing.T, object client.Object, secrets ...string) string {
	t.Helper()
	where, kind := object.GetNamespace(), "fpgabitstream"
	if where == "" {
		where, kind = namespace, "clusterfpgabitstream"
	}
	var role rbacv1.Role
	var binding rbacv1.RoleBinding
	key := client.ObjectKey{Namespace: where, Name: "fettle.dev:" + kind + ":" + object.GetName()}
	for _, live := range []client.Object{&role, &binding} {
		err := c.client.Get(t.Context(), key, live)
		if len(secrets) == 0 && !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%T %s is there: %v", live, key, err)
		}
		if len(secrets) == 0 {
			continue
		}
		if owner := metav1.GetControllerOf(live); err != nil || owner == nil || owner.UID != object.GetUID() || owner.BlockOwnerDeletion != nil {
			return fmt.Sprintf("%T %s has owner %+v: %v", live, key, owner, err)
		}
		if live.GetLabels()[names.ManagedByLabel] != names.Controller {
			return fmt.Sprintf("%T %s has labels %v", live, key, live.GetLabels())
		}
	}
	for _, name := range []string{"pull", "pull2", "opaque", object.GetName()} {
		for verb, want := range map[string]bool{"get": slices.Contains(secrets, name), "list": false, "update": false} {
			if where == team && c.othersGrant(t, object, name) {
				continue
			}
			if got := c.pluginMay(t, where, verb, "secrets", name); got != want {
				return fmt.Sprintf("the kubelet plugin may %s Secret %s/%s: %v, want %v", verb, where, name, got, want)
			}
		}
	}
	return ""
}

// othersGrant says whether another object's Role is for the secret, too.
func (c cluster) othersGrant(t *testing.T, object client.Object, secret string) bool {
	t.Helper()
	var list v1alpha1.FPGABitstreamList
	if err := c.client.List(t.Context(), &list, client.InNamespace(team)); err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(list.Items, func(b v1alpha1.FPGABitstream) bool {
		return b.Name != object.GetName() && slices.Contains(b.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	})
}

// pluginMay asks the API server, which takes a moment to know of a Role.
func (c cluster) pluginMay(t *testing.T, where, verb, resource, name string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + namespace + ":" + names.PluginAccount,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: where, Verb: verb, Version: "v1", Resource: resource, Name: name,
		},
	}}
	if err := c.client.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}
