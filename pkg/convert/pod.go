// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/convert/peak"
)

// container is one of a pod, with what it gets.
type container struct {
	node *node
	// path is "container work".
	path    string
	phase   peak.Phase
	regions []region
	// requests are the names of the regions' requests.
	requests []string
}

// regionRequest is a request of a claim, with the containers that have its region, by their places.
type regionRequest struct {
	region
	name  string
	users []int
}

// workload converts a pod's spec, and gives the template of its claim; nothing where the pod does not use Intel's plugin. It says whether
// the pod changed.
func (c *conversion) workload(w *workload) (template []byte, changed bool, err error) {
	containers, err := c.containersOf(w)
	if err != nil {
		return nil, false, err
	}
	requests, err := regionRequests(containers)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", w.title, err)
	}
	if len(requests) > maxRegions {
		return nil, false, fmt.Errorf("%s: %d regions, expected at most %d in a pod", w.title, len(requests), maxRegions)
	}
	used := false
	claim := freeClaimName(w.spec, "fpga")
	for i := range containers {
		did, err := c.rewrite(w, &containers[i], claim)
		if err != nil {
			return nil, false, fmt.Errorf("%s: %s: %w", w.title, containers[i].path, err)
		}
		used = used || did
	}
	if !used {
		return nil, false, nil
	}
	if len(requests) == 0 {
		return nil, true, nil
	}
	c.podNotes(w, containers, requests)
	name := c.templateName(w, "-fpga")
	entry, err := nodeOf(corev1.PodResourceClaim{Name: claim, ResourceClaimTemplateName: &name})
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", w.title, err)
	}
	if err := extend(w.spec, "resourceClaims", []*node{entry}); err != nil {
		return nil, false, fmt.Errorf("%s: %w", w.title, err)
	}
	template, err = c.bitstreams.template(w, name, requests)
	return template, true, err
}

// regionRequests gives the requests for the regions of containers, which are in the order in which they start, and tells the containers
// theirs. As with resources, an init container that ends hands its regions on. Those with a bitstream or parameters of their own cannot be
// handed on: a request has one.
func regionRequests(containers []container) ([]regionRequest, error) {
	var requests []regionRequest
	var kinds, resources []string
	for i := range containers {
		for _, r := range containers[i].regions {
			kinds, resources = append(kinds, r.kind()), append(resources, r.resource)
		}
	}
	wants := map[string]int64{}
	for _, r := range unique(resources) {
		for _, p := range peak.Requests(counted(containers, func(o region) bool { return o.resource == r })) {
			wants[r] += p.Count
		}
	}
	for _, kind := range unique(kinds) {
		for _, p := range peak.Requests(counted(containers, func(o region) bool { return o.kind() == kind })) {
			of := containers[p.Containers[0]].regions
			one := of[slices.IndexFunc(of, func(o region) bool { return o.kind() == kind })]
			wants[one.resource] -= p.Count
			requests = append(requests, slices.Repeat([]regionRequest{{region: one, users: p.Containers}}, int(p.Count))...)
		}
	}
	for _, r := range unique(resources) {
		if wants[r] < 0 {
			return nil, fmt.Errorf("resource %s: its init containers handed regions on to containers that program another bitstream or have "+
				"other parameters, and a region of a claim has one bitstream: expected the same in all of them, or a pod for each", clip(r))
		}
	}
	slices.SortStableFunc(requests, func(a, b regionRequest) int { return cmp.Compare(a.users[0], b.users[0]) })
	for i := range requests {
		requests[i].name = fmt.Sprintf("region-%d", i+1)
		for _, user := range requests[i].users {
			containers[user].requests = append(containers[user].requests, requests[i].name)
		}
	}
	return requests, nil
}

// counted gives the containers with how many of some regions each has.
func counted(containers []container, of func(region) bool) []peak.Container {
	out := make([]peak.Container, len(containers))
	for i, k := range containers {
		out[i].Phase = k.phase
		for _, r := range k.regions {
			if of(r) {
				out[i].Count++
			}
		}
	}
	return out
}

// unique returns each of some texts once, in order of their first.
func unique(texts []string) []string {
	var out []string
	for _, text := range texts {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// kind tells regions apart that a request cannot both be for.
func (r region) kind() string {
	params := make([]string, 0)
	for _, p := range r.params.List() {
		params = append(params, fmt.Sprint(p))
	}
	return fmt.Sprint(r.resource, " ", r.id, " ", r.loaded, " ", params)
}

// containersOf reads what the pod's containers ask for. All that is wrong is reported.
func (c *conversion) containersOf(w *workload) ([]container, error) {
	var containers []container
	var faults []error
	for _, list := range []string{"initContainers", "containers"} {
		items := child(w.spec, list)
		if !isNull(items) && !isSequence(items) {
			faults = append(faults, fmt.Errorf("%s: %s: expected a list", w.title, list))
			continue
		}
		if isNull(items) {
			continue
		}
		for i, n := range items.Content {
			k := container{node: n, path: fmt.Sprintf("%s[%d]", list, i), phase: phaseOf(list, n)}
			if name := value(n, "name"); name != "" {
				k.path = "container " + clip(name)
			}
			var err error
			k.regions, err = c.wanted(n)
			for _, fault := range unjoin(err) {
				faults = append(faults, fmt.Errorf("%s: %s: %w", w.title, k.path, fault))
			}
			containers = append(containers, k)
		}
	}
	return containers, errors.Join(faults...)
}

// wanted brings a container's resources and environment together.
func (c *conversion) wanted(n *node) ([]region, error) {
	regions, err := c.regionsOf(n)
	env, envErr := variables(n)
	if err := errors.Join(err, envErr); err != nil {
		return nil, err
	}
	wishes, err := wishesOf(env)
	if err != nil {
		return nil, err
	}
	var faults []error
	for i := range wishes {
		if err := wishes[i].grant(regions); err != nil {
			faults = append(faults, err)
		}
	}
	return regions, errors.Join(faults...)
}

// variables are a container's environment, name and value. The API wants a list; a mapping is what some write.
func variables(n *node) ([]pair, error) {
	env := child(n, "env")
	switch {
	case isNull(env):
		return nil, nil
	case isMapping(env):
		return pairs(env), nil
	case !isSequence(env):
		return nil, errors.New("env: expected a list of variables")
	}
	var all []pair
	for i, entry := range env.Content {
		name := child(entry, "name")
		if !isScalar(name) {
			return nil, fmt.Errorf("env[%d]: expected a variable with a name", i)
		}
		all = append(all, pair{name, child(entry, "value")})
	}
	return all, nil
}

// rewrite takes resources and variables of Intel's plugin away and names the claim. It says whether there were any.
func (c *conversion) rewrite(w *workload, k *container, claim string) (bool, error) {
	resources := child(k.node, "resources")
	used := false
	for _, key := range []string{"limits", "requests"} {
		list := child(resources, key)
		if !isMapping(list) {
			continue
		}
		before := len(list.Content)
		for _, p := range pairs(list) {
			if strings.HasPrefix(p.key.Value, resourcePrefix) {
				c.notef("%s: %s: resource %s: %s", w.title, k.path, clip(p.key.Value), k.fate(p.key.Value))
			}
		}
		remove(list, func(name string) bool { return strings.HasPrefix(name, resourcePrefix) })
		used = used || len(list.Content) < before
		if len(list.Content) == 0 && before > 0 {
			removeKey(resources, key)
		}
	}
	if !used {
		return false, nil
	}
	if len(resources.Content) == 0 && len(k.requests) == 0 {
		removeKey(k.node, "resources")
	}
	if err := c.rewriteEnv(w, k); err != nil {
		return true, err
	}
	if len(k.requests) == 0 {
		return true, nil
	}
	return true, nameRequests(k.node, claim, k.requests)
}

// fate says what becomes of a resource.
func (k *container) fate(resource string) string {
	count := counted([]container{*k}, func(r region) bool { return r.resource == resource })[0].Count
	if count == 0 {
		return "0 is left out: it asks for nothing"
	}
	return fmt.Sprintf("%d is in the claim now", count)
}

// rewriteEnv takes the variables away. What remains of a mapping becomes a list.
func (c *conversion) rewriteEnv(w *workload, k *container) error {
	env := child(k.node, "env")
	if isNull(env) {
		return nil
	}
	if isMapping(env) {
		c.notef("%s: %s: env is a mapping, which the API refuses: it is written as a list", w.title, k.path)
		if err := toVariables(env); err != nil {
			return err
		}
	}
	var gone []string
	var kept []*node
	for _, entry := range env.Content {
		if name := value(entry, "name"); envName.MatchString(name) {
			gone = append(gone, name)
			continue
		}
		kept = append(kept, entry)
	}
	if len(gone) > 0 {
		c.notef("%s: %s: no longer set: %s", w.title, k.path, strings.Join(gone, ", "))
	}
	if env.Content = kept; len(kept) == 0 {
		removeKey(k.node, "env")
	}
	return nil
}

// toVariables makes a mapping the list of variables that the API wants.
func toVariables(env *node) error {
	var entries []*node
	for _, p := range pairs(env) {
		if !isScalar(p.value) {
			return fmt.Errorf("env %.80q: expected a text", p.key.Value)
		}
		entry, err := nodeOf(corev1.EnvVar{Name: p.key.Value, Value: p.value.Value})
		if err != nil {
			return err
		}
		entries = append(entries, entry)
	}
	toList(env, entries)
	return nil
}

// podNotes say what a claim does otherwise than the plugin did.
func (c *conversion) podNotes(w *workload, containers []container, requests []regionRequest) {
	if w.namespace == "" {
		c.notef("%s: it names no namespace, so its bitstreams are for %s", w.title, c.options.Namespace)
	}
	if value(w.spec, "nodeName") != "" {
		c.notef("%s: nodeName passes by the scheduler, which allocates claims: use a nodeSelector", w.title)
	}
	for _, k := range containers {
		if len(k.regions) > 0 && !isNull(child(k.node, "envFrom")) {
			c.notef("%s: %s: what envFrom sets is not looked at", w.title, k.path)
		}
	}
	for _, r := range requests {
		path := containers[r.users[0]].path
		switch {
		case r.loaded:
			c.notef("%s: %s: %s must hold AFU %s already, and is not programmed", w.title, path, r.name, r.id)
		case r.id == "":
			c.notef("%s: %s: %s is used as it is, since nothing names a bitstream for it", w.title, path, r.name)
		}
		if len(r.users) > 1 {
			var paths []string
			for _, i := range r.users {
				paths = append(paths, strings.TrimPrefix(containers[i].path, "container "))
			}
			c.notef("%s: containers %s have %s in common, since each of them ends before the next begins", w.title,
				strings.Join(paths, ", "), r.name)
		}
	}
}

// freeClaimName is one that no claim of the pod has.
func freeClaimName(spec *node, name string) string {
	taken := map[string]bool{}
	if claims := child(spec, "resourceClaims"); isSequence(claims) {
		for _, entry := range claims.Content {
			taken[value(entry, "name")] = true
		}
	}
	return free(name, func(name string) bool { return taken[name] })
}

// free appends a number to a name that is taken.
func free(name string, taken func(string) bool) string {
	for i := 2; ; i++ {
		if !taken(name) {
			return name
		}
		name = fmt.Sprintf("%s-%d", strings.TrimSuffix(name, fmt.Sprintf("-%d", i-1)), i)
	}
}
