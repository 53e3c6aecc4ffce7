// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cmd/fettle/internal/terminal"
	"github.com/fettle-dev/fettle/pkg/partition/cost"
)

const partitionHelp = `
Says what the profiles of divided devices cost the cluster, and which of them no claim has.

Of a cluster:  fettle partition
Of files:      kubectl get resourceslices,resourceclaims -A -o yaml | fettle partition --slices -

A node publishes every place of every profile that its PartitionPolicy allows. BYTES is what these devices take in etcd, and in each list of
them that a program reads when it starts. MEMORY is about what they take in the memory of the API server, and once more in each scheduler.
HELD is how many of them claims have now.

Where claims have some profiles and not others, it says what a PartitionPolicy with those alone would cost. Claims that wait, or that come
later, may ask for others.`

const partitionExamples = `
fettle partition
fettle partition -o json
kubectl get resourceslices,resourceclaims -A -o yaml | fettle partition --slices -`

// partitionCostFlags are those of partition.
type partitionCostFlags struct {
	*cluster
	slices, claims list
}

func partitionCosts(flags *arguments) action {
	f := partitionCostFlags{cluster: flags.connection()}
	flags.Var(&f.slices, "slices", "`file` with ResourceSlices, and perhaps ResourceClaims; may be repeated")
	flags.Var(&f.claims, "claims", "`file` with ResourceClaims; may be repeated")
	format := flags.format()
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		switch {
		case len(f.slices) > 0 && flags.whichCluster() != "":
			return flags.misused(fmt.Errorf("--%s: want a cluster or --slices", flags.whichCluster()))
		case len(f.slices) == 0 && len(f.claims) > 0:
			return flags.misused(errors.New("--claims: want --slices FILE too, with the devices that the claims have"))
		}
		read := f.ofCluster
		if len(f.slices) > 0 {
			read = f.ofFiles
		}
		report, unread, err := read(ctx)
		if err == nil && unread != nil {
			_, err = fmt.Fprintf(stderr, "without claims: %v\n", unread)
		}
		if err != nil {
			return fmt.Errorf("partition: %w", err)
		}
		return show(*format, report, stdout, func(stdout io.Writer) error { return showCosts(report, stdout, stderr) })
	}
}

// ofFiles reads the files. The second error says why there are no claims.
func (f *partitionCostFlags) ofFiles(ctx context.Context) (report cost.Report, unread, err error) {
	files := devicesFlags{slices: f.slices, claims: f.claims}
	objects, unread, err := files.usageOfFiles(ctx)
	counter := cost.New(v1alpha1.DriverName, objects.Claims)
	for _, s := range objects.Slices {
		counter.Add(s)
	}
	return counter.Report(), unread, err
}

// ofCluster reads a cluster: the claims first, and then the slices page by page, of which it keeps none.
func (f *partitionCostFlags) ofCluster(ctx context.Context) (report cost.Report, unread, err error) {
	client, _, err := f.client()
	if err != nil {
		return report, nil, err
	}
	claims, err := listOf(ctx, client, resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), choice[resourceapi.ResourceClaim]{
		keep: func(c *resourceapi.ResourceClaim) bool {
			c.ObjectMeta, c.Spec = metav1.ObjectMeta{}, resourceapi.ResourceClaimSpec{}
			return c.Status.Allocation != nil
		},
	})
	switch {
	case apierrors.IsForbidden(err):
		unread = err
	case err != nil:
		return report, nil, fmt.Errorf("list the ResourceClaims: %w", err)
	}
	var counter *cost.Counter
	begin := func() { counter = cost.New(v1alpha1.DriverName, claims) }
	count := func(s *resourceapi.ResourceSlice) bool {
		counter.Add(s)
		return false
	}
	_, err = listOf(ctx, client, resourceSlices(), choice[resourceapi.ResourceSlice]{fields: ownSlices(""), begin: begin, keep: count})
	if err != nil {
		return report, nil, fmt.Errorf("list the ResourceSlices: %w", err)
	}
	return counter.Report(), unread, nil
}

// showCosts writes the profiles, and what a policy with fewer would cost.
func showCosts(report cost.Report, stdout, stderr io.Writer) error {
	if len(report.Profiles) == 0 {
		_, err := fmt.Fprintln(stderr, "no devices of a product")
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PRODUCT\tPROFILE\tNODES\tDEVICES\tHELD\tBYTES\tMEMORY") // a tabwriter's errors come at Flush
	size, bytes, memory := terminal.Size, map[string]int64{}, map[string]int64{}
	for _, p := range report.Profiles {
		bytes[p.Product], memory[p.Product] = bytes[p.Product]+p.Bytes, memory[p.Product]+p.Memory
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", p.Product, p.Name, p.Nodes, p.Devices, p.Held, size(p.Bytes), size(p.Memory))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, a := range report.Advice {
		_, err := fmt.Fprintf(stdout, "\n%s: with profiles: [%s] in its PartitionPolicies, all that claims have, its devices take %s in place "+
			"of %s, and %s of memory in place of %s.\n", a.Product, strings.Join(a.Profiles, ", "), size(a.Bytes), size(bytes[a.Product]),
			size(a.Memory), size(memory[a.Product]))
		if err != nil {
			return err
		}
	}
	return nil
}
