// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/plan"
)

// category is what a text names, and the first word of what replaces it. Texts of one category that are the same stay the same.
type category string

const (
	// anyText is what no rule knows.
	anyText       category = "text"
	namespaceName category = "namespace"
	// place is a node or a pool, which often has the name of its node.
	place      category = "node"
	driverName category = "driver"
	deviceName category = "device"
	className  category = "class"
	// requestName is that of a request of a claim, or of an alternative of one.
	requestName category = "request"
	// objectName is that of everything else, and of a pod's claims and containers.
	objectName category = "name"
	uid        category = "uid"
	// labelKey and labelValue are those of labels, taints and tolerations.
	labelKey   category = "key"
	labelValue category = "value"
	// word is a value of an API, such as the effect of a taint.
	word category = "word"
	// resourceName is that of a quantity, attributeName that of an attribute or a capacity without its domain.
	resourceName  category = "resource"
	attributeName category = "attribute"
	// identity, versionValue and intValue are values of attributes.
	identity     category = "id"
	versionValue category = "version"
	intValue     category = "number"
	// celSelector and celDerived are expressions.
	celSelector category = "cel"
	celDerived  category = "derived"
)

// stays lists by category the texts that may stay: those of Kubernetes' API, of Fettle, and of makers of devices, which tell nothing of
// whose cluster it is. Whatever is not here, or a number where numbers say nothing, is replaced.
var stays = map[category]sets.Set[string]{ //nolint:gochecknoglobals // a table, which nothing changes
	driverName: sets.New(v1alpha1.DriverName),
	className:  classNames(),
	labelKey: sets.New(
		corev1.LabelHostname, corev1.LabelArchStable, corev1.LabelOSStable, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelInstanceTypeStable, corev1.LabelMetadataName, metav1.ObjectNameField, resourceapi.DRAAdminNamespaceLabelKey,
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeOutOfService,
		"node-role.kubernetes.io/control-plane", "nvidia.com/gpu", "amd.com/gpu",
		v1alpha1.GroupName+"/unhealthy", v1alpha1.GroupName+"/held", v1alpha1.GroupName+"/tenant", v1alpha1.UpgradeAnnotation,
		resourceapi.PodResourceClaimAnnotation, resourceapi.ExtendedResourceClaimAnnotation, corev1.MirrorPodAnnotationKey,
	),
	word: sets.New(
		"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "NoSchedule", "PreferNoSchedule", "NoExecute", "None",
		"Pending", "Running", "Succeeded", "Failed", "Unknown", "True", "False", "Always", "Never", "OnFailure", "ExactCount", "All",
		"DoNotSchedule", "ScheduleAnyway", "Honor", "Ignore", "Terminating", "NotTerminating", "BestEffort", "NotBestEffort",
		"PriorityClass", "CrossNamespacePodAffinity", "Device", "Node", "Pod", "ReplicaSet", "StatefulSet", "DaemonSet", "Job",
		"v1", "apps/v1", "batch/v1", "resource.k8s.io", "resource.k8s.io/v1", "pods", corev1.DefaultSchedulerName,
		"DRAOptionalNodeOperations", string(corev1.PodResizePending), corev1.PodReasonInfeasible,
		string(corev1.Linux), string(corev1.Windows), string(corev1.ContainerRestartRuleActionRestartAllContainers),
		string(corev1.ContainerRestartRuleActionRestart),
		string(corev1.ProtocolTCP), string(corev1.ProtocolUDP), string(corev1.ProtocolSCTP),
	),
	resourceName: sets.New(
		"cpu", "memory", "ephemeral-storage", "storage", "pods", "services", "secrets", "configmaps", "resourceclaims",
		"persistentvolumeclaims", "hugepages-2Mi", "hugepages-1Gi", "hugepages-64Ki", string(plan.ClaimCount),
	),
	attributeName: attributeNames(),
}

// classNames are the classes of each kind of device, and of parts of GPUs.
func classNames() sets.Set[string] {
	names := sets.New("mig.gpu.fettle.dev", "partition.gpu.fettle.dev", "vf.gpu.fettle.dev", "vfio.gpu.fettle.dev")
	for _, kind := range device.Kinds() {
		names.Insert(string(kind) + "." + v1alpha1.DriverName)
	}
	return names
}

// attributeNames are names of attributes and capacities without their domain.
func attributeNames() sets.Set[string] {
	out := sets.New[string]()
	for _, name := range []resourceapi.QualifiedName{
		device.AttributeAddressingMode, device.AttributeArchitecture, device.AttributeBackend, device.AttributeBrand,
		device.AttributeCUDADriverVersion, device.AttributeFabricClique, device.AttributeFabricClusterUUID, device.AttributeFabricState,
		device.AttributeCard, device.AttributeComputeCapability, device.AttributeDMAIsolated, device.AttributeDriver,
		device.AttributeDriverVersion, device.AttributeDriverVersionText, device.AttributeFirmwareVersion,
		device.AttributeInterfaceID, device.AttributeMemoryTenant, device.AttributePCIAddress,
		device.AttributePCIDeviceID, device.AttributePCIVendorID, device.AttributeParentUUID,
		device.AttributeProductName, device.AttributeProfile, device.AttributeProgrammingLocked, device.AttributeRegionIndex,
		device.AttributeSerial, device.AttributeShellID, device.AttributeShellVersion, device.AttributeSRIOVVF, device.AttributeType,
		device.AttributeUUID, device.AttributeVendor, device.CapacityMemory, device.CapacityMultiprocessors,
		deviceattribute.StandardDeviceAttributePCIBusID, deviceattribute.StandardDeviceAttributePCIeRoot,
		deviceattribute.StandardDeviceAttributeNUMANode,
	} {
		_, short := splitName(string(name))
		out.Insert(short)
	}
	return out
}

// standardDomain is the domain of attributes that Kubernetes names.
const standardDomain = "resource.kubernetes.io"

// modelAttributes are the attributes of Fettle's devices whose texts say what a device is, and of many devices the same.
var modelAttributes = sets.New( //nolint:gochecknoglobals // a table, which nothing changes
	device.AttributeAddressingMode, device.AttributeArchitecture, device.AttributeBackend, device.AttributeBrand, device.AttributeFabricState,
	device.AttributePCIDeviceID, device.AttributePCIVendorID,
	device.AttributeProductName, device.AttributeProfile, device.AttributeType, device.AttributeVendor,
)

// Types that are left alone, because they are numbers and times, and types that have their own category.
var ( //nolint:gochecknoglobals // tables, which nothing changes
	numbers = map[reflect.Type]bool{
		reflect.TypeFor[resource.Quantity](): true, reflect.TypeFor[metav1.Time](): true, reflect.TypeFor[metav1.MicroTime](): true,
	}
	typeCategory = map[reflect.Type]category{
		reflect.TypeFor[types.UID](): uid, reflect.TypeFor[corev1.ResourceName](): resourceName,
		reflect.TypeFor[resourceapi.QualifiedName](): attributeName, reflect.TypeFor[resourceapi.FullyQualifiedName](): attributeName,
	}
)

// fieldCategory has the fields whose texts are one with those of other fields, by TYPE.FIELD. ObjectMeta.Name is of the object's kind.
var fieldCategory = map[string]category{ //nolint:gochecknoglobals // a table, which nothing changes
	"ObjectMeta.Namespace": namespaceName, "OwnerReference.Name": objectName,
	"TypeMeta.Kind": word, "TypeMeta.APIVersion": word, "OwnerReference.Kind": word, "OwnerReference.APIVersion": word,
	"ResourceClaimConsumerReference.APIGroup": word, "ResourceClaimConsumerReference.Resource": word,
	"ResourceClaimConsumerReference.Name": objectName, "PodSpec.SchedulerName": word, "PodCondition.Reason": word,
	"NodeStatus.DeclaredFeatures": word,

	"PodSpec.NodeName": place, "ResourceSliceSpec.NodeName": place, "Device.NodeName": place, "ResourcePool.Name": place,
	"DeviceRequestAllocationResult.Pool": place, "AllocatedDeviceStatus.Pool": place, "DeviceTaintSelector.Pool": place,
	"ResourceSliceSpec.Driver": driverName, "DeviceRequestAllocationResult.Driver": driverName, "AllocatedDeviceStatus.Driver": driverName,
	"DeviceTaintSelector.Driver": driverName,
	"Device.Name":                deviceName, "DeviceRequestAllocationResult.Device": deviceName, "AllocatedDeviceStatus.Device": deviceName,
	"DeviceTaintSelector.Device":         deviceName,
	"ExactDeviceRequest.DeviceClassName": className, "DeviceSubRequest.DeviceClassName": className,
	"DeviceClassSpec.ExtendedResourceName": resourceName, "ContainerExtendedResourceRequest.ResourceName": resourceName,

	"DeviceRequest.Name": requestName, "DeviceSubRequest.Name": requestName, "DeviceRequestAllocationResult.Request": requestName,
	"DeviceConstraint.Requests": requestName, "ResourceClaim.Request": requestName,
	"ContainerExtendedResourceRequest.RequestName": requestName,

	"PodResourceClaim.Name": objectName, "ResourceClaim.Name": objectName, "PodResourceClaim.ResourceClaimName": objectName,
	"PodResourceClaim.ResourceClaimTemplateName": objectName, "PodResourceClaimStatus.Name": objectName,
	"PodResourceClaimStatus.ResourceClaimName": objectName, "PodExtendedResourceClaimStatus.ResourceClaimName": objectName,
	"PodSchedulingGroup.PodGroupName": objectName, "PodGroupSpec.ParentCompositePodGroupName": objectName, "TopologyConstraint.Key": labelKey,
	"PodGroupResourceClaim.Name": objectName, "PodGroupResourceClaim.ResourceClaimName": objectName,
	"PodGroupResourceClaim.ResourceClaimTemplateName": objectName,
	"Container.Name": objectName, "ContainerStatus.Name": objectName, "ContainerExtendedResourceRequest.ContainerName": objectName,

	"Taint.Key": labelKey, "Toleration.Key": labelKey, "DeviceTaint.Key": labelKey, "DeviceToleration.Key": labelKey,
	"NodeSelectorRequirement.Key": labelKey, "TopologySpreadConstraint.TopologyKey": labelKey, "PodAffinityTerm.TopologyKey": labelKey,
	"PodAffinityTerm.Namespaces": namespaceName, "PodAffinityTerm.MatchLabelKeys": labelKey, "PodAffinityTerm.MismatchLabelKeys": labelKey,
	"Taint.Value": labelValue, "Toleration.Value": labelValue, "DeviceTaint.Value": labelValue, "DeviceToleration.Value": labelValue,

	"CELDeviceSelector.Expression": celSelector, "DeviceDerivedAttribute.Expression": celDerived,
	"DeviceDerivedAttribute.Name": attributeName,
}

// kindName is the category of an object's name.
var kindName = map[reflect.Type]category{ //nolint:gochecknoglobals // a table, which nothing changes
	reflect.TypeFor[corev1.Node](): place, reflect.TypeFor[corev1.Namespace](): namespaceName,
	reflect.TypeFor[resourceapi.DeviceClass](): className,
}

// machines are what a machine is made of, by its labels.
var machines = sets.New( //nolint:gochecknoglobals // a table, which nothing changes
	"amd64", "arm64", "ppc64le", "riscv64", "s390x", "linux", "windows",
)

// plainVersion is the version of a driver or a firmware.
var plainVersion = regexp.MustCompile(`^\d{1,4}\.\d{1,4}\.\d{1,4}$`)

// tellsNothing says whether the value of a label may stay: numbers, which affinity may compare, and yes or no.
func tellsNothing(value string) bool {
	_, noNumber := strconv.Atoi(value)
	_, noBool := strconv.ParseBool(value)
	return noNumber == nil || noBool == nil
}

// splitName splits a qualified name into its domain, "" if it has none, and the rest.
func splitName(name string) (domain, rest string) {
	if domain, rest, found := strings.Cut(name, "/"); found {
		return domain, rest
	}
	return "", name
}

// kindOf is the kind of an object that a problem is about, and which part of a snapshot.
func kindOf(object string) string {
	kind, rest, _ := strings.Cut(object, " ")
	if kind == plan.HeaderKind {
		kind += " " + rest
	}
	return kind
}
