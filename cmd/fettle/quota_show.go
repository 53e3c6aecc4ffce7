// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/plan/quota"
)

// showQuota writes the devices by namespace and class, the limits, and what was asked about. Problems go to stderr.
func showQuota(report quota.Report, stdout, stderr io.Writer) error {
	for _, p := range report.Problems {
		if _, err := fmt.Fprintf(stderr, "%s: %s\n", p.Object, p.Message); err != nil {
			return err
		}
	}
	for _, n := range report.Namespaces {
		for _, l := range n.Limits {
			if l.Ignored == "" {
				continue
			}
			if _, err := fmt.Fprintf(stderr, "ResourceQuota %s/%s: %s: %s\n", n.Name, l.Quota, l.Resource, l.Ignored); err != nil {
				return err
			}
		}
	}
	if len(report.Namespaces) == 0 {
		_, err := fmt.Fprintln(stderr, "no claims, and no quotas about devices")
		return err
	}
	var parts []func(io.Writer) error
	if slices.ContainsFunc(report.Namespaces, func(n quota.Namespace) bool { return len(n.Classes) > 0 }) {
		parts = append(parts, func(w io.Writer) error { return showClasses(report, w) })
	}
	if slices.ContainsFunc(report.Namespaces, func(n quota.Namespace) bool { return len(n.Limits) > 0 }) {
		parts = append(parts, func(w io.Writer) error { return showLimits(report, w) })
	}
	if len(report.Asked) > 0 {
		parts = append(parts, func(w io.Writer) error { return showAsked(report, w) })
	}
	for i, part := range parts {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		if err := part(stdout); err != nil {
			return err
		}
	}
	return nil
}

func showClasses(report quota.Report, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tCLASS\tCHARGED\tDEVICES\tSHARES\tADMIN\tMEMORY") // a tabwriter's errors come at Flush
	for _, n := range report.Namespaces {
		for _, c := range n.Classes {
			memory := c.Memory.String()
			if c.MemoryUnknown > 0 {
				memory = fmt.Sprintf("%s, unknown of %d", memory, c.MemoryUnknown)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", n.Name, c.Name, c.Charged, c.Devices, c.Shares, c.AdminAccess, memory)
		}
	}
	return table.Flush()
}

func showLimits(report quota.Report, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	head := "NAMESPACE\tQUOTA\tRESOURCE\tUSED\tHARD"
	if len(report.Asked) > 0 {
		head += "\tAFTER"
	}
	fmt.Fprintln(table, head) // a tabwriter's errors come at Flush
	for _, n := range report.Namespaces {
		for _, l := range n.Limits {
			used := l.Counted.String()
			if l.Used != nil {
				used = l.Used.String()
			}
			if l.Ignored != "" {
				used = "-"
			}
			row := []string{n.Name, l.Quota, string(l.Resource), used, l.Hard.String()}
			switch {
			case len(report.Asked) > 0 && l.After != nil:
				row = append(row, l.After.String())
			case len(report.Asked) > 0:
				row = append(row, "-")
			}
			fmt.Fprintln(table, strings.Join(row, "\t"))
		}
	}
	return table.Flush()
}

func showAsked(report quota.Report, stdout io.Writer) error {
	for _, a := range report.Asked {
		var charges []string
		for _, c := range a.Charges {
			charges = append(charges, string(c.Resource)+"="+c.Quantity.String())
		}
		if _, err := fmt.Fprintf(stdout, "%s: %s\n", a.Object, strings.Join(charges, ", ")); err != nil {
			return err
		}
		for _, reason := range a.Refused {
			if _, err := fmt.Fprintf(stdout, "  refused: %s\n", reason); err != nil {
				return err
			}
		}
	}
	return nil
}

// statusRefused is the exit status if the API server would refuse something.
const statusRefused = 3

// refusedByQuota says that something would be refused.
func refusedByQuota(report quota.Report) error {
	n := 0
	for _, a := range report.Asked {
		if len(a.Refused) > 0 {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return statusError{fmt.Errorf("quota: %d of %s would be refused", n, counted(len(report.Asked), "object")), statusRefused}
}
