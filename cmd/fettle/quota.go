// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/quota"
)

const quotaHelp = `
Shows which devices each namespace has, by class, and what its ResourceQuotas say about them.

Of a cluster:  fettle quota [-n NAMESPACE | -A]
Of files:      fettle quota -f FILE|DIR [-f ...] [-n NAMESPACE]

CHARGED is what the claims ask for, as a ResourceQuota counts it when they are made: 32 for all devices, for alternatives the largest number
of each class, 1 for a share. DEVICES and SHARES are what is allocated, ADMIN what is looked at with admin access. MEMORY is the sum of the
memory of DEVICES and SHARES. These are reports: only the rows of quotas are limits.

--claim says what claims, templates or pods would be charged, and whether the API server would refuse them. They are charged one after the
other. With a pod come the claims of its templates and of its extended resources.

The exit status is 3 if something that --claim names would be refused.`

const quotaExamples = `
fettle quota
fettle quota -A
fettle quota -n research --claim claim.yaml
fettle quota -f quotas.yaml -f claims.yaml -o json`

// quotaFlags are those of quota.
type quotaFlags struct {
	*cluster
	files, claims list
}

func quotas(flags *arguments) action {
	f := quotaFlags{cluster: flags.cluster()}
	flags.VarP(&f.files, "filename", "f", "`file` or directory with manifests or a snapshot, - for standard input; may be repeated")
	flags.Var(&f.claims, "claim", "`file` with claims, templates or pods that do not exist yet; may be repeated")
	format := flags.format()
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		if given := flags.whichCluster(); len(f.files) > 0 && given != "" && given != "namespace" {
			return flags.misused(fmt.Errorf("--%s: want a cluster or --filename", given))
		}
		if f.all && flags.given("namespace") {
			return flags.misused(errors.New("want --namespace or --all-namespaces"))
		}
		report, err := f.count(ctx)
		if err != nil {
			return fmt.Errorf("quota: %w", err)
		}
		err = show(*format, report, stdout, func(stdout io.Writer) error { return showQuota(report, stdout, stderr) })
		return errors.Join(err, refusedByQuota(report))
	}
}

// count reads the objects and counts. Of files all namespaces count if none is named.
func (f *quotaFlags) count(ctx context.Context) (quota.Report, error) {
	read := f.ofCluster
	if len(f.files) > 0 {
		read = f.ofFiles
	}
	snapshot, namespace, problems, err := read(ctx)
	if err != nil {
		return quota.Report{}, err
	}
	var asked *plan.Snapshot
	if len(f.claims) > 0 {
		read, more, err := readSnapshot(f.claims, cmp.Or(namespace, metav1.NamespaceDefault))
		if err != nil {
			return quota.Report{}, fmt.Errorf("--claim: %w", err)
		}
		if len(read.Claims)+len(read.Templates)+len(read.Pods) == 0 {
			return quota.Report{}, fmt.Errorf("--claim %s: want claims, templates or pods", f.claims.String())
		}
		asked, problems = &read, append(problems, more...)
	}
	report, err := quota.Of(&snapshot, asked, namespace)
	if err != nil {
		return quota.Report{}, err
	}
	report.Problems = append(problems, report.Problems...)
	return report, nil
}

// ofFiles reads files.
func (f *quotaFlags) ofFiles(context.Context) (plan.Snapshot, string, []plan.Problem, error) {
	namespace := ""
	if !f.all {
		namespace = *f.Namespace
	}
	snapshot, problems, err := readSnapshot(f.files, cmp.Or(namespace, metav1.NamespaceDefault))
	return snapshot, namespace, problems, err
}

// ofCluster reads a cluster, and of the objects in namespaces those of the one that is asked about. Without the right to read classes,
// extended resources are not known; without that to read slices, memory is not.
func (f *quotaFlags) ofCluster(ctx context.Context) (s plan.Snapshot, namespace string, problems []plan.Problem, err error) {
	client, namespace, err := f.client()
	if err != nil {
		return s, "", nil, err
	}
	about := &snapshotReader{ctx: ctx, client: client} // its problem is only that a user may not see which gates are not the default ones
	if err := about.versionAndGates(f.cluster); err != nil {
		return s, "", nil, err
	}
	s.Version, s.Gates = about.Version, about.Gates
	core, devices := corev1.SchemeGroupVersion.WithResource, resourceapi.SchemeGroupVersion.WithResource
	for _, kind := range []struct {
		resource string
		without  string
		list     func() error
	}{
		{"resourcequotas", "", func() (err error) {
			s.Quotas, err = listOf(ctx, client, core("resourcequotas"), choice[corev1.ResourceQuota]{namespace: namespace})
			return err
		}},
		{"resourceclaims", "", func() (err error) {
			s.Claims, err = listOf(ctx, client, devices("resourceclaims"), choice[resourceapi.ResourceClaim]{namespace: namespace})
			return err
		}},
		{"pods", "extended resources of pods are not counted", func() (err error) {
			s.Pods, err = listOf(ctx, client, core("pods"), choice[corev1.Pod]{namespace: namespace})
			return err
		}},
		{"resourceclaimtemplates", "claims of pods that --claim names are not counted", func() (err error) {
			of := choice[resourceapi.ResourceClaimTemplate]{namespace: namespace}
			s.Templates, err = listOf(ctx, client, devices("resourceclaimtemplates"), of)
			return err
		}},
		{"deviceclasses", "extended resources are not counted", func() (err error) {
			s.Classes, err = listOf(ctx, client, devices("deviceclasses"), choice[resourceapi.DeviceClass]{})
			return err
		}},
		{"resourceslices", "memory is not known", func() (err error) {
			pools := poolsOf(s.Claims)
			s.Slices, err = listOf(ctx, client, resourceSlices(), choice[resourceapi.ResourceSlice]{
				keep: func(s *resourceapi.ResourceSlice) bool { return pools[poolOf(s)] },
			})
			return err
		}},
	} {
		switch err := kind.list(); {
		case apierrors.IsForbidden(err) && kind.without != "":
			problems = append(problems, plan.Problem{Object: "Snapshot " + kind.resource, Message: fmt.Sprintf("%s: %v", kind.without, err)})
		case err != nil:
			return s, "", nil, fmt.Errorf("list the %s: %w", kind.resource, err)
		}
	}
	return s, namespace, problems, nil
}
