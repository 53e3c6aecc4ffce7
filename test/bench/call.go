// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// action is one call, timed.
type action func(context.Context, claim) (time.Duration, error)

// prepare asks for one claim as kubelet does. What is not an answer with all its devices is an error, so that no refusal is
// taken for a fast answer.
func (p *plugin) prepare(ctx context.Context, c claim) (time.Duration, error) {
	return p.prepareAll(ctx, []claim{c})
}

// prepareAll asks for several claims in one call.
func (p *plugin) prepareAll(ctx context.Context, claims []claim) (time.Duration, error) {
	response, took, err := p.Prepare(ctx, wire(claims))
	if err != nil {
		return 0, err
	}
	for _, c := range claims {
		if answer := response.Claims[c.Uid]; len(answer.Devices) != c.devices {
			return 0, fmt.Errorf("prepare claim %s: the plugin answered %v, expected %d devices", c.Name, answer, c.devices)
		}
	}
	return took, nil
}

func (p *plugin) unprepare(ctx context.Context, c claim) (time.Duration, error) {
	return p.Unprepare(ctx, c.Claim)
}

// nothing asks for no claim: what the way to the plugin and back costs.
func (p *plugin) nothing(ctx context.Context, _ claim) (time.Duration, error) {
	return p.prepareAll(ctx, nil)
}

// get reads a claim as the plugin's helper does before it asks the plugin.
func (api *controlPlane) get(ctx context.Context, c claim) (time.Duration, error) {
	begin := time.Now()
	_, err := api.Kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("get claim %s: %w", c.Name, err)
	}
	return time.Since(begin), nil
}

func wire(claims []claim) []*drapb.Claim {
	out := make([]*drapb.Claim, len(claims))
	for i, c := range claims {
		out[i] = c.Claim
	}
	return out
}

// together runs an action for all claims at once and returns each one's time and the time of all.
func together(ctx context.Context, claims []claim, do action) (each []time.Duration, wall time.Duration, err error) {
	each, errs := make([]time.Duration, len(claims)), make([]error, len(claims))
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for i, c := range claims {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			each[i], errs[i] = do(ctx, c)
		})
	}
	ready.Wait()
	begin := time.Now()
	close(start)
	done.Wait()
	wall = time.Since(begin)
	for _, err := range errs {
		if err != nil {
			return nil, 0, err
		}
	}
	return each, wall, nil
}
