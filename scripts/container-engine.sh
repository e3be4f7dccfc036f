#!/bin/sh
# Runs a command with a container engine: the one that answers, or else, as root on Debian, one that is started from Debian's
# packages for as long as the command runs.
# Usage: scripts/container-engine.sh COMMAND [ARGUMENT…]     (for example: scripts/container-engine.sh docker compose build)
#
# An engine of ours sees this machine's files, with /usr of another Debian laid over them in a mount namespace, so that the
# machine keeps its own packages. It ends with the command, even where this script is killed, and leaves images and what
# they were built from in ~/.cache/rankline/containers, but no container, volume, network, mount, process or firewall rule.
# Status 69 says that there is no engine and that none may be started.
set -eu
least_engine=25 least_compose=2.24
# Debian 12's own is too old. Part of the cache's name: change the words with the way it is made.
suite=trixie packages="docker.io docker-cli docker-compose docker-buildx iptables"

fail() {
    echo "container-engine: $1" >&2
    exit "${2:-1}"
}

unavailable() {
    fail "$1" 69
}

[ $# -gt 0 ] || fail "got no command, expected one, such as scripts/container-engine.sh docker compose build" 64

at_least() {  # LEAST VERSION
    [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# One that answers.
if command -v docker >/dev/null 2>&1; then
    if version=$(docker version --format '{{.Server.Version}}' 2>&1); then
        at_least "$least_engine" "$version" ||
            unavailable "the engine is $version, expected $least_engine or later: upgrade it (https://docs.docker.com/engine/install)"
        compose=$(docker compose version --short 2>/dev/null) || unavailable \
            "docker has no Compose plugin: install it (https://docs.docker.com/compose/install/linux)"
        at_least "$least_compose" "${compose#v}" ||
            unavailable "Compose is $compose, expected $least_compose or later: upgrade it (https://docs.docker.com/compose/install/linux)"
        exec "$@"
    fi
    case $version in
    *"permission denied"*)
        unavailable "you lack permission for the engine at ${DOCKER_HOST:-/var/run/docker.sock}: have root add you to its group (usermod -aG docker $(id -un))"
        ;;
    esac
fi

# One of ours.
[ -z "${DOCKER_HOST:-}" ] || unavailable "no engine answers at DOCKER_HOST=$DOCKER_HOST: start it, or unset the variable"
[ "$(id -u)" -eq 0 ] || unavailable "no container engine is running, and only root can start one: start Docker, or set DOCKER_HOST"
command -v debootstrap >/dev/null 2>&1 && [ -L /lib ] ||
    unavailable "no container engine is running, and one can be started only from Debian's packages: install Docker (on Debian: scripts/system-packages.sh)"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rankline/containers
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$cache"
exec 8<&0 9>"$cache/lock" # a command in the background would have /dev/null to read from
flock --nonblock 9 || {
    echo "container-engine: waiting for another command that is using the engine" >&2
    flock 9
}
debian=$("$scripts/debian-tree.sh" "$suite") || exit
tree=$cache/engine-$(printf '%s %s' "$debian" "$packages" | sha256sum | cut -c 1-16)
if [ ! -d "$tree" ]; then
    rm -rf "$tree.part"
    cp -a "$debian" "$tree.part"
    chroot "$tree.part" sh -euc "apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages
        apt-get clean" >"$cache/engine.log" 2>&1 9>&- || fail "the engine's packages could not be installed: see $cache/engine.log"
    mkdir "$tree.part/client"
    ln -s ../usr/bin/docker "$tree.part/client/docker"
    printf '{"cliPluginsExtraDirs": ["%s"]}\n' "$tree/usr/libexec/docker/cli-plugins" >"$tree.part/client/config.json"
    mv "$tree.part" "$tree"
fi

run=$(mktemp -d /tmp/rankline-engine-XXXXXX) # sockets have short paths
forwarding=$(cat /proc/sys/net/ipv4/ip_forward)
engine='' command='' policy=''

# shellcheck disable=SC2016
overlay='tree=$1; shift
mkdir -p /run/containerd
mount -t tmpfs tmpfs /run/containerd
mount --bind "$tree/etc/alternatives" /etc/alternatives
mount --bind "$tree/usr" /usr
PATH=/usr/sbin:/usr/bin exec "$@"'
# The first process of the engine's namespace: starts an engine that is killed again, as the machine's own would be.
# shellcheck disable=SC2016
kept='trap "kill -TERM \$child" TERM
while :; do
    "$@" &
    child=$!
    until # a signal ends `wait`, too
        status=0
        wait "$child" || status=$?
        ! kill -0 "$child" 2>/dev/null
    do :; done
    [ "$status" -eq 137 ] || exit "$status"
done'
# shellcheck disable=SC2016
without_rules='for table in filter nat; do
    iptables -t $table -S | grep -e DOCKER -e docker0 -e " br-" | sed -n "s/^-A/-D/p" |
        while read -r rule; do iptables -t $table $rule; done
    for chain in $(iptables -t $table -S | sed -n "s/^-N \(DOCKER.*\)/\1/p"); do iptables -t $table -F $chain; done
    for chain in $(iptables -t $table -S | sed -n "s/^-N \(DOCKER.*\)/\1/p"); do iptables -t $table -X $chain; done
done
[ -z "$1" ] || iptables $1'

# What tests and people have left, but for images and the builder's cache.
sweep() {
    docker ps --all --quiet | xargs -r docker rm --force --volumes
    docker network prune --force
    docker volume prune --all --force
    docker image prune --force
    docker builder prune --force --keep-storage 10GB
} >/dev/null 2>&1 9>&-

end() {
    trap '' INT TERM HUP
    [ -z "$command" ] || kill "$command" 2>/dev/null || true
    if [ -n "$engine" ] && kill -0 "$engine" 2>/dev/null; then
        sweep || true
        kill -TERM "$(cat "$run/engine.pid")" 2>/dev/null || true
        # `unshare` ends when the engine, the first process of its namespace, has.
        timeout 30 tail --pid="$engine" -f /dev/null || kill -KILL "$engine"
        wait "$engine" 2>/dev/null || true
    fi
    unshare --mount sh -c "$overlay" sh "$tree" sh -c "$without_rules" sh "$policy" >/dev/null 2>&1 || true
    ip link delete docker0 2>/dev/null || true
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    rm -rf "$run"
    rmdir /run/containerd 2>/dev/null || true
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

policy=$(unshare --mount sh -c "$overlay" sh "$tree" iptables -S FORWARD | head -n 1)
export DOCKER_HOST="unix://$run/docker.sock" DOCKER_CONFIG="$tree/client" PATH="$tree/client:$PATH"
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc sh -c "$overlay" sh "$tree" \
    sh -c "$kept" sh dockerd --host "$DOCKER_HOST" --data-root "$cache/data" --exec-root "$run/exec" --pidfile "$run/docker.pid" \
    >"$cache/engine.log" 2>&1 8<&- 9>&- </dev/null &
engine=$!
until docker version >/dev/null 2>&1; do
    kill -0 "$engine" 2>/dev/null || fail "the engine exited: $(tail -n 1 "$cache/engine.log") ($cache/engine.log)"
    sleep 0.1
done
pgrep --parent "$engine" >"$run/engine.pid"
sweep || true # of an engine that was killed

"$@" <&8 8<&- 9>&- &
command=$!
status=0
wait "$command" || status=$?
command=''
exit "$status"
