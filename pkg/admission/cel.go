// SPDX-License-Identifier: Apache-2.0

package admission

// The CEL of the two admission objects that the chart installs; docs/design/admission.md says why there are two, and a test
// keeps the chart's copies equal. Every optional field is guarded: an expression that fails is ignored (failurePolicy
// Ignore).
const (
	// MayBeOurs is the webhook's first match condition: only objects with a configuration for some driver, claims with selectors beside a
	// class by a name of this driver, and DeviceClasses reach the webhook. Whose devices a configuration is for is said by the class alone,
	// which the webhook reads.
	MayBeOurs = `has(object.spec.selectors) || (has(object.spec.config) ? object.spec.config
: has(object.spec.devices) && has(object.spec.devices.config) ? object.spec.devices.config
: has(object.spec.spec) && has(object.spec.spec.devices) && has(object.spec.spec.devices.config)
? object.spec.spec.devices.config : []).exists(c, has(c.opaque))
|| (has(object.spec.devices) && has(object.spec.devices.requests) && object.spec.devices.requests != null
? object.spec.devices.requests
: has(object.spec.spec) && has(object.spec.spec.devices) && has(object.spec.spec.devices.requests)
&& object.spec.spec.devices.requests != null
? object.spec.spec.devices.requests : [])
.exists(r, has(r.exactly) && has(r.exactly.selectors) && r.exactly.deviceClassName.endsWith('.fettle.dev')
|| has(r.firstAvailable) && r.firstAvailable.exists(s, has(s.selectors) && s.deviceClassName.endsWith('.fettle.dev')))`

	// SpecChanged is the webhook's second match condition, and the only one for PartitionPolicies: an object that was let in while the
	// webhook was away can still get its labels changed and its finalizers removed.
	SpecChanged = `request.operation == 'CREATE' || object.spec != oldObject.spec`

	// ClassHasPolicy is the match condition of the namespace policy, whose params are a DeviceClass.
	ClassHasPolicy = `has(params.spec.config) && params.spec.config.exists(c, has(c.opaque) && c.opaque.driver == 'fettle.dev'
&& has(c.opaque.parameters.policy) && has(c.opaque.parameters.policy.allowedNamespaces))`

	// NamespaceAllowed is the validation of the namespace policy. It uses NamespaceVariables.
	NamespaceAllowed = `!variables.used || variables.lists.all(l, request.namespace in l)`

	// NamespaceMessage is what the author of a refused claim reads. It does not name the namespaces of others.
	NamespaceMessage = `'DeviceClass ' + params.metadata.name + ' does not allow namespace ' + request.namespace
+ ': create the claim in an allowed namespace, use another class, or ask an administrator to add '
+ request.namespace + ' to policy.allowedNamespaces of the class'`
)

// Variable is a named CEL expression of a ValidatingAdmissionPolicy.
type Variable struct {
	Name       string
	Expression string
}

// NamespaceVariables are the variables of the namespace policy, each may use those before it.
func NamespaceVariables() []Variable {
	return []Variable{
		{Name: "spec", Expression: `has(dyn(object.spec).spec) ? dyn(object.spec).spec : dyn(object.spec)`},
		{
			Name:       "requests",
			Expression: `has(variables.spec.devices) && has(variables.spec.devices.requests) ? variables.spec.devices.requests : []`,
		},
		{Name: "used", Expression: `variables.requests.exists(r,
has(r.exactly) && r.exactly.deviceClassName == params.metadata.name
&& !(has(r.exactly.adminAccess) && r.exactly.adminAccess)
|| has(r.firstAvailable) && r.firstAvailable.exists(s, s.deviceClassName == params.metadata.name))`},
		{Name: "lists", Expression: `params.spec.config.filter(c, has(c.opaque) && c.opaque.driver == 'fettle.dev'
&& has(c.opaque.parameters.policy) && has(c.opaque.parameters.policy.allowedNamespaces))
.map(c, c.opaque.parameters.policy.allowedNamespaces)`},
	}
}
