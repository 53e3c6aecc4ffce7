// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	// callLimit is the longest that this kubelet waits for one answer. The real one waits 45 s; the test has less time.
	callLimit = 5 * time.Second
	// retryLimit is how long something may take that must succeed in the end.
	retryLimit = 2 * time.Minute
)

// live is the life of one pod, and of those that use its claims after it.
func (r *run) live(ctx context.Context, number int, p pod) error {
	random := rand.New(rand.NewPCG(r.plan.seed, p.choice))
	var uids []string
	for round := range p.rounds {
		devices, err := r.scheduler.take(ctx, random, p.claims)
		if err != nil {
			return err
		}
		claims := tenancies(number, round, p, devices)
		if uids, err = r.admit(ctx, claims, uids); err != nil {
			return fmt.Errorf("make the claims of pod %d: %w", number, err)
		}
		if err := r.use(ctx, p, claims, random, round == p.rounds-1); err != nil {
			return fmt.Errorf("pod %d: %w", number, err)
		}
	}
	return nil
}

// tenancies are the claims of one pod with what they were allocated.
func tenancies(number, round int, p pod, devices [][]deviceID) []*tenancy {
	var out []*tenancy
	for i, w := range p.claims {
		out = append(out, newTenancy(fmt.Sprintf("claim-%d-%d", number, i), round, w, devices[i]))
	}
	return out
}

// tenancy is one claim: GPUs come first among its devices.
func newTenancy(claim string, round int, w want, devices []deviceID) *tenancy {
	t := &tenancy{claim: claim, want: w}
	t.name = fmt.Sprintf("%s#%d", claim, round)
	for i, id := range devices {
		g := grant{request: "gpus", id: id, look: w.look}
		if i >= w.gpus {
			g.request, g.mountPath = fmt.Sprintf("dir-%d", i-w.gpus), w.mountPath
		}
		t.grants = append(t.grants, g)
	}
	return t
}

// admit makes the objects, or allocates those that were there anew, and tells the ledger.
func (r *run) admit(ctx context.Context, claims []*tenancy, uids []string) ([]string, error) {
	r.gate.RLock()
	defer r.gate.RUnlock()
	for i, t := range claims {
		if i >= len(uids) {
			uid, err := r.api.create(ctx, t.claim, t.want)
			if err != nil {
				return nil, err
			}
			uids = append(uids, uid)
		}
		t.uid = uids[i]
		for j := range t.grants {
			t.grants[j].hardware = r.hardware[r.keys[t.grants[j].id]]
		}
		if err := r.api.allocate(ctx, t.claim, t.grants); err != nil {
			return nil, err
		}
		r.trace.note("%s (%s) is allocated %v, look %t", t.name, t.uid, ids(t), t.want.look)
		r.ledger.begin(t)
	}
	return uids, nil
}

// ids are the devices that a claim takes from others.
func ids(t *tenancy) []deviceID {
	var out []deviceID
	for _, g := range t.grants {
		out = append(out, g.id)
	}
	return out
}

// use is one pod from its arrival on the node to the last trace of it.
func (r *run) use(ctx context.Context, p pod, claims []*tenancy, random *rand.Rand, last bool) error {
	generation := r.generation.Load()
	if err := r.kubelet.add(claims); err != nil {
		return err
	}
	ready := r.prepare(ctx, p, claims)
	if ready {
		r.hold(ctx, p, claims, generation, oneIn(random, 2))
	}
	if p.vanishes && last && ready {
		return r.vanish(ctx, claims)
	}
	forced := p.forced && last && ready
	if forced {
		// The pod's object is gone, and with it the claims' allocation; kubelet has yet to end the containers.
		if err := r.free(ctx, claims, true); err != nil {
			return err
		}
		wait(ctx, p.delay)
	}
	r.unprepare(ctx, claims)
	for _, t := range claims {
		r.ledger.end(t)
		r.unprepares.Add(1)
		r.operations.Add(1)
	}
	if again := p.twice && last; again {
		defer func() { // after others may have got the devices
			wait(ctx, p.delay)
			r.unprepare(ctx, claims)
			r.fail(r.kubelet.forget(claims))
		}()
	} else if err := r.kubelet.forget(claims); err != nil {
		return err
	}
	if forced {
		for _, t := range claims {
			r.scheduler.cooled(ids(t))
		}
	} else if err := r.release(ctx, claims, last); err != nil {
		return err
	}
	return ctx.Err()
}

// vanish leaves the plugin with claims that nobody knows any more. It must find out, and the next pod gets their devices.
func (r *run) vanish(ctx context.Context, claims []*tenancy) error {
	r.vanished.Add(1)
	devices := make([][]deviceID, 0, len(claims))
	next := pod{rounds: 1, patience: callLimit, attempts: -1}
	for _, t := range claims {
		r.ledger.releasing(t)
		devices, next.claims = append(devices, ids(t)), append(next.claims, want{gpus: t.want.gpus, dirs: t.want.dirs, look: t.want.look})
	}
	for _, t := range claims {
		if err := r.api.remove(ctx, t.claim); err != nil {
			return err
		}
		r.trace.note("%s vanishes", t.name)
	}
	if err := r.kubelet.forget(claims); err != nil {
		return err
	}
	var heirs []*tenancy
	for i, t := range claims {
		heirs = append(heirs, newTenancy(t.claim+"-heir", 0, next.claims[i], devices[i]))
	}
	if _, err := r.admit(ctx, heirs, nil); err != nil {
		return err
	}
	if err := r.use(ctx, next, heirs, rand.New(rand.NewPCG(1, 1)), true); err != nil {
		return err
	}
	for _, t := range claims {
		r.ledger.end(t)
	}
	return nil
}

// release gives back what kubelet is done with. A claim that another pod uses afterwards stays, without an allocation.
func (r *run) release(ctx context.Context, claims []*tenancy, last bool) error {
	if last {
		return r.free(ctx, claims, false)
	}
	r.gate.RLock()
	defer r.gate.RUnlock()
	for _, t := range claims {
		if err := r.api.allocate(ctx, t.claim, nil); err != nil {
			return err
		}
	}
	r.giveBack(claims, false)
	return nil
}

// free deletes the claims, so that the scheduler gives their devices to others. hot: kubelet still has them.
func (r *run) free(ctx context.Context, claims []*tenancy, hot bool) error {
	r.gate.RLock()
	defer r.gate.RUnlock()
	for _, t := range claims {
		if err := r.api.remove(ctx, t.claim); err != nil {
			return err
		}
		r.trace.note("%s is deleted, force %t", t.name, hot)
	}
	r.giveBack(claims, hot)
	return nil
}

func (r *run) giveBack(claims []*tenancy, hot bool) {
	for _, t := range claims {
		if !t.want.look {
			r.scheduler.give(ids(t), hot)
		}
	}
}

// prepare asks until every claim of the pod is prepared, or the pod is deleted.
func (r *run) prepare(ctx context.Context, p pod, claims []*tenancy) bool {
	patience, deadline := p.patience, time.Now().Add(retryLimit)
	for attempt := 0; ctx.Err() == nil && (p.attempts < 0 || attempt < p.attempts); attempt++ {
		if r.ask(ctx, patience, claims) {
			return true
		}
		if time.Now().After(deadline) {
			r.report(violation{lost, claims[0].name, fmt.Sprintf("was not prepared within %s, last: %s", retryLimit, claims[0].lastError)})
			return false
		}
		patience = min(2*patience, callLimit) // who waits too short for what the machine can do waits longer
		wait(ctx, backoff(attempt))
	}
	return false
}

// backoff is between two attempts, so that a plugin that is not there is not asked a thousand times.
func backoff(attempt int) time.Duration {
	const first, most = 10 * time.Millisecond, 200 * time.Millisecond
	return min(first<<min(attempt, 10), most)
}

// ask is one call of NodePrepareResources and what follows from its answer.
func (r *run) ask(ctx context.Context, patience time.Duration, claims []*tenancy) bool {
	r.gate.RLock()
	defer r.gate.RUnlock()
	client := r.pick()
	if client == nil {
		return false
	}
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request := &drapb.NodePrepareResourcesRequest{Claims: wire(claims)}
	r.asking(claims)
	begin := time.Now()
	response, err := client.NodePrepareResources(call, request)
	took := time.Since(begin)
	if err != nil {
		r.failed(claims, "prepare", err.Error())
		return false
	}
	all := true
	for _, t := range claims {
		answer := response.Claims[t.uid]
		switch {
		case answer == nil:
			r.report(violation{lost, t.name, "a call that did not fail gave no answer for it"})
			all = false
		case answer.Error != "":
			r.failed([]*tenancy{t}, "prepare", answer.Error)
			all = false
		default:
			r.settleIn(t, answer)
		}
	}
	if all {
		r.latency(took)
		r.answered(begin, claims)
	}
	return all
}

// failed takes note of a call without success.
func (r *run) failed(claims []*tenancy, what, text string) {
	r.failures.Add(1)
	for _, t := range claims {
		t.lastError = text
		r.trace.note("%s: %s failed: %s", t.name, what, text)
	}
}

func wire(claims []*tenancy) []*drapb.Claim {
	var out []*drapb.Claim
	for _, t := range claims {
		out = append(out, &drapb.Claim{Namespace: namespace, Name: t.claim, Uid: t.uid})
	}
	return out
}

// pick is one of the plugins that serve, or nil.
func (r *run) pick() drapb.DRAPluginClient {
	serving := r.fleet.serving()
	if len(serving) == 0 {
		return nil
	}
	r.pickMu.Lock()
	i := r.picks.IntN(len(serving))
	r.pickMu.Unlock()
	return serving[i].call()
}

// settleIn is what happens after kubelet was told that a claim is prepared: the runtime reads the specs, and the tenant moves in.
func (r *run) settleIn(t *tenancy, answer *drapb.NodePrepareResourceResponse) {
	names, fault := namesOf(t, answer)
	r.trace.note("%s is prepared: %v", t.name, names)
	if fault != "" {
		r.report(violation{lost, t.name, fault})
		return
	}
	found := r.ledger.prepared(t, names, fmt.Sprint(answer.Devices))
	specs, err := r.readSpecs()
	if err != nil {
		r.fail(err)
		return
	}
	o := observation{specs: specs, host: hostTree{nodes: r.nodes, dirs: map[string]directory{}}, hardware: r.devices}
	for _, g := range t.grants {
		if g.hardware.dir == "" {
			continue
		}
		if o.host.dirs[g.hardware.dir], err = readDirectory(r.root, g.hardware.dir); err != nil {
			r.fail(err)
			return
		}
	}
	found = append(found, checkHolder(o, r.ledger.holderOf(t))...)
	r.report(append(found, r.ledger.meant(t, specs)...)...)
	if !t.movedIn {
		t.movedIn = true
		r.fail(r.moveIn(t))
	}
	if !t.counted {
		t.counted = true
		r.prepares.Add(1)
		r.operations.Add(1)
	}
}

// namesOf sorts the CDI names of an answer by the allocation's devices, and says what is wrong with the answer.
func namesOf(t *tenancy, answer *drapb.NodePrepareResourceResponse) (names [][]string, fault string) {
	if len(answer.Devices) != len(t.grants) {
		return nil, fmt.Sprintf("%d devices were allocated, and kubelet was told of %d", len(t.grants), len(answer.Devices))
	}
	for _, g := range t.grants {
		i := slices.IndexFunc(answer.Devices, func(d *drapb.Device) bool {
			return d.PoolName == g.id.pool && d.DeviceName == g.id.name && slices.Equal(d.RequestNames, []string{g.request})
		})
		if i < 0 {
			return nil, fmt.Sprintf("kubelet was not told of %s for request %s: %v", g.id, g.request, answer.Devices)
		}
		names = append(names, answer.Devices[i].CdiDeviceIds)
	}
	return names, ""
}

// moveIn makes the tenant's files in each directory that it was lent.
func (r *run) moveIn(t *tenancy) error {
	files := []string{"tenant-" + t.name}
	if t.want.litter > 0 {
		files = append([]string{"litter-" + t.name}, files...)
	}
	for _, g := range t.grants {
		if g.hardware.dir == "" || g.look {
			continue
		}
		dir := filepath.Join(r.root, g.hardware.dir)
		if err := os.WriteFile(filepath.Join(dir, "tenant-"+t.name), []byte(t.uid), 0o600); err != nil {
			return err
		}
		for i := range t.want.litter {
			sub := filepath.Join(dir, "litter-"+t.name, fmt.Sprint(i%7))
			if err := os.MkdirAll(sub, 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), nil, 0o400); err != nil {
				return err
			}
		}
	}
	r.ledger.moved(t, files)
	return nil
}

// hold keeps the pod running. When kubelet restarts, and when the node does, the claims are prepared again. back says whether a pod
// that was to end while the node was off comes back first.
func (r *run) hold(ctx context.Context, p pod, claims []*tenancy, generation int64, back bool) {
	const pause = 5 * time.Millisecond
	always := p
	always.attempts, always.patience = -1, callLimit
	until, over := r.operations.Load()+int64(p.hold), false
	r.scheduler.hold(1)
	for {
		// A disk that does not answer stops the other pods, so this one does not wait for them then.
		over = over || r.operations.Load() >= until || r.scheduler.stuck() || r.window.Load() != nil
		current := r.generation.Load()
		again := current != generation && (!over || back)
		if !again && !over && wait(ctx, pause) {
			continue
		}
		r.scheduler.hold(-1)
		if !again {
			return
		}
		generation = current
		r.prepare(ctx, always, claims)
		r.scheduler.hold(1)
	}
}

// unprepare asks until every claim is released.
func (r *run) unprepare(ctx context.Context, claims []*tenancy) {
	deadline := time.Now().Add(retryLimit)
	for attempt := 0; ctx.Err() == nil; attempt++ {
		if r.askBack(ctx, claims) {
			return
		}
		if time.Now().After(deadline) {
			r.report(violation{leaked, claims[0].name, fmt.Sprintf("was not released within %s, last: %s", retryLimit, claims[0].lastError)})
			return
		}
		wait(ctx, backoff(attempt))
	}
}

// askBack is one call of NodeUnprepareResources.
func (r *run) askBack(ctx context.Context, claims []*tenancy) bool {
	r.gate.RLock()
	defer r.gate.RUnlock()
	client := r.pick()
	if client == nil {
		return false
	}
	for _, t := range claims {
		r.ledger.releasing(t)
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r.asking(claims)
	begin := time.Now()
	response, err := client.NodeUnprepareResources(call, &drapb.NodeUnprepareResourcesRequest{Claims: wire(claims)})
	if err != nil {
		r.failed(claims, "unprepare", err.Error())
		return false
	}
	all := true
	for _, t := range claims {
		answer := response.Claims[t.uid]
		switch {
		case answer == nil:
			r.report(violation{leaked, t.name, "a call that did not fail gave no answer for it"})
			all = false
		case answer.Error != "":
			r.failed([]*tenancy{t}, "unprepare", answer.Error)
			r.needsSpace(t, answer.Error)
			all = false
		default:
			r.trace.note("%s is unprepared", t.name)
		}
	}
	if all {
		r.answered(begin, claims)
	}
	return all
}
