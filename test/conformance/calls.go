// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
)

// answer is what the plugin says about one prepared claim.
type answer = *drapb.NodePrepareResourceResponse

// callPrepare asks as kubelet does. Kubelet takes neither a claim without an answer nor an answer without a claim.
func (s *session) callPrepare(ctx context.Context, claims ...*resourceapi.ResourceClaim) (map[types.UID]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	response, err := s.plugin.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: wire(claims)})
	if err != nil {
		return nil, failedCall("NodePrepareResources", err)
	}
	answers := map[types.UID]answer{}
	for uid, a := range response.GetClaims() {
		answers[types.UID(uid)] = a
	}
	return answers, complete("NodePrepareResources", claims, slices.Collect(maps.Keys(answers)))
}

// failedCall makes the error of a call as a whole.
func failedCall(call string, err error) error {
	failed := fmt.Errorf("%s: %w", call, err)
	if silent(err) {
		return caused(CauseSilent, failed)
	}
	return failed
}

// unprepare wants every claim answered without an error.
func (s *session) unprepare(ctx context.Context, claims ...*resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	response, err := s.plugin.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: wire(claims)})
	if err != nil {
		return failedCall("NodeUnprepareResources", err)
	}
	var uids []types.UID
	var errs []error
	for uid, a := range response.GetClaims() {
		uids = append(uids, types.UID(uid))
		if text := a.GetError(); text != "" {
			errs = append(errs, fmt.Errorf("unprepare %s: %s", nameOf(claims, types.UID(uid)), text))
		}
	}
	return errors.Join(append(errs, complete("NodeUnprepareResources", claims, uids))...)
}

// errIncomplete is a response that kubelet would not take.
var errIncomplete = errors.New("incomplete response")

// complete wants exactly one answer a claim.
func complete(call string, claims []*resourceapi.ResourceClaim, answered []types.UID) error {
	var errs []error
	for _, c := range claims {
		if !slices.Contains(answered, c.UID) {
			errs = append(errs, fmt.Errorf("%w: %s answered nothing for claim %s (%s): every claim of a call needs an answer",
				errIncomplete, call, c.Name, c.UID))
		}
	}
	slices.Sort(answered)
	for _, uid := range answered {
		if !slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return c.UID == uid }) {
			errs = append(errs, fmt.Errorf("%w: %s answered for claim %q, which was not in the call", errIncomplete, call, uid))
		}
	}
	return caused(CauseIncomplete, errors.Join(errs...))
}

// prepare wants a claim prepared as it was allocated.
func (s *session) prepare(ctx context.Context, c *resourceapi.ResourceClaim) (answer, error) {
	answers, err := s.callPrepare(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", c.Name, err)
	}
	a := answers[c.UID]
	if text := a.GetError(); text != "" {
		return nil, fmt.Errorf("prepare %s: %s", c.Name, text)
	}
	return a, s.asAllocated(c, a)
}

// prepareSoon is prepare for a claim whose device may still be on its way back from another claim.
func (s *session) prepareSoon(ctx context.Context, c *resourceapi.ResourceClaim) (a answer, err error) {
	err = s.eventually(ctx, func(ctx context.Context) error {
		a, err = s.prepare(ctx, c)
		return err
	})
	return a, err
}

// errAccepted is the preparation of a claim that has to be refused.
var errAccepted = errors.New("was accepted")

// refusedAsHeld wants a claim refused for a device that another claim holds.
func (s *session) refusedAsHeld(ctx context.Context, c *resourceapi.ResourceClaim, because string) error {
	err := s.refused(ctx, c, because)
	if errors.Is(err, errAccepted) {
		return caused(CauseHeldGiven, err)
	}
	return err
}

// refused wants an error for a claim, its own or the call's, and returns what went wrong otherwise.
func (s *session) refused(ctx context.Context, c *resourceapi.ResourceClaim, because string) error {
	answers, err := s.callPrepare(ctx, c)
	switch {
	case errors.Is(err, errIncomplete) || silent(err):
		return fmt.Errorf("prepare %s, want a refusal: %w", c.Name, err)
	case err != nil || answers[c.UID].GetError() != "":
		return nil //nolint:nilerr // an error is what was wanted
	}
	return fmt.Errorf("prepare %s %w, want an error: %s", c.Name, errAccepted, because)
}

// silent says whether a call ended without the plugin having answered it.
func silent(err error) bool {
	return slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Unimplemented}, status.Code(err))
}

// asAllocated compares an answer with the driver's part of a claim's allocation. A device without request names is meant for all
// requests.
func (s *session) asAllocated(c *resourceapi.ResourceClaim, a answer) error {
	var want []string
	var errs []error
	requests := map[string]bool{}
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver == s.config.Driver {
			main, _, _ := strings.Cut(result.Request, "/")
			requests[main] = true
			want = append(want, entry(main, device{result.Pool, result.Device}, string(ptr.Deref(result.ShareID, ""))))
		}
	}
	var got []string
	for _, d := range a.GetDevices() {
		if d.GetPoolName() == "" || d.GetDeviceName() == "" {
			errs = append(errs, fmt.Errorf("claim %s: a device is answered without pool or device name: %v", c.Name, d))
		}
		names := d.GetRequestNames()
		if len(names) == 0 {
			names = slices.Sorted(maps.Keys(requests))
		}
		for _, name := range names {
			got = append(got, entry(name, device{d.GetPoolName(), d.GetDeviceName()}, d.GetShareId()))
		}
	}
	for _, t := range want {
		if !slices.Contains(got, t) {
			errs = append(errs, fmt.Errorf("claim %s: the answer lacks %s, which is allocated; it has %s", c.Name, t, list(got)))
		}
	}
	for i, t := range got {
		if !slices.Contains(want, t) {
			errs = append(errs, fmt.Errorf("claim %s: the answer has %s, which is not allocated; allocated is %s", c.Name, t, list(want)))
		}
		if slices.Contains(got[:i], t) {
			errs = append(errs, fmt.Errorf("claim %s: the answer has %s twice", c.Name, t))
		}
	}
	return caused(CauseWrongDevices, errors.Join(errs...))
}

// entry is a device of an allocation or an answer as text. share is empty for a device that a claim holds alone.
func entry(request string, d device, share string) string {
	text := fmt.Sprintf("device %s for request %q", d, request)
	if share != "" {
		text += ", share " + share
	}
	return text
}

func list(texts []string) string {
	if len(texts) == 0 {
		return "nothing"
	}
	return strings.Join(texts, ", ")
}

// same wants two answers for a claim to mean the same. The order of devices means nothing, that of a device's CDI ids does: the
// runtime applies their edits in it.
func same(c *resourceapi.ResourceClaim, first, second answer) error {
	a, b := lines(first), lines(second)
	if slices.Equal(a, b) {
		return nil
	}
	return caused(CauseAnswerChanges, fmt.Errorf("claim %s: the answer was %s and is now %s: a claim that is prepared keeps its answer",
		c.Name, list(a), list(b)))
}

// lines are an answer's devices as sorted text.
func lines(a answer) []string {
	var out []string
	for _, d := range a.GetDevices() {
		requests := slices.Sorted(slices.Values(d.GetRequestNames()))
		line := fmt.Sprintf("{%s requests=%q ids=%q", device{d.GetPoolName(), d.GetDeviceName()}, requests, d.GetCdiDeviceIds())
		if d.ShareId != nil {
			line += fmt.Sprintf(" share=%q", d.GetShareId())
		}
		out = append(out, line+"}")
	}
	slices.Sort(out)
	return out
}

func wire(claims []*resourceapi.ResourceClaim) []*drapb.Claim {
	var out []*drapb.Claim
	for _, c := range claims {
		out = append(out, &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
	}
	return out
}

func nameOf(claims []*resourceapi.ResourceClaim, uid types.UID) string {
	for _, c := range claims {
		if c.UID == uid {
			return c.Name
		}
	}
	return string(uid)
}
