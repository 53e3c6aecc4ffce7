// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
)

func naming(source string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{
				Raw: fmt.Appendf(nil, `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":%s}`, source),
			}},
		}}},
	}}}
}

// TestReferences: a claim that names what is another namespace's is refused, one that names what is not there yet is warned.
func TestReferences(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := func(name string, namespaces ...string) client.Object {
		return &v1alpha1.ClusterFPGABitstream{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterFPGABitstreamSpec{Namespaces: namespaces},
		}
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		cluster("theirs", "team-b"), cluster("ours", "team-a"), cluster("everybodys", "*"),
		&v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "mine"}},
		&v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "private"}},
		&v1alpha1.FPGABitstream{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "unsigned"}, Status: v1alpha1.FPGABitstreamStatus{
			Digest:       "sha256:1",
			Verification: &v1alpha1.ImageVerdict{Digest: "sha256:1", Result: v1alpha1.VerdictRefused, Message: "no signature by release"},
		}},
	).Build()
	const at = "spec.devices.config[0].opaque.parameters.bitstream.name: "
	for name, tt := range map[string]struct{ source, fault, warning string }{
		"another's":            {`{"kind":"ClusterFPGABitstream","name":"theirs"}`, at + "Forbidden: ClusterFPGABitstream theirs", ""},
		"of the list":          {`{"kind":"ClusterFPGABitstream","name":"ours"}`, "", ""},
		"for all":              {`{"kind":"ClusterFPGABitstream","name":"everybodys"}`, "", ""},
		"one's own":            {`{"name":"mine"}`, "", ""},
		"not there":            {`{"kind":"ClusterFPGABitstream","name":"late"}`, "", at + "ClusterFPGABitstream late does not exist"},
		"refused":              {`{"name":"unsigned"}`, "", at + "FPGABitstream unsigned is refused, so pods wait: no signature by release"},
		"in another namespace": {`{"name":"private"}`, "", at + "FPGABitstream private does not exist"},
		"by digest":            {`{"ref":"registry.example/x@sha256:` + strings.Repeat("1", 64) + `"}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			claim := naming(tt.source)
			for _, object := range []runtime.Object{
				claim, &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec}},
			} {
				faults, warnings := references{reader: objects}.check(t.Context(), "team-a", object)
				path := strings.NewReplacer("spec.devices", "spec.devices")
				if _, template := object.(*resourceapi.ResourceClaimTemplate); template {
					path = strings.NewReplacer("spec.devices", "spec.spec.devices")
				}
				if got := text(faults.ToAggregate()); !strings.HasPrefix(got, path.Replace(tt.fault)) || (got == "") != (tt.fault == "") {
					t.Errorf("faults %q, want %q", got, tt.fault)
				}
				if got := strings.Join(warnings, "\n"); !strings.HasPrefix(got, path.Replace(tt.warning)) || (got == "") != (tt.warning == "") {
					t.Errorf("warnings %q, want %q", got, tt.warning)
				}
			}
		})
	}
	t.Run("the API server fails", func(t *testing.T) {
		broken := interceptor.NewClient(objects, interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return errors.New("away")
			},
		})
		faults, warnings := references{reader: broken}.check(t.Context(), "team-a", naming(`{"name":"mine"}`))
		if len(faults)+len(warnings) != 0 {
			t.Errorf("faults %v, warnings %v", faults, warnings)
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
