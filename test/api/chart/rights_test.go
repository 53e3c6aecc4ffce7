// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/check"
)

const rightsPage = repository + "/docs/design/rights.md"

// testRights holds the table of docs/design/rights.md against what the API server says of each account, as `kubectl auth can-i --list`
// does.
func testRights(t *testing.T, server *apiServer) {
	var table strings.Builder
	for _, account := range []struct{ name, node, title string }{
		{controllerAccount, "", "`fettle-controller`"},
		{"fettle-webhook", "", "`fettle-webhook`"},
		{plugin, "node1", "`fettle-kubeletplugin`, token bound to node1"},
	} {
		for _, space := range []string{"default", namespace} {
			fmt.Fprintf(&table, "### %s, in namespace `%s`\n\n| resource | verbs |\n|---|---|\n", account.title, space)
			for _, row := range listRights(t, server, account.name, account.node, space) {
				table.WriteString(row)
			}
			table.WriteString("\n")
		}
	}
	const start, end = "<!-- rights -->\n", "<!-- /rights -->\n"
	page, err := os.ReadFile(rightsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(page), start)
	have, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q or no %q", rightsPage, start, end)
	}
	if check.Updating() {
		if err := os.WriteFile(rightsPage, []byte(head+start+"\n"+table.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff("\n"+table.String(), have); diff != "" {
		t.Errorf("%s differs (-API server +page); if right, run go test ./test/api/chart -run TestAPI/newest -update\n%s", rightsPage, diff)
	}
}

// listRights returns the rows of one account. What every user of a cluster may is left out.
func listRights(t *testing.T, server *apiServer, account, node, space string) []string {
	t.Helper()
	rules := func(account string) map[string]string {
		clients, _ := server.as(t, account, node)
		review, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: space},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, rule := range review.Status.ResourceRules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					key := strings.TrimPrefix(strings.TrimSuffix(resource+"."+group, "."), ".")
					if len(rule.ResourceNames) > 0 {
						key += " [" + strings.Join(rule.ResourceNames, ", ") + "]"
					}
					verbs := append(strings.Fields(out[key]), rule.Verbs...)
					slices.Sort(verbs)
					out[key] = strings.Join(slices.Compact(verbs), " ")
				}
			}
		}
		return out
	}
	own, everybody := rules(account), rules("nobody")
	var rows []string
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if own[key] != everybody[key] {
			rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", key, own[key]))
		}
	}
	return rows
}
