#!/bin/sh
# Lays out the root of the image: the program, whom it trusts, where it writes. The Dockerfile and the
# tests do it by this.
# usage: root.sh JVMPROF CA_CERTIFICATES ROOT
set -eu
[ $# -eq 3 ] || { echo "usage: root.sh JVMPROF CA_CERTIFICATES ROOT" >&2; exit 64; }
program=$1 certificates=$2 root=$3

install -D -m 0755 "$program" "$root/usr/bin/jvmprof"
install -D -m 0644 "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
install -d -m 0755 "$root/etc/jvmprof" "$root/var/lib/jvmprof" "$root/var/cache/jvmprof"
install -d -m 1777 "$root/tmp"
# Names of backends: the node's hosts file first, then DNS.
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
echo 'root:x:0:0:root:/:/usr/sbin/nologin' > "$root/etc/passwd"
echo 'root:x:0:' > "$root/etc/group"
