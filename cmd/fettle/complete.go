// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

const completionHelp = `
Prints a script for SHELL, which is bash, fish, powershell or zsh. The shell then completes commands, flags, their values and names of
the cluster's objects. For kubectl fettle no script is needed: kubectl asks the program kubectl_complete-fettle, which is this one by
another name.`

const completionExamples = `
# for this shell
source <(fettle completion bash)
source <(fettle completion zsh)
fettle completion fish | source
# for kubectl fettle, with kubectl's own completion
ln -s "$(command -v fettle)" ~/.local/bin/kubectl_complete-fettle`

// shells returns the names of the shells for which cobra writes scripts.
func shells() []string { return []string{"bash", "fish", "powershell", "zsh"} }

func completion(flags *arguments) action {
	plain := flags.Bool("no-descriptions", false, "complete without descriptions")
	flags.command.ValidArgsFunction = cobra.FixedCompletions(shells(), cobra.ShellCompDirectiveNoFileComp)
	return func(_ context.Context, operands []string, stdout, _ io.Writer) error {
		root := flags.command.Root()
		switch operands[0] {
		case "bash":
			return root.GenBashCompletionV2(stdout, !*plain)
		case "fish":
			return root.GenFishCompletion(stdout, !*plain)
		case "powershell":
			if *plain {
				return root.GenPowerShellCompletion(stdout)
			}
			return root.GenPowerShellCompletionWithDesc(stdout)
		case "zsh":
			if *plain {
				return root.GenZshCompletionNoDesc(stdout)
			}
			return root.GenZshCompletion(stdout)
		}
		return flags.misused(fmt.Errorf("shell %q: want one of %s", operands[0], strings.Join(shells(), ", ")))
	}
}

// completeFlag offers the values of a flag that was declared.
func (a *arguments) completeFlag(flag string, values ...string) {
	a.completeFlagBy(flag, func(context.Context) []string { return values })
}

// completeFlagBy asks for the values of a flag that was declared.
func (a *arguments) completeFlagBy(flag string, values func(ctx context.Context) []string) {
	// The only error is that of a flag without a declaration, which TestFlagsComplete would show.
	_ = a.command.RegisterFlagCompletionFunc(flag,
		func(c *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			directive := cobra.ShellCompDirectiveNoFileComp
			all := values(c.Context())
			if slices.ContainsFunc(all, func(value string) bool { return strings.HasSuffix(value, "=") }) {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
			return all, directive
		})
}

// completeOperand asks for the values of the first operand. What is typed already is handed over.
func (a *arguments) completeOperand(values func(ctx context.Context, typed string) []string) {
	a.command.ValidArgsFunction = func(c *cobra.Command, before []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(before) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return values(c.Context(), typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFiles says for operands that nothing else completes whether they are files, directories or neither.
func (a *arguments) completeFiles() {
	if a.command.ValidArgsFunction != nil {
		return
	}
	a.command.ValidArgsFunction = func(_ *cobra.Command, before []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		next := ""
		if len(a.want) > 0 {
			next = a.want[min(len(before), len(a.want)-1)]
		}
		repeats := slices.ContainsFunc(a.want, func(word string) bool { return strings.HasSuffix(word, "...") })
		switch {
		case repeats || strings.Contains(next, "FILE"):
			return nil, cobra.ShellCompDirectiveDefault
		case next == "DIR":
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeCluster offers contexts and namespaces.
func (a *arguments) completeCluster(c *cluster) {
	a.completeFlagBy("context", func(context.Context) []string { return c.contexts() })
	if c.Namespace == nil {
		return
	}
	a.completeFlagBy("namespace", func(ctx context.Context) []string {
		return c.names(ctx, func(ctx context.Context, r *reader, _ string) []string {
			names, _ := r.namesOf(ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "")
			return names
		})
	})
}

// patience is how long a person waits for the names of a cluster that does not answer.
const patience = 3 * time.Second

// names asks the cluster. A cluster that cannot be asked has no names.
func (c *cluster) names(ctx context.Context, ask func(ctx context.Context, r *reader, namespace string) []string) []string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, namespace, err := c.client()
	if err != nil {
		return nil
	}
	return ask(ctx, client, namespace)
}

// nodesOf lists the nodes that publish devices.
func nodesOf(ctx context.Context, r *reader, _ string) []string {
	names := map[string]bool{}
	own := choice[resourceapi.ResourceSlice]{fields: ownSlices(""), keep: func(s *resourceapi.ResourceSlice) bool {
		if s.Spec.Driver == v1alpha1.DriverName && s.Spec.NodeName != nil {
			names[*s.Spec.NodeName] = true
		}
		return false
	}}
	_, _ = listOf(ctx, r, resourceSlices(), own)
	return slices.Sorted(maps.Keys(names))
}

// claimsAndPods lists the claims and the pods with claims of a namespace, with their kinds, and once something is typed also without.
func claimsAndPods(ctx context.Context, r *reader, namespace, typed string) []string {
	claims, _ := r.namesOf(ctx, resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), namespace)
	var pods []string
	of := choice[corev1.Pod]{namespace: namespace, begin: func() { pods = nil }, keep: func(pod *corev1.Pod) bool {
		if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
			pods = append(pods, pod.Name)
		}
		return false
	}}
	_, _ = listOf(ctx, r, corev1.SchemeGroupVersion.WithResource("pods"), of)
	var names []string
	for _, name := range claims {
		names = append(names, "claim/"+name)
	}
	for _, name := range pods {
		names = append(names, "pod/"+name)
	}
	bare := slices.Concat(claims, pods)
	if typed != "" {
		names = append(names, bare...)
	}
	return names
}
