// SPDX-License-Identifier: Apache-2.0

// Package podresources asks kubelet which containers have the devices of which claims.
package podresources

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const (
	// patience limits one question and its answer: a scrape of the metrics waits for it.
	patience = 3 * time.Second
	// maxAnswer limits the answer. A node has at most some hundred pods, and kubelet's list has about 1 kB for a pod with a few devices.
	maxAnswer = 16 << 20
)

// Device is a device of a claim.
type Device struct {
	Namespace, Claim, Pool, Name, ShareID string
}

// Container is a container of a pod. The pod is in the namespace of its claims.
type Container struct{ Pod, Name string }

// Read returns the containers that have each device of Fettle's, by kubelet's socket (k8s.io/kubelet/pkg/apis/podresources/v1, KEP-3695).
// kubelet names all devices of a claim for each container that names the claim, also for one that names only a request of it.
func Read(ctx context.Context, socket string) (map[Device][]Container, error) {
	const doing = "ask kubelet which pods have devices"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	defer connection.Close() //nolint:errcheck // nothing was written
	answer, err := podresourcesv1.NewPodResourcesListerClient(connection).List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return containers(answer), nil
}

// containers returns what an answer says of Fettle's devices.
func containers(answer *podresourcesv1.ListPodResourcesResponse) map[Device][]Container {
	found := map[Device][]Container{}
	for _, pod := range answer.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, d := range devices(c) {
				found[d] = append(found[d], Container{Pod: pod.GetName(), Name: c.GetName()})
			}
		}
	}
	return found
}

// devices returns Fettle's devices of a container.
func devices(c *podresourcesv1.ContainerResources) (out []Device) {
	for _, claim := range c.GetDynamicResources() {
		for _, r := range claim.GetClaimResources() {
			if r.GetDriverName() == v1alpha1.DriverName {
				out = append(out, Device{
					Namespace: claim.GetClaimNamespace(), Claim: claim.GetClaimName(), Pool: r.GetPoolName(), Name: r.GetDeviceName(),
					ShareID: r.GetShareId(),
				})
			}
		}
	}
	return out
}
