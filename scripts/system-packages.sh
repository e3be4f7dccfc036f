#!/bin/sh
# Debian packages that some tests need beside Python: Prometheus' promtool, PostgreSQL, ssh, what runs things in namespaces, and
# what a container engine is started from where none answers.
# As root on Debian or Ubuntu it installs what is missing; elsewhere it says so, and the tests that need it are skipped.
set -eu

PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in prometheus:prometheus bwrap:bubblewrap busybox:busybox nsenter:util-linux openssl:openssl debootstrap:debootstrap \
    ip:iproute2 ssh:openssh-client sshd:openssh-server pg_ctlcluster:postgresql; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "system-packages: tests that need these packages are skipped:$missing (as root: apt-get install$missing)" >&2
    exit 0
fi
# The packages' own services would take ports; an existing policy stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get -o DPkg::Lock::Timeout=120 update -qq
# shellcheck disable=SC2086  # a list
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends $missing >/dev/null
