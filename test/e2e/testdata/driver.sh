#!/bin/sh
# The program of a container that brings a driver to a node of a cluster. The node's hardware is simulated below $TREE, so what a kernel
# module and a library would make there, the program makes: an entry of /proc/devices, /proc/driver/nvidia, device nodes, the links between
# driver and functions, and the library. As a kernel does, it refuses to unload a driver that something uses, and to load a second one.
#
# driver.sh run|ready|unload. /driver has the files of the driver: version, what is in /proc, and fails for one that cannot be loaded.
: "${TREE:=/machine}" "${FILES:=/driver}"
kernel=$TREE/proc/driver/nvidia
functions=$TREE/sys/bus/pci/drivers/nvidia
library=$TREE/nvmlsim/nvmlsim.json

note() {
	echo "$*"
	echo "$*" >> "$TREE/driver.log"
}

loaded() { sed -n 's/^NVRM version: .*x86_64  *\([0-9.]*\) .*/\1/p' "$kernel/version" 2> /dev/null; }

# node prints where the directories of the node are: all nodes of a cluster, and all clusters of a machine, see each other's processes.
node() {
	while read -r _ _ _ root point _; do
		[ "$point" != "$TREE" ] || echo "${root%/machine}"
	done < /proc/self/mountinfo
}

# users prints what has the driver in use in the node's pods: open device nodes, and programs that have its library loaded.
users() {
	here=$(node)
	[ -n "$here" ] || echo "something unknown: $TREE is no mount"
	for of in $(grep -l " $here/kubelet/pods/" /proc/[0-9]*/mountinfo 2> /dev/null); do
		ls -l "${of%/mountinfo}/fd" 2> /dev/null | sed -n 's,.* -> .*\(/dev/nvidia[^ ]*\)$,\1,p'
		grep -h '^fettle-nvml$' "${of%/mountinfo}/comm" 2> /dev/null
	done
}

load() {
	if [ -n "$(loaded)" ]; then
		note "modprobe: ERROR: nvidia $(loaded) is loaded, and $1 is wanted"
		exit 1
	fi
	mkdir -p "$kernel"
	cp -R "$FILES/gpus" "$kernel/gpus"
	cat "$FILES/devices" > "$TREE/proc/devices"
	while read -r name major minor; do mknod "$TREE/dev/$name" c "$major" "$minor"; done < "$FILES/nodes"
	echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  $1  Release Build" > "$kernel/version"
	sed "s/\"ToolVersion\":\"[^\"]*\"/\"ToolVersion\":\"$1\"/" "$library.unloaded" > "$library.new"
	rm "$library.unloaded"
	mv "$library.new" "$library"
	for gpu in "$kernel"/gpus/*; do echo "${gpu##*/}" > "$functions/bind" || exit 1; done
	note "loaded $1"
}

unload() {
	version=$(loaded)
	[ -n "$version" ] || return 0
	using=$(users | sort -u | tr '\n' ' ')
	if [ -n "$using" ]; then
		note "rmmod: ERROR: nvidia $version is in use: $using"
		exit 1
	fi
	for gpu in "$kernel"/gpus/*; do echo "${gpu##*/}" > "$functions/unbind" || exit 1; done
	mv "$library" "$library.unloaded"
	rm -r "$kernel/version" "$kernel/gpus"
	others=$(grep -v nvidia "$TREE/proc/devices")
	echo "$others" > "$TREE/proc/devices"
	rm "$TREE"/dev/nvidia[0-9]* "$TREE"/dev/nvidiactl "$TREE"/dev/nvidia-modeset "$TREE"/dev/nvidia-uvm "$TREE"/dev/nvidia-uvm-tools
	note "unloaded $version"
}

case $1 in
unload)
	unload
	;;
ready)
	[ -e "$FILES/loads-nothing" ] || [ "$(loaded)" = "$(cat "$FILES/version")" ]
	;;
run)
	trap 'unload; exit 0' TERM
	if [ -e "$FILES/fails" ]; then
		cat "$FILES/fails"
		exit 1
	fi
	[ -e "$FILES/loads-nothing" ] || load "$(cat "$FILES/version")"
	while :; do sleep 3600 & wait $!; done
	;;
esac
