// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// named is a claim's word for an object of its namespace, and clusters' for one of the cluster.
func named(name string) *v1alpha1.BitstreamSource {
	return &v1alpha1.BitstreamSource{Name: name, Kind: v1alpha1.KindFPGABitstream}
}

func clusters(name string) *v1alpha1.BitstreamSource {
	return &v1alpha1.BitstreamSource{Name: name, Kind: v1alpha1.KindClusterFPGABitstream}
}

func (l *lab) found(namespace string, source *v1alpha1.BitstreamSource, interfaceID string) *bitstream {
	l.t.Helper()
	b, err := l.bitstreams.find(l.t.Context(), namespace, source, interfaceID)
	check.Must(l.t, err)
	return b
}

func same(t *testing.T, want, got *bitstream) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(bitstream{}), cmpopts.EquateComparable(artifact.Reference{})); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func digest(t *testing.T, text string) artifact.Digest {
	t.Helper()
	d, err := artifact.ParseDigest(text)
	check.Must(t, err)
	return d
}

func reference(t *testing.T, text string) artifact.Reference {
	t.Helper()
	ref, err := artifact.ParseReference(text)
	check.Must(t, err)
	return ref
}

// TestFindObject: what the controller found is taken as it is: the digests that policies may name, the file that is programmed, and
// whose pull secrets bring it.
func TestFindObject(t *testing.T) {
	l := newLab(t)
	image, other := l.image("team/nlb0", shell, nlb0), l.image("team/nlb0", otherShell, nlb0)
	index := "sha256:" + strings.Repeat("1", 64)
	object := l.object("team-a", "nlb0", other, image)
	object.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}, {Name: "more"}}
	object.Status.Digest = index
	l.put(object)
	want := &bitstream{
		identity: claim.Bitstream{
			Kind: v1alpha1.KindFPGABitstream, Namespace: "team-a", Name: "nlb0", Repository: l.Host + "/team/nlb0",
			Digests: []string{image.Layer, image.Manifest, index},
		},
		image: region.Image{
			Digest: image.Layer, Size: image.Size, InterfaceID: shell, AFUID: nlb0, Config: fpga.Config{Format: fpga.GBS},
			Origin: "FPGABitstream team-a/nlb0",
		},
		signed: reference(t, object.Spec.Image).WithDigest(digest(t, index)), manifest: image.Manifest, namespace: "team-a",
		fetch: &pin.Params{
			Reference: l.Host + "/team/nlb0@" + image.Manifest, Digest: image.Layer, Size: image.Size, SecretsIn: "team-a",
			Secrets: []string{"pull", "more"},
		},
	}
	same(t, want, l.found("team-a", named("nlb0"), shell))
	if got := l.found("team-a", named("nlb0"), otherShell); got.image.Digest != other.Layer || got.fetch.Digest != other.Layer {
		t.Errorf("for another region: %+v", got)
	}

	cluster := l.clusterObject("nlb0", image)
	cluster.Spec.Namespaces, cluster.Spec.ImagePullSecrets = []string{"team-a"}, []corev1.LocalObjectReference{{Name: "pull"}}
	l.put(cluster)
	want.identity = claim.Bitstream{
		Kind: v1alpha1.KindClusterFPGABitstream, Name: "nlb0", Repository: l.Host + "/team/nlb0", Namespaces: []string{"team-a"},
		Digests: []string{image.Layer, image.Manifest, image.Manifest},
	}
	want.signed, want.namespace = want.signed.WithDigest(digest(t, image.Manifest)), ""
	want.image.Origin = "ClusterFPGABitstream nlb0"
	want.fetch.SecretsIn, want.fetch.Secrets = "fettle", []string{"pull"} // never those of the claim's namespace
	same(t, want, l.found("team-b", clusters("nlb0"), shell))
}

// TestFindRaw: a raw image says nothing itself, so what the object says goes along.
func TestFindRaw(t *testing.T) {
	l := newLab(t)
	raw := v1alpha1.BitstreamImage{
		Manifest: digestOf([]byte("m")), Layer: digestOf([]byte("l")), Size: 9, Format: "rbf", ID: nlb0, AFUID: nlb0, InterfaceID: shell,
	}
	l.put(l.object("team-a", "raw", raw))
	got := l.found("team-a", named("raw"), shell)
	if diff := cmp.Diff(fpga.Config{Format: fpga.RBF, ID: nlb0, InterfaceID: shell}, got.image.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

// TestFindFails: why nothing is found, and what is to be done about it.
func TestFindFails(t *testing.T) {
	l := newLab(t)
	image := l.image("team/nlb0", shell, nlb0)
	l.put(l.object("team-b", "theirs", image))
	l.put(l.clusterObject("everyones", image))
	l.put(l.object("team-a", "mine", image))
	stale := l.object("team-a", "edited", image)
	stale.Generation = 2
	l.put(stale)
	fresh := l.object("team-a", "fresh", image)
	fresh.Status = v1alpha1.FPGABitstreamStatus{ObservedGeneration: 1, Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionFalse, Message: "the registry answers 401"},
	}}
	l.put(fresh)
	untouched := l.clusterObject("untouched", image)
	untouched.Status = v1alpha1.FPGABitstreamStatus{}
	l.put(untouched)
	for _, tc := range []struct {
		name   string
		source *v1alpha1.BitstreamSource
		of     string
		cause  error
		words  []string
	}{
		{
			"no such object", named("nothing"), shell, errNotFound,
			[]string{"FPGABitstream team-a/nothing: does not exist: create it, or correct the claim's bitstream"},
		},
		{"no such object of the cluster", clusters("mine"), shell, errNotFound, []string{"ClusterFPGABitstream mine"}},
		{"the cluster's is no object of the namespace", named("everyones"), shell, errNotFound, []string{"team-a/everyones"}},
		{"another namespace's", named("theirs"), shell, errNotFound, []string{"FPGABitstream team-a/theirs"}},
		{"changed since it was resolved", named("edited"), shell, errNotResolved, []string{"wait for the controller"}},
		{"not resolved, and why", named("fresh"), shell, errNotResolved, []string{"the registry answers 401"}},
		{"not looked at by the controller", clusters("untouched"), shell, errNotResolved, []string{"ClusterFPGABitstream untouched"}},
		{
			"for other regions", named("mine"), otherShell, errNoImage,
			[]string{"FPGABitstream team-a/mine has no image for the region's interface " + otherShell, shell, "attribute interfaceID"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := l.bitstreams.find(t.Context(), "team-a", tc.source, tc.of)
			wants(t, err, tc.cause, tc.words...)
			if b != nil {
				t.Errorf("found %+v beside an error", b)
			}
			if reason := reasonOf(err); reason != reasonBitstream {
				t.Errorf("reason %s", reason)
			}
		})
	}
	l.setBroken(true)
	_, err := l.bitstreams.find(t.Context(), "team-a", named("mine"), shell)
	wants(t, err, nil, "FPGABitstream team-a/mine")
	if reason := reasonOf(err); reason != "" {
		t.Errorf("an API server that fails is the reason %s", reason)
	}
}

// stage puts a file into the host's tree.
func (l *lab) stage(path string, data []byte) {
	l.t.Helper()
	whole := filepath.Join(l.dir, path)
	check.Must(l.t, os.MkdirAll(filepath.Dir(whole), 0o755))
	check.Must(l.t, os.WriteFile(whole, data, 0o644))
}

func onHost(name string, file v1alpha1.HostBitstream) *v1alpha1.ClusterFPGABitstream {
	return &v1alpha1.ClusterFPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1},
		Spec:       v1alpha1.ClusterFPGABitstreamSpec{HostFile: &file, Namespaces: []string{"*"}},
	}
}

// TestFindHostFile: a file of the node is read for what it is, and needs no fetch. The object's digest counts, not the file's: what is
// programmed is compared with it.
func TestFindHostFile(t *testing.T) {
	l := newLab(t)
	file := fpgaregistry.GBS(shell, nlb0)
	l.stage("srv/fpga/nlb0.gbs", file)
	l.stage("srv/fpga/"+shell+"/"+nlb0+".gbs", file)
	declared := "sha256:" + strings.Repeat("7", 64)
	for name, host := range map[string]v1alpha1.HostBitstream{
		"path":     {Path: "/srv/fpga/nlb0.gbs", Digest: digestOf(file)},
		"declared": {Path: "/srv/fpga/nlb0.gbs", Digest: declared},
		"store":    {Store: "/srv/fpga", ID: nlb0},
	} {
		t.Run(name, func(t *testing.T) {
			l.put(onHost(name, host))
			want := &bitstream{
				identity: claim.Bitstream{
					Kind: v1alpha1.KindClusterFPGABitstream, Name: name, Namespaces: []string{"*"}, Digests: []string{digestOf(file)},
				},
				image: region.Image{
					Digest: digestOf(file), Size: int64(len(file)), HostFile: "/srv/fpga/nlb0.gbs", InterfaceID: shell, AFUID: nlb0,
					Origin: "ClusterFPGABitstream " + name,
				},
			}
			if host.Store != "" {
				want.image.HostFile = "/srv/fpga/" + shell + "/" + nlb0 + ".gbs"
			}
			if name == "declared" {
				want.image.Digest, want.identity.Digests = declared, []string{declared}
			}
			same(t, want, l.found("team-a", clusters(name), shell))
		})
	}
}

// TestFindHostFileFails: what is not a regular file at that very path, or not a bitstream for the region, is not taken.
func TestFindHostFileFails(t *testing.T) {
	l := newLab(t)
	l.stage("srv/plain.gbs", fpgaregistry.GBS(shell, nlb0))
	l.stage("srv/garbage.gbs", []byte("no bitstream at all, but long enough to be looked at by anybody"))
	l.stage("srv/"+otherShell+"/"+nlb0+".gbs", fpgaregistry.GBS(shell, nlb0)) // in the wrong directory of the store
	check.Must(t, os.Symlink("plain.gbs", filepath.Join(l.dir, "srv", "link.gbs")))
	check.Must(t, os.Symlink(t.TempDir(), filepath.Join(l.dir, "srv", "away")))
	check.Must(t, os.Mkdir(filepath.Join(l.dir, "srv", "directory"), 0o755))
	for _, tc := range []struct {
		name  string
		file  v1alpha1.HostBitstream
		of    string
		cause error
		words []string
	}{
		{
			"not staged here",
			v1alpha1.HostBitstream{Path: "/srv/none.gbs"},
			shell, errNotStaged,
			[]string{"/srv/none.gbs", "stage the file"},
		},
		{
			"not in the store",
			v1alpha1.HostBitstream{Store: "/srv", ID: nlb3},
			shell, errNotStaged,
			[]string{shell + "/" + nlb3 + ".gbs", shell + "/" + nlb3 + ".aocx"},
		},
		{"a link", v1alpha1.HostBitstream{Path: "/srv/link.gbs"}, shell, nil, []string{"/srv/link.gbs", "symbolic links"}},
		{"a link on the way", v1alpha1.HostBitstream{Path: "/srv/away/plain.gbs"}, shell, nil, []string{"symbolic links"}},
		{"a directory", v1alpha1.HostBitstream{Path: "/srv/directory"}, shell, nil, []string{"want a regular file"}},
		{"out of the host's tree", v1alpha1.HostBitstream{Path: "/srv/../../etc/passwd"}, shell, nil, []string{"want an absolute, clean path"}},
		{"no bitstream", v1alpha1.HostBitstream{Path: "/srv/garbage.gbs"}, shell, nil, []string{"host file /srv/garbage.gbs"}},
		{"for other regions", v1alpha1.HostBitstream{Path: "/srv/plain.gbs"}, otherShell, errNoImage, []string{otherShell, shell}},
		{"in another interface's directory", v1alpha1.HostBitstream{Store: "/srv", ID: nlb0}, otherShell, errNoImage, []string{shell}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l.put(onHost("file", tc.file))
			b, err := l.bitstreams.find(t.Context(), "team-a", clusters("file"), tc.of)
			wants(t, err, tc.cause, append(tc.words, "ClusterFPGABitstream file")...)
			if b != nil {
				t.Errorf("found %+v beside an error", b)
			}
		})
	}
}

// TestBlank: the first by name that says it wipes and that there is for the interface; what is of no use here keeps nobody from the next.
func TestBlank(t *testing.T) {
	l := newLab(t)
	none := func(interfaceID string) {
		t.Helper()
		if b, err := l.bitstreams.blank(t.Context(), interfaceID, l.judge.check); b != nil || err != nil {
			t.Errorf("got %+v, %v, want none", b, err)
		}
	}
	blank := func(o *v1alpha1.ClusterFPGABitstream) *v1alpha1.ClusterFPGABitstream {
		o.Spec.Blank, o.Spec.Namespaces = true, nil
		return o
	}
	none(shell)
	l.put(l.clusterObject("a-logic", l.image("team/a-logic", shell, nlb0)))
	none(shell) // what does not say that it wipes does not
	unresolved := blank(l.clusterObject("b-unresolved", l.image("team/b", shell, nlb3)))
	unresolved.Generation = 2
	l.put(unresolved)
	l.put(blank(l.clusterObject("c-other", l.image("team/c-other", otherShell, blankAFU))))
	l.put(blank(onHost("d-missing", v1alpha1.HostBitstream{Path: "/srv/none.gbs"})))
	none(shell)
	image := l.image("team/e-blank", shell, blankAFU)
	l.put(blank(l.clusterObject("e-blank", image)))
	l.put(blank(l.clusterObject("f-later", l.image("team/f-later", shell, nlb3))))
	b, err := l.bitstreams.blank(t.Context(), shell, l.judge.check)
	check.Must(t, err)
	if b == nil || b.identity.Name != "e-blank" || b.image.Digest != image.Layer || b.fetch == nil {
		t.Errorf("found %+v, want e-blank", b)
	}
	if b, err := l.bitstreams.blank(t.Context(), otherShell, l.judge.check); err != nil || b == nil || b.identity.Name != "c-other" {
		t.Errorf("found %+v, %v, want c-other", b, err)
	}
	l.stage("srv/broken.gbs", []byte("not a bitstream that anything could be wiped with, whatever its name"))
	l.put(blank(onHost("a-broken", v1alpha1.HostBitstream{Path: "/srv/broken.gbs"})))
	_, err = l.bitstreams.blank(t.Context(), shell, l.judge.check)
	wants(t, err, nil, "ClusterFPGABitstream a-broken") // an administrator must see to it
	l.setBroken(true)
	_, err = l.bitstreams.blank(t.Context(), shell, l.judge.check)
	wants(t, err, nil, "look for a blank image")
}

// TestFindReference: a reference by digest is asked of its registry, an index for the region's interface.
func TestFindReference(t *testing.T) {
	l := newLab(t)
	image, other := l.image("team/both", shell, nlb0), l.image("team/both", otherShell, nlb0)
	entry := func(i v1alpha1.BitstreamImage) fpgaregistry.Descriptor {
		return fpgaregistry.Descriptor{MediaType: fpgaregistry.ManifestType, Digest: i.Manifest, Size: l.manifestSize(i)}
	}
	index := l.Manifest(t, "team/both", "", fpgaregistry.Manifest{Manifests: []fpgaregistry.Descriptor{entry(other), entry(image)}})
	ref := l.Host + "/team/both@" + index.Digest
	got := l.found("team-a", &v1alpha1.BitstreamSource{Ref: ref}, shell)
	want := &bitstream{
		identity: claim.Bitstream{
			Repository: l.Host + "/team/both", Digests: []string{image.Layer, image.Manifest, index.Digest},
		},
		image: region.Image{
			Digest: image.Layer, Size: image.Size, InterfaceID: shell, AFUID: nlb0, Origin: ref,
			Config: fpga.Config{Format: fpga.GBS, ID: nlb0, InterfaceID: shell},
		},
		signed: reference(t, ref), manifest: image.Manifest, namespace: "team-a",
		fetch: &pin.Params{Reference: l.Host + "/team/both@" + image.Manifest, Digest: image.Layer, Size: image.Size},
	}
	same(t, want, got)
	if len(l.asked) > 0 {
		t.Errorf("the API server was asked %v", l.asked)
	}
}

// manifestSize is what a manifest in an index must declare.
func (s *site) manifestSize(i v1alpha1.BitstreamImage) int64 {
	s.t.Helper()
	ref, err := artifact.ParseReference(s.Host + "/team/both@" + i.Manifest)
	check.Must(s.t, err)
	d, err := s.client().Source(ref, nil).Resolve(s.t.Context())
	check.Must(s.t, err)
	return d.Size
}

// TestFindReferenceFails: what a registry does not have, or is no bitstream for the region.
func TestFindReferenceFails(t *testing.T) {
	l := newLab(t)
	image := l.image("team/nlb0", shell, nlb0)
	silent := l.Push(t, "team/silent", "", fpgaregistry.Bitstream{
		Config: `{"format":"rbf","interfaceID":"` + shell + `"}`, Format: fpga.RBF, File: []byte("raw bytes"),
	})
	hash := l.Push(t, "team/hash", "", fpgaregistry.Bitstream{
		Config: `{"format":"gbs","interfaceID":"` + shell + `","id":"` + strings.Repeat("01234567", 5) + `"}`,
		Format: fpga.GBS, File: fpgaregistry.GBS(shell, nlb0),
	})
	config := l.Blob(t, "team/other", "application/vnd.example.config.v1+json", []byte(`{}`))
	chart := l.Manifest(t, "team/other", "", fpgaregistry.Manifest{Config: &config, Layers: []fpgaregistry.Descriptor{config}})
	closed := l.image("private/nlb0", shell, nlb0)
	for _, tc := range []struct {
		name, ref, of string
		cause         error
		words         []string
	}{
		{"for other regions", "team/nlb0@" + image.Manifest, otherShell, errNoImage, []string{"team/nlb0@" + image.Manifest, otherShell}},
		{"not there", "team/nlb0@" + digestOf([]byte("x")), shell, artifact.ErrNotFound, nil},
		{"no bitstream", "team/other@" + chart.Digest, shell, oci.ErrNotBitstream, nil},
		{"of which the accelerator is not known", "team/silent@" + silent.Digest, shell, nil, []string{"its config does not say the AFU id"}},
		{"with another format's id", "team/hash@" + hash.Digest, shell, nil, []string{"config's id", "0123456701", "must be 32 hexadecimal"}},
		{"that not everybody may read", "private/nlb0@" + closed.Manifest, shell, artifact.ErrUnauthorized, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := l.bitstreams.find(t.Context(), "team-a", &v1alpha1.BitstreamSource{Ref: l.Host + "/" + tc.ref}, tc.of)
			wants(t, err, tc.cause, tc.words...)
			if b != nil {
				t.Errorf("found %+v beside an error", b)
			}
		})
	}
	unread := l.image("team/unread", shell, nlb3)
	l.Down.Store(true)
	_, err := l.bitstreams.find(t.Context(), "team-a", &v1alpha1.BitstreamSource{Ref: l.Host + "/team/unread@" + unread.Manifest}, shell)
	wants(t, err, artifact.ErrUnavailable)
	_, err = l.bitstreams.find(t.Context(), "team-a", &v1alpha1.BitstreamSource{Ref: "no reference"}, shell)
	wants(t, err, nil, "bitstream.ref")
}

// TestFindRawReference: what the config says of a raw image goes along.
func TestFindRawReference(t *testing.T) {
	l := newLab(t)
	pushed := l.Push(t, "team/raw", "", fpgaregistry.Bitstream{
		Config: `{"format":"rbf","interfaceID":"` + shell + `","id":"` + nlb0 + `"}`, Format: fpga.RBF, File: []byte("raw bytes"),
	})
	b := l.found("team-a", &v1alpha1.BitstreamSource{Ref: l.Host + "/team/raw@" + pushed.Digest}, shell)
	if b.image.Config.Format != fpga.RBF || b.image.Config.ID != nlb0 || b.image.AFUID != nlb0 {
		t.Errorf("image %+v", b.image)
	}
}
