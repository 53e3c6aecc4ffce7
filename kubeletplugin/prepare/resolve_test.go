// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

const forTeamA = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"allowedNamespaces":["team-a"]}}`

// refusedFor wants a claim to be refused for a reason.
func refusedFor(t *testing.T, err error, want claim.Reason) {
	t.Helper()
	if refused, ok := errors.AsType[*claim.RefusedError](err); !ok || refused.Reason != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestForgedPolicy: an allocation whose policy allows more than the class does is not obeyed, and neither is one that has none.
func TestForgedPolicy(t *testing.T) {
	s := newSite(t)
	s.setClass(forTeamA, classNamed(onlyTeamB))
	_, err := s.ask(ofClass(allocated("u1", aDisk("ssd0")), forTeamA))
	refusedFor(t, err, claim.ReasonNamespaceNotAllowed)
	s.setClass(plainClass, classNamed(onlyTeamB))
	_, err = s.ask(allocated("u2", aDisk("ssd0")))
	refusedFor(t, err, claim.ReasonNamespaceNotAllowed)
	s.heldBy("", aDisk("ssd0"))
}

// TestForgedAdminAccess: a look that the claim does not ask for is not given.
func TestForgedAdminAccess(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", aGPU("gpu0")))
	c := allocated("u2", aGPU("gpu0"))
	c.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	_, err := s.ask(c)
	refusedFor(t, err, claim.ReasonNotRequested)
}

// TestPreparedIsKept: a claim that is prepared stays so whatever becomes of its class, until it gets other devices.
func TestPreparedIsKept(t *testing.T) {
	s := newSite(t)
	c := ofClass(allocated("u1", aDisk("ssd0")), forTeamA)
	s.prepare(c)
	asked := s.classesAsked
	s.setClass(forTeamA, classNamed(onlyTeamB))
	s.prepare(c)
	s.setClass(forTeamA, nil)
	s.prepare(c)
	if s.classesAsked != asked {
		t.Errorf("the classes of a prepared claim were read")
	}
	moved := ofClass(allocated("u1", aDisk("ssd1")), forTeamA)
	_, err := s.ask(moved)
	refusedFor(t, err, claim.ReasonClassNotFound)
	s.heldBy("u1", aDisk("ssd0"))
}

// TestClassAfterReboot: a claim is authorised again in each boot. If its class is gone, what the allocation recorded counts.
func TestClassAfterReboot(t *testing.T) {
	s := newSite(t)
	c := ofClass(allocated("u1", aDisk("ssd0")), forTeamA)
	s.prepare(c)
	next := s.reboot()
	next.setClass(forTeamA, classNamed(onlyTeamB))
	_, err := next.ask(c)
	refusedFor(t, err, claim.ReasonNamespaceNotAllowed)
	next.setClass(forTeamA, nil)
	next.prepare(c)
	_, err = next.ask(ofClass(allocated("u2", aDisk("ssd1")), forTeamA))
	refusedFor(t, err, claim.ReasonClassNotFound)
}

// TestClassesUnread: if the classes cannot be read, nothing is prepared and the error is no refusal.
func TestClassesUnread(t *testing.T) {
	s := newSite(t)
	s.classesErr = errInjected
	_, err := s.ask(allocated("u1", aDisk("ssd0")))
	if _, refused := errors.AsType[*claim.RefusedError](err); refused || !errors.Is(err, errInjected) ||
		!strings.Contains(err.Error(), "read the classes of claim team-a/claim-u1") {
		t.Errorf("error %v", err)
	}
	s.heldBy("", aDisk("ssd0"))
}

// TestReleasedMeanwhile: a call that believed the record of a claim does not prepare the claim again without its class.
func TestReleasedMeanwhile(t *testing.T) {
	s := newSite(t)
	c := ofClass(allocated("u1", aDisk("ssd0")), forTeamA)
	s.prepare(c)
	allocation, recorded, err := s.Engine.resolve(t.Context(), c, &record.Reading{})
	check.Must(t, err)
	if !recorded {
		t.Fatal("the record was not believed")
	}
	s.unprepare("u1")
	arrived := s.now()
	accept := func(*operation) bool { return false }
	_, err = s.operations.do(t.Context(), "u1", preparing, accept, func(op *operation) (*record.Record, error) {
		return s.Engine.prepare(op, input{claim: c, siblings: nil, allocation: allocation, recorded: recorded}, arrived)
	})
	if !errors.Is(err, ErrChanged) {
		t.Errorf("error %v, want %v", err, ErrChanged)
	}
	s.heldBy("", aDisk("ssd0"))
}
