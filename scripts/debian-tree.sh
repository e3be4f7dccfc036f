#!/bin/sh
# Lays out a minimal Debian from packages and says where; kept in ~/.cache/rankline/containers by what went into it.
# The mirror, apt's settings, the CA certificates and pip's certificate and index are this machine's own.
# Usage: scripts/debian-tree.sh SUITE     (as root on Debian; for example: scripts/debian-tree.sh trixie)
set -eu
suite=$1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rankline/containers
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' | sed -n '/security/!s/^Debian //p' | head -n 1)
mirror=${mirror:-http://deb.debian.org/debian}
certificates=/etc/ssl/certs/ca-certificates.crt
settings=$(python3 -m pip config list 2>/dev/null | sed -n "s/^[^.]*\.\(index.url\)='\(.*\)'$/\1 = \2/p" | sort -u)
tree=$cache/debian-$suite-$({
    echo "$mirror $settings"
    cat "$0" "$certificates" /etc/apt/apt.conf.d/*
} 2>/dev/null | sha256sum | cut -c 1-16)
if [ ! -d "$tree" ]; then
    mkdir -p "$cache"
    rm -rf "$tree.part"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$tree.part" "$mirror" >"$cache/debian.log" 2>&1 || {
        echo "debian-tree: no Debian could be installed from $mirror: see $cache/debian.log" >&2
        exit 1
    }
    cp /etc/apt/apt.conf.d/* "$tree.part/etc/apt/apt.conf.d/"
    cp "$certificates" "$tree.part$certificates"
    printf '[global]\ncert = %s\n%s\n' "$certificates" "$settings" >"$tree.part/etc/pip.conf"
    printf '#!/bin/sh\nexit 101\n' >"$tree.part/usr/sbin/policy-rc.d" # no service starts with its package
    chmod 755 "$tree.part" "$tree.part/usr/sbin/policy-rc.d"
    rm -rf "$tree.part"/var/lib/apt/lists/* "$tree.part"/var/cache/apt/*
    mv "$tree.part" "$tree"
fi
echo "$tree"
