// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"path"
	"regexp"
	"strings"

	"github.com/fettle-dev/fettle/pkg/vendors"
)

// What is recorded beside PCI functions and classes, as patterns of path.Match. The table of vendors has more.
var (
	recordedFiles = []string{
		"proc/devices",
		"proc/sys/kernel/osrelease",
		"proc/driver/nvidia/version",
		"proc/driver/nvidia/gpus/*/information",
		"proc/driver/nvidia/capabilities/mig/*",
		"proc/driver/nvidia/capabilities/gpu*/mig/gi*/access",
		"proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access",
		"sys/devices/system/node/node*/cpulist",
		"sys/firmware/devicetree/base/compatible",
		"sys/firmware/devicetree/base/model",
		"sys/module/firmware_class/parameters/path",
		"sys/devices/virtual/kfd/kfd/dev",
		"sys/devices/virtual/kfd/kfd/subsystem",
		"sys/devices/virtual/kfd/kfd/topology/generation_id",
		"sys/devices/virtual/kfd/kfd/topology/system_properties",
		"sys/devices/virtual/kfd/kfd/topology/nodes/*/gpu_id",
		"sys/devices/virtual/kfd/kfd/topology/nodes/*/name",
		"sys/devices/virtual/kfd/kfd/topology/nodes/*/properties",
		"sys/devices/virtual/kfd/kfd/topology/nodes/*/mem_banks/*/properties",
	}
	recordedNodes   = []string{"dev/dri/*", "dev/accel/*", "dev/dfl-*", "dev/fpga[0-9]*"}
	moduleFiles     = []string{"version", "srcversion", "initstate"}
	recordedClasses = []string{
		"sys/class/drm/card*", "sys/class/drm/renderD*", "sys/class/kfd/*", "sys/class/accel/*", "sys/class/fpga_region/*",
		"sys/class/fpga_manager/*", "sys/class/fpga_bridge/*", "sys/bus/platform/devices/dfl-*", "sys/class/misc/fpga[0-9]*",
		"sys/class/xrt_mgmt/*",
	}
	bridgeFiles   = []string{"vendor", "device", "class", "numa_node", "subsystem"}
	functionFiles = []string{
		"vendor", "device", "subsystem_vendor", "subsystem_device", "class", "revision", "numa_node", "local_cpulist", "subsystem",
		"current_link_*", "max_link_*", "sriov_totalvfs", "sriov_numvfs", "physfn", "virtfn*",
		"drm/*/dev", "drm/*/device", "drm/*/subsystem", "accel/*/dev", "accel/*/device", "accel/*/subsystem",
		// dfl: a base region, its management engine with regions, bridges and manager, and its ports
		"fpga_region/*/device", "fpga_region/*/subsystem", "fpga_region/*/compat_id", "fpga_region/*/dfl-*/dev",
		"fpga_region/*/dfl-fme.*/ports_num", "fpga_region/*/dfl-fme.*/bitstream_*", "fpga_region/*/dfl-fme.*/errors/*_error*",
		"fpga_region/*/dfl-fme.*/dfl-fme-mgr.*/fpga_manager/*/name", "fpga_region/*/dfl-fme.*/dfl-fme-mgr.*/fpga_manager/*/state",
		"fpga_region/*/dfl-fme.*/dfl-fme-region.*/fpga_region/*/compat_id",
		"fpga_region/*/dfl-fme.*/dfl-fme-br.*/fpga_bridge/*/name", "fpga_region/*/dfl-fme.*/dfl-fme-br.*/fpga_bridge/*/state",
		"fpga_region/*/dfl-port.*/id", "fpga_region/*/dfl-port.*/afu_id", "fpga_region/*/dfl-port.*/power_state",
		"fpga_region/*/dfl-port.*/ap[12]_event", "fpga_region/*/dfl-port.*/ltr", "fpga_region/*/dfl-port.*/errors/*error*",
		// xrt: the two functions of a card
		"mgmt_pf", "user_pf", "ready", "config_mailbox_channel_*", "xclbinuuid", "interface_uuids", "logic_uuids", "rom*/VBNV",
		"rom*/timestamp", "xmc.u.*/serial_num", "xrt_mgmt/*/dev", "xrt_mgmt/*/device",
	}
)

// pciAddress is how sysfs names a function.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// functions records the accelerators among the PCI functions. A function whose class cannot be read, or that is gone behind its
// link, is recorded too: it may be the very reason for the recording.
func (r *recorder) functions() {
	for _, link := range r.glob("sys/bus/pci/devices/*") {
		dir, ok := r.follow(link)
		if !ok {
			continue
		}
		if info, err := r.root.Stat(dir); err != nil || !info.IsDir() {
			r.file(link)
			continue
		}
		if !accelerator(r.text(dir+"/class"), r.text(dir+"/vendor")) && len(r.glob(dir+"/accel/*")) == 0 {
			continue
		}
		r.function(link, dir)
		for up := path.Dir(dir); pciAddress.MatchString(path.Base(up)); up = path.Dir(up) {
			r.bridge(up)
		}
	}
	r.module("vfio_pci")
	for _, v := range vendors.All() {
		for _, name := range v.Record.Modules {
			r.module(name)
		}
	}
}

func (r *recorder) module(name string) {
	for _, file := range moduleFiles {
		r.file("sys/module/" + name + "/" + file)
	}
}

// accelerator says whether a function may be of interest: displays, processing accelerators, NVSwitches (other bridges of
// NVIDIA), and whatever cannot tell its class.
func accelerator(class, vendor string) bool {
	switch {
	case class == "", strings.HasPrefix(class, "0x03"), strings.HasPrefix(class, "0x12"):
		return true
	}
	return strings.HasPrefix(class, "0x0680") && vendor == "0x10de"
}

func (r *recorder) function(link, dir string) {
	r.file(link)
	r.file(dir + "/iommu_group")
	if group, ok := r.follow(dir + "/iommu_group"); ok {
		r.file(group + "/type")
	}
	for _, pattern := range functionFiles {
		r.files(dir + "/" + pattern)
	}
	for _, v := range vendors.All() {
		for _, pattern := range v.Record.Files {
			r.files(dir + "/" + pattern)
		}
	}
	r.driver(dir)
}

func (r *recorder) bridge(dir string) {
	r.file("sys/bus/pci/devices/" + path.Base(dir))
	for _, name := range bridgeFiles {
		r.file(dir + "/" + name)
	}
	r.driver(dir)
}

// driver records the driver's link of a function and the driver's side of it.
func (r *recorder) driver(dir string) {
	r.file(dir + "/driver")
	driver, ok := r.follow(dir + "/driver")
	if !ok {
		return
	}
	if info, err := r.root.Stat(driver); err != nil || !info.IsDir() {
		return
	}
	r.add(Entry{Path: driver, Kind: Dir})
	r.file(driver + "/module")
	r.file(driver + "/" + path.Base(dir))
	if module, ok := r.follow(driver + "/module"); ok {
		for _, file := range moduleFiles {
			r.file(module + "/" + file)
		}
	}
}

// classes records the class links, and the numbers of what they point at: a DRM node need not belong to a PCI function.
func (r *recorder) classes() {
	r.file("sys/class/drm/version")
	for _, pattern := range recordedClasses {
		for _, link := range r.glob(pattern) {
			if strings.Contains(path.Base(link), "-") && strings.HasPrefix(link, "sys/class/drm/") {
				continue // a connector, card0-DP-1
			}
			r.file(link)
			if dir, ok := r.follow(link); ok {
				r.files(dir+"/dev", dir+"/device", dir+"/subsystem")
				r.chip(dir)
			}
		}
	}
}

// chip records what the manager or bridge of a chip says that is no PCI function, and which driver its platform device has.
func (r *recorder) chip(dir string) {
	class := path.Base(path.Dir(dir))
	if class != "fpga_manager" && class != "fpga_bridge" && class != "drm" || !strings.HasPrefix(dir, "sys/devices/platform/") {
		return
	}
	for _, name := range []string{"name", "state", "status", "flags", "firmware"} {
		r.file(dir + "/" + name)
	}
	r.driver(path.Dir(path.Dir(dir)))
}
