// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
)

// missesToCollect is how many passes in a row must find a claim gone before the plugin releases it.
const missesToCollect = 2

// collect releases claims that kubelet will never unprepare: kubelet does not have them (its state was lost, or the pod was removed by
// force while kubelet was down), and the API server has no such claim or has given it other devices. If either cannot be read, collect
// releases nothing.
func (e *Engine) collect(ctx context.Context) {
	if e.KubeletState == "" {
		return
	}
	known, err := kubeletClaims(e.KubeletState)
	if err != nil {
		klog.FromContext(ctx).Error(err, "No claim is collected: kubelet's state cannot be read", "path", e.KubeletState)
		return
	}
	uids, err := e.Store.UIDs()
	damaged, err2 := e.Store.Damaged()
	if err := errors.Join(err, err2); err != nil {
		klog.FromContext(ctx).Error(err, "No claim is collected")
		return
	}
	missed := map[string]int{}
	for _, uid := range append(uids, damaged...) {
		if known[uid] || missed[uid] > 0 || !e.goneFromAPI(ctx, uid) {
			continue
		}
		missed[uid] = e.missed[uid] + 1
		if missed[uid] >= missesToCollect {
			e.releaseLost(ctx, uid)
		}
	}
	e.missed = missed
}

// goneFromAPI reports whether the API server has no claim with the devices of the record.
func (e *Engine) goneFromAPI(ctx context.Context, uid string) bool {
	r, err := e.Store.Load(uid)
	if isNotExist(err) && e.Store.InDoubt(uid) {
		return true // the name was in the record only, and kubelet does not have the claim
	}
	if err != nil {
		return false
	}
	c, err := e.Claim(ctx, r.Namespace, r.Name)
	if apierrors.IsNotFound(err) {
		return true
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot look up a claim that kubelet does not have",
			"claim", klog.KRef(r.Namespace, r.Name), "reason", err)
		return false
	}
	if string(c.UID) != uid || c.Status.Allocation == nil {
		return true
	}
	allocation, err := claim.Resolve(claim.Input{Claim: c, Driver: v1alpha1.DriverName})
	return err == nil && !matchesAllocation(r, allocation)
}

func (e *Engine) releaseLost(ctx context.Context, uid string) {
	r, err := e.runUnprepare(ctx, uid, e.Now(), false)
	if err != nil {
		e.report(ctx, ReasonRecoveryFailed, &record.Record{UID: uid}, "give back a claim that is gone: "+err.Error())
		return
	}
	if r == nil {
		r = &record.Record{UID: uid}
	}
	e.report(ctx, ReasonClaimCollected, r, "neither kubelet nor the API server knows that it holds devices here: they are free again")
}

// kubeletClaims reads the UIDs in kubelet's dra_manager_state (kubernetes/pkg/kubelet/cm/dra/state/checkpoint.go): a JSON object whose Data
// is JSON again and whose Checksum is the CRC-32 (IEEE) of Data.
func kubeletClaims(path string) (map[string]bool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's state: %w", err)
	}
	return parseKubeletState(data)
}

func parseKubeletState(data []byte) (map[string]bool, error) {
	const want = "checkpoint.dra.kubelet.k8s.io/v1"
	var outer struct {
		Data     string
		Checksum uint32
	}
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, fmt.Errorf("parse kubelet's state: %w", err)
	}
	if sum := crc32.ChecksumIEEE([]byte(outer.Data)); sum != outer.Checksum {
		return nil, fmt.Errorf("kubelet's state has checksum %d, expected %d", outer.Checksum, sum)
	}
	var inner struct {
		APIVersion         string `json:"apiVersion"`
		ClaimInfoStateList []struct{ ClaimUID string }
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, fmt.Errorf("parse kubelet's state: %w", err)
	}
	if inner.APIVersion != want {
		return nil, fmt.Errorf("kubelet's state is of version %q, expected %q", inner.APIVersion, want)
	}
	known := make(map[string]bool, len(inner.ClaimInfoStateList))
	for _, c := range inner.ClaimInfoStateList {
		known[c.ClaimUID] = true
	}
	return known, nil
}
