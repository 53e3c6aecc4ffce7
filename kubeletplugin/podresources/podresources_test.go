// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet answers like kubelet.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	answer *podresourcesv1.ListPodResourcesResponse
}

func (k *kubelet) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return k.answer, nil
}

func claimed(claim, driver, device string, share *string) *podresourcesv1.DynamicResource {
	return &podresourcesv1.DynamicResource{ClaimNamespace: "team-a", ClaimName: claim, ClaimResources: []*podresourcesv1.ClaimResource{
		{DriverName: driver, PoolName: "node1/gpu", DeviceName: device, ShareId: share},
	}}
}

// TestRead: the answer has the devices of this driver only, with every container that names their claim.
func TestRead(t *testing.T) {
	share := "s1"
	both := claimed("train", "fettle.dev", "gpu0", nil)
	k := &kubelet{answer: &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{
		{Name: "p1", Namespace: "team-a", Containers: []*podresourcesv1.ContainerResources{
			{Name: "main", DynamicResources: []*podresourcesv1.DynamicResource{both, claimed("part", "fettle.dev", "gpu1", &share)}},
			{Name: "side", DynamicResources: []*podresourcesv1.DynamicResource{both, claimed("other", "gpu.nvidia.com", "gpu0", nil)}},
			{Name: "none"},
		}},
		{Name: "p2", Namespace: "team-a", Containers: []*podresourcesv1.ContainerResources{
			{Name: "main", DynamicResources: []*podresourcesv1.DynamicResource{both}},
		}},
	}}}
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := Read(t.Context(), socket); err == nil {
		t.Error("no kubelet, and no error")
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	got, err := Read(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	want := map[Device][]Container{
		{Namespace: "team-a", Claim: "train", Pool: "node1/gpu", Name: "gpu0"}: {
			{Pod: "p1", Name: "main"}, {Pod: "p1", Name: "side"}, {Pod: "p2", Name: "main"},
		},
		{Namespace: "team-a", Claim: "part", Pool: "node1/gpu", Name: "gpu1", ShareID: "s1"}: {{Pod: "p1", Name: "main"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
