// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/test/seed"
)

// TestEveryField: each field of a pod's spec, as the API has it that this program is built with, is in exactly one list. If this test
// fails after an update, look in the scheduler and in kubelet for what the new field decides, and add it to the list where it belongs.
func TestEveryField(t *testing.T) {
	listed := map[string]int{}
	for _, g := range groups() {
		if g.why == "" {
			t.Errorf("no reason is given for %v", g.fields)
		}
	}
	for name := range rules() {
		listed[name] = 0
	}
	seen := map[string]bool{}
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		if seen[of.Name()] {
			return
		}
		seen[of.Name()] = true
		for i := range of.NumField() {
			f := of.Field(i)
			inner := f.Type
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			name := jsonName(f)
			r, has := rules()[of.Name()+"."+name]
			switch {
			case name == "":
				walk(inner, path)
			case has:
				listed[of.Name()+"."+name]++
				if deep(f.Type) && r.class != unjudged && !strings.HasPrefix(name, "preferred") {
					t.Errorf("%s.%s.%s: a structure has a rule as a whole: list its fields", path, of.Name(), name)
				}
			case deep(f.Type):
				walk(inner, path+"."+name)
			default:
				t.Errorf("%s.%s is in no list: add %s.%s", path, name, of.Name(), name)
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec](), "spec")
	for name, times := range listed {
		if times != 1 {
			t.Errorf("%s is in a list and was seen %d times in a pod's spec, want once", name, times)
		}
	}
}

// TestOneList: no field is in two lists, of which one would be forgotten.
func TestOneList(t *testing.T) {
	fields := 0
	for _, g := range groups() {
		for _, names := range g.fields {
			fields += len(strings.Fields(names))
		}
	}
	if got := len(rules()); got != fields {
		t.Errorf("%d rules of %d fields in lists: some field is listed twice", got, fields)
	}
}

// TestUnjudged: what is set decides, and a value where only some are judged.
func TestUnjudged(t *testing.T) {
	for name, test := range map[string]struct {
		spec corev1.PodSpec
		want []string
	}{
		"nothing": {},
		"what every pod has": {spec: corev1.PodSpec{
			SchedulerName: "default-scheduler", ServiceAccountName: "default", OS: &corev1.PodOS{Name: corev1.Linux},
			Priority: ptr.To(int32(1)), SecurityContext: &corev1.PodSecurityContext{},
			Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
			}}}},
			Containers: []corev1.Container{{
				Name: "c", Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/var/run"}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}},
			}},
		}},
		"a volume": {
			spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v"},
			}}}},
			want: []string{"spec.volumes[].persistentVolumeClaim"},
		},
		"a scheduler": {spec: corev1.PodSpec{SchedulerName: "other"}, want: []string{"spec.schedulerName: other"}},
		"Windows":     {spec: corev1.PodSpec{OS: &corev1.PodOS{Name: corev1.Windows}}, want: []string{"spec.os.name: windows"}},
		"spreading": {
			spec: corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway}, {MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule},
			}},
			want: []string{"spec.topologySpreadConstraints[].whenUnsatisfiable: DoNotSchedule"},
		},
		"affinities": {
			spec: corev1.PodSpec{Affinity: &corev1.Affinity{
				PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}}},
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{TopologyKey: corev1.LabelHostname}, {TopologyKey: corev1.LabelTopologyZone},
				}},
			}},
			want: []string{
				"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution",
				"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].topologyKey: topology.kubernetes.io/zone",
			},
		},
		"preferences": {spec: corev1.PodSpec{Affinity: &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1}}},
		}}},
		"what kubelet has to declare": {
			spec: corev1.PodSpec{
				HostNetwork: true, HostUsers: ptr.To(false),
				InitContainers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{BindMountOptions: []string{"noexec"}}}}},
				Containers: []corev1.Container{{RestartPolicyRules: []corev1.ContainerRestartRule{
					{Action: corev1.ContainerRestartRuleActionRestartAllContainers},
				}}},
			},
			want: []string{
				"spec.containers[].restartPolicyRules[].action: RestartAllContainers", "spec.hostUsers: false with spec.hostNetwork",
				"spec.initContainers[].volumeMounts[].bindMountOptions",
			},
		},
	} {
		if diff := cmp.Diff(test.want, Unjudged(&test.spec)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnknown: a field without a rule is unjudged as soon as it is set, as one is that a later Kubernetes adds.
func TestUnknown(t *testing.T) {
	random, all := seed.New(t), slices.Sorted(maps.Keys(rules()))
	for range 50 {
		name := all[random.IntN(len(all))]
		of, field, _ := strings.Cut(name, ".")
		w := walker{rules: rules()}
		delete(w.rules, name)
		value := reflect.New(typesOf(reflect.TypeFor[corev1.PodSpec](), map[string]reflect.Type{})[of]).Elem()
		for i := range value.NumField() {
			if jsonName(value.Type().Field(i)) == field {
				fill(value.Field(i))
			}
		}
		if w.structure(value, of); len(w.found) == 0 && !deep(fieldType(value.Type(), field)) {
			t.Errorf("%s has no rule, is set, and is not unjudged", name)
		}
	}
}

func fieldType(of reflect.Type, field string) reflect.Type {
	for i := range of.NumField() {
		if f := of.Field(i); jsonName(f) == field {
			return f.Type
		}
	}
	return nil
}

// typesOf collects the structures of the core API below a type, by name.
func typesOf(of reflect.Type, into map[string]reflect.Type) map[string]reflect.Type {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if into[of.Name()] != nil || !deep(of) {
		return into
	}
	into[of.Name()] = of
	for i := range of.NumField() {
		typesOf(of.Field(i).Type, into)
	}
	return into
}

// fill sets a field to something that is not its zero value.
func fill(v reflect.Value) {
	switch v.Kind() { //nolint:exhaustive // the API has no others
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	}
}

func TestConflict(t *testing.T) {
	pod := func(ports ...corev1.ContainerPort) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: ports}}}}
	}
	host := func(p *corev1.Pod) *corev1.Pod { p.Spec.HostNetwork = true; return p }
	init := func(p *corev1.Pod, policy *corev1.ContainerRestartPolicy) *corev1.Pod {
		p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
		p.Spec.InitContainers[0].RestartPolicy = policy
		return p
	}
	tcp := corev1.ContainerPort{HostPort: 80, Protocol: corev1.ProtocolTCP}
	at := func(address string) *corev1.Pod { return pod(corev1.ContainerPort{HostPort: 80, HostIP: address}) }
	for name, test := range map[string]struct {
		a, b *corev1.Pod
		want bool
	}{
		"none":                 {pod(), pod(tcp), false},
		"not of the host":      {pod(corev1.ContainerPort{ContainerPort: 80}), pod(corev1.ContainerPort{ContainerPort: 80}), false},
		"the same":             {pod(tcp), pod(tcp), true},
		"TCP is the default":   {pod(corev1.ContainerPort{HostPort: 80}), pod(tcp), true},
		"another protocol":     {pod(corev1.ContainerPort{HostPort: 80, Protocol: corev1.ProtocolUDP}), pod(tcp), false},
		"another port":         {pod(corev1.ContainerPort{HostPort: 81}), pod(tcp), false},
		"all addresses":        {at("10.0.0.1"), pod(tcp), true},
		"all addresses, said":  {at("0.0.0.0"), at("10.0.0.1"), true},
		"two addresses":        {at("10.0.0.1"), at("10.0.0.2"), false},
		"the host's network":   {host(pod(corev1.ContainerPort{ContainerPort: 80})), pod(tcp), true},
		"an init container":    {init(pod(tcp), nil), pod(tcp), false},
		"a sidecar":            {init(pod(tcp), ptr.To(corev1.ContainerRestartPolicyAlways)), pod(tcp), true},
		"one of several ports": {pod(corev1.ContainerPort{HostPort: 81}, tcp), pod(corev1.ContainerPort{HostPort: 82}, tcp), true},
	} {
		if ab, ba := Conflict(Ports(test.a), Ports(test.b)), Conflict(Ports(test.b), Ports(test.a)); ab != test.want || ba != test.want {
			t.Errorf("%s: %t and %t, want %t", name, ab, ba, test.want)
		}
	}
}

func TestMatches(t *testing.T) {
	app := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"kind": "team"}}}
	byName := func(pods *metav1.LabelSelector) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{LabelSelector: pods, Namespaces: []string{"team"}}
	}
	byLabel := func(kind string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{
			LabelSelector: app, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kind": kind}},
		}
	}
	everywhere := corev1.PodAffinityTerm{LabelSelector: app, NamespaceSelector: &metav1.LabelSelector{}}
	both := byLabel("b")
	both.Namespaces = []string{"team"}
	for name, test := range map[string]struct {
		term      corev1.PodAffinityTerm
		namespace *corev1.Namespace
		app       string
		want      string
	}{
		"its own namespace":             {term: corev1.PodAffinityTerm{LabelSelector: app}, namespace: team, app: "a", want: "no"},
		"by name":                       {term: byName(app), app: "a", want: "yes"},
		"other labels":                  {term: byName(app), app: "b", want: "no"},
		"no selector":                   {term: byName(nil), app: "a", want: "no"},
		"an empty selector":             {term: byName(&metav1.LabelSelector{}), want: "yes"},
		"by labels":                     {term: byLabel("team"), namespace: team, app: "a", want: "yes"},
		"by other labels":               {term: byLabel("b"), namespace: team, app: "a", want: "no"},
		"all namespaces":                {term: everywhere, app: "a", want: "yes"},
		"namespace not known":           {term: byLabel("team"), app: "a", want: "unknown"},
		"not known, other pods":         {term: byLabel("team"), app: "b", want: "no"},
		"by labels or by name":          {term: both, app: "a", want: "yes"},
		"invalid":                       {term: byName(leftOut()), app: "a", want: "unknown"},
		"invalid, of another namespace": {term: corev1.PodAffinityTerm{LabelSelector: leftOut()}, app: "a", want: "no"},
		"invalid namespaces": {
			term: corev1.PodAffinityTerm{LabelSelector: app, NamespaceSelector: leftOut()}, app: "a", want: "unknown",
		},
		"invalid namespaces, other pods": {
			term: corev1.PodAffinityTerm{LabelSelector: app, NamespaceSelector: leftOut()}, app: "b", want: "no",
		},
	} {
		owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other"}}
		owner.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{test.term},
		}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Labels: map[string]string{"app": test.app}}}
		matches, known := AntiAffinity(owner)[0].Matches(pod, test.namespace)
		got := map[[2]bool]string{{true, true}: "yes", {false, true}: "no", {false, false}: "unknown"}[[2]bool{matches, known}]
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestBound: what is small stays as it is. What is large may match, and of which pods it cannot match stays known.
func TestBound(t *testing.T) {
	long := strings.Repeat("x", maxLabels+1)
	app := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	many := func(term corev1.PodAffinityTerm) (terms []corev1.PodAffinityTerm) {
		for range maxTerms + 1 {
			terms = append(terms, term)
		}
		return terms
	}
	one := func(term corev1.PodAffinityTerm) []corev1.PodAffinityTerm { return []corev1.PodAffinityTerm{term} }
	for name, test := range map[string]struct {
		terms     []corev1.PodAffinityTerm
		namespace string
		want      string
	}{
		"small":                        {terms: one(corev1.PodAffinityTerm{LabelSelector: app}), namespace: "own", want: "yes"},
		"small, of another namespace":  {terms: one(corev1.PodAffinityTerm{LabelSelector: app}), namespace: "other", want: "no"},
		"many, of one's own namespace": {terms: many(corev1.PodAffinityTerm{LabelSelector: app}), namespace: "own", want: "unknown"},
		"many, of another namespace":   {terms: many(corev1.PodAffinityTerm{LabelSelector: app}), namespace: "other", want: "no"},
		"a large selector":             {terms: one(corev1.PodAffinityTerm{LabelSelector: byValue(long)}), namespace: "own", want: "unknown"},
		"a large selector, another namespace": {
			terms: one(corev1.PodAffinityTerm{LabelSelector: byValue(long)}), namespace: "other", want: "no",
		},
		"many namespaces": {
			terms:     one(corev1.PodAffinityTerm{LabelSelector: app, Namespaces: []string{long}}),
			namespace: "other", want: "unknown",
		},
		"a large selector of namespaces": {
			terms:     one(corev1.PodAffinityTerm{LabelSelector: app, NamespaceSelector: byValue(long)}),
			namespace: "other", want: "unknown",
		},
		"many terms for all namespaces": {
			terms:     many(corev1.PodAffinityTerm{LabelSelector: app, NamespaceSelector: &metav1.LabelSelector{}}),
			namespace: "other", want: "unknown",
		},
	} {
		from, kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Labels: map[string]string{"l": "v"}}}, &corev1.Pod{}
		from.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: test.terms,
		}}
		kept.Namespace = "own"
		Bound(kept, from)
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Labels: map[string]string{"app": "a"}}}
		matches, known := AntiAffinity(kept)[0].Matches(other, nil)
		got := map[[2]bool]string{{true, true}: "yes", {false, true}: "no", {false, false}: "unknown"}[[2]bool{matches, known}]
		if got != test.want || kept.Size() > 1000 || kept.Labels["l"] != "v" {
			t.Errorf("%s: %s, want %s; %d bytes, labels %v", name, got, test.want, kept.Size(), kept.Labels)
		}
	}
}

// TestBoundDomains: of a pod with terms for more labels than are kept it is not known in which nodes it lets others be.
func TestBoundDomains(t *testing.T) {
	from, kept := &corev1.Pod{}, &corev1.Pod{}
	terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelTopologyZone, NamespaceSelector: &metav1.LabelSelector{}}}
	for i := range maxTerms {
		terms = append(terms, corev1.PodAffinityTerm{TopologyKey: fmt.Sprint("a-", i)})
	}
	from.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	Bound(kept, from)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}
	for _, term := range AntiAffinity(kept) {
		_, in := Domain(node, term.Key)
		if _, known := term.Matches(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other"}}, nil); in && !known && kept.Size() < 1000 {
			return
		}
	}
	t.Errorf("the node is known to be free for others, or %d bytes are too many", kept.Size())
}

func byValue(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
}

// TestBoundLabels: of a pod with too many labels nobody knows whether a selector of its namespace selects it.
func TestBoundLabels(t *testing.T) {
	from, kept := &corev1.Pod{}, &corev1.Pod{}
	from.Labels = map[string]string{"app": "a", "l": strings.Repeat("x", maxLabels)}
	kept.Namespace = "team"
	Bound(kept, from)
	for want, term := range map[string]corev1.PodAffinityTerm{
		"false false": {LabelSelector: byValue("b"), Namespaces: []string{"team"}},
		"true true":   {LabelSelector: &metav1.LabelSelector{}, Namespaces: []string{"team"}},
		"false true":  {LabelSelector: byValue("a")},
	} {
		owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other"}}
		owner.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
		}}
		matches, known := AntiAffinity(owner)[0].Matches(kept, nil)
		if got := fmt.Sprint(matches, known); got != want || kept.Size() > 1000 {
			t.Errorf("%+v: %s, want %s; %d bytes", term, got, want, kept.Size())
		}
	}
}
