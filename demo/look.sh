#!/bin/sh
# Prints every device node of a container that not every container has: its path, its numbers, and whether it opens for reading
# and writing (rw), for reading only (r) or not at all (denied). Run it in a pod: kubectl exec -i POD -- sh < demo/look.sh
find /dev -type c | sort | while read -r node; do
	case $node in
	/dev/null | /dev/zero | /dev/full | /dev/random | /dev/urandom | /dev/tty | /dev/console | /dev/ptmx | /dev/pts/*) continue ;;
	esac
	# In a subshell: in the session's leader a terminal, which stands for a device here, would become the controlling one.
	if (exec 3<>"$node") 2>/dev/null; then
		how=rw
	elif (exec 3<"$node") 2>/dev/null; then
		how=r
	else
		how=denied
	fi
	echo "$node $((0x$(stat -c %t "$node"))):$((0x$(stat -c %T "$node"))) $how"
done
